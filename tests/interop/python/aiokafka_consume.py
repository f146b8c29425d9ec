"""aiokafka_consume.py BROKERS TOPIC ISOLATION: prints every record of a topic as a line of JSON."""
import asyncio
import json
import sys

from aiokafka import AIOKafkaConsumer, TopicPartition


async def main(brokers, topic, isolation):
    consumer = AIOKafkaConsumer(bootstrap_servers=brokers, enable_auto_commit=False, isolation_level=isolation)
    await consumer.start()
    try:
        await consumer._client.force_metadata_update()
        partitions = [TopicPartition(topic, p) for p in sorted(consumer.partitions_for_topic(topic) or [])]
        consumer.assign(partitions)
        await consumer.seek_to_beginning(*partitions)
        ends = await consumer.end_offsets(partitions)
        while True:
            if all([await consumer.position(p) >= ends[p] for p in partitions]):
                return
            for records in (await consumer.getmany(timeout_ms=200)).values():
                for r in records:
                    print(json.dumps({
                        "partition": r.partition, "offset": r.offset, "time": r.timestamp,
                        "key": r.key.decode(), "value": r.value.decode(),
                        "headers": [[k, v.decode()] for k, v in r.headers],
                    }))
    finally:
        await consumer.stop()


asyncio.run(main(*sys.argv[1:]))
