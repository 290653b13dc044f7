"""Print all that is committed in topics: JSON, of each topic a list of partition and value.

python reader.py TOPIC ...
"""

from __future__ import annotations

import json
import sys
import time
from typing import Final

import oncelog

GIVE_UP_S: Final = 150.0


def main(topics: list[str]) -> None:
    deadline = time.monotonic() + GIVE_UP_S
    with oncelog.connect() as cluster:
        print(json.dumps({topic: read(cluster, topic, deadline) for topic in topics}))


def read(cluster: oncelog.Cluster, topic: str, deadline: float) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    with cluster.consumer(auto_offset_reset="earliest") as consumer:
        count = len(cluster.admin().describe_topic(topic).partitions)
        partitions = [oncelog.TopicPartition(topic, number) for number in range(count)]
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        while any(consumer.position(tp) < end for tp, end in ends.items()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{topic} is not read to {ends} within {GIVE_UP_S} s")
            records = consumer.poll(timeout_ms=1_000, max_records=10_000)
            found += [(record.partition, record.value.decode()) for record in records]
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
