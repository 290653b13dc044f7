"""Print all that is committed in a topic: a JSON list of partition and value.

python reader.py TOPIC
"""

from __future__ import annotations

import json
import sys
import time
from typing import Final

import oncelog

GIVE_UP_S: Final = 150.0


def main(topic: str) -> None:
    found: list[tuple[int, str]] = []
    deadline = time.monotonic() + GIVE_UP_S
    with (
        oncelog.connect() as cluster,
        cluster.consumer(auto_offset_reset="earliest") as consumer,
    ):
        count = len(cluster.admin().describe_topic(topic).partitions)
        partitions = [oncelog.TopicPartition(topic, number) for number in range(count)]
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        while any(consumer.position(tp) < end for tp, end in ends.items()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"not read to {ends} within {GIVE_UP_S} s")
            records = consumer.poll(timeout_ms=1_000, max_records=10_000)
            found += [(record.partition, record.value.decode()) for record in records]
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
