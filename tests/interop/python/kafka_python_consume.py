"""kafka_python_consume.py BROKERS TOPIC ISOLATION: prints every record of a topic as a line of JSON.

kafka-python 2.0.2, as Debian 12 packages it, cannot read committed records only: its constructor refuses
isolation_level. ISOLATION "none" leaves it away.
"""
import json
import sys

from kafka import KafkaConsumer, TopicPartition

brokers, topic, isolation = sys.argv[1:]
more = {} if isolation == "none" else {"isolation_level": isolation}
consumer = KafkaConsumer(bootstrap_servers=brokers, enable_auto_commit=False, **more)
partitions = [TopicPartition(topic, p) for p in sorted(consumer.partitions_for_topic(topic))]
consumer.assign(partitions)
consumer.seek_to_beginning(*partitions)
ends = consumer.end_offsets(partitions)
while any(consumer.position(p) < ends[p] for p in partitions):
    for records in consumer.poll(200).values():
        for r in records:
            print(json.dumps({
                "partition": r.partition, "offset": r.offset, "time": r.timestamp,
                "key": r.key.decode(), "value": r.value.decode(),
                "headers": [[k, v.decode()] for k, v in r.headers],
            }))
