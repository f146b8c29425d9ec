"""confluent_produce.py BROKERS TOPIC PARTITIONER: sends a record per key of standard input; prints "key partition" each."""
import sys

from confluent_kafka import Producer

brokers, topic, partitioner = sys.argv[1:]
producer = Producer({"bootstrap.servers": brokers, "partitioner": partitioner})


def delivered(err, m):
    if err:
        sys.exit(str(err))
    print(m.key().decode(), m.partition())


for line in sys.stdin:
    producer.produce(topic, key=line.strip(), value="{}", on_delivery=delivered)
    producer.poll(0)
if producer.flush(10):
    sys.exit("not everything was delivered within 10 s")
