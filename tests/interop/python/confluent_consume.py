"""confluent_consume.py BROKERS TOPIC ISOLATION: prints every record of a topic as a line of JSON."""
import json
import sys

from confluent_kafka import Consumer, TopicPartition

brokers, topic, isolation = sys.argv[1:]
consumer = Consumer({
    "bootstrap.servers": brokers,
    "group.id": "interop",  # the library wants one; nothing is committed
    "enable.auto.commit": False,
    "isolation.level": isolation,
    "enable.partition.eof": True,
})
partitions = consumer.list_topics(topic, 10).topics[topic].partitions
consumer.assign([TopicPartition(topic, p, 0) for p in partitions])
left = set(partitions)
while left:
    m = consumer.poll(10)
    if m is None:
        sys.exit("no record and no end within 10 s")
    if m.error():
        if m.error().name() != "_PARTITION_EOF":
            sys.exit(str(m.error()))
        left.discard(m.partition())
        continue
    print(json.dumps({
        "partition": m.partition(), "offset": m.offset(), "time": m.timestamp()[1],
        "key": m.key().decode(), "value": m.value().decode(),
        "headers": [[k, v.decode()] for k, v in m.headers() or []],
    }))
consumer.close()
