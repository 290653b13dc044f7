"""Ray Data to a topic and back: one transaction, then a dataset of what it committed.

Run it with ``python -m oncelog.examples.ray_data``. It starts a cluster, or joins a running one.
"""

from __future__ import annotations

from pathlib import Path

import ray

import oncelog

DATA_DIR = Path("oncelog-data")


def copy(topic: str) -> ray.data.Dataset:
    """Write a dataset to ``topic``, and read the topic as a dataset."""
    numbers = ray.data.range(1_000).map(lambda row: {"value": str(row["id"] ** 2)})
    oncelog.ray_data.write(numbers, topic, txn_app_id="squares", txn_version=1)  # one transaction
    squares = oncelog.ray_data.read(topic, start_offset="earliest")  # committed data only
    return squares.map(lambda row: {"square": int(row["value"])})


def main() -> None:
    """Create the topic, write it, and print what it holds, the same for every run."""
    with oncelog.init(data_dir=DATA_DIR) as cluster:
        cluster.admin().create_topic("squares", partitions=6, exist_ok=True)
        squares = copy("squares")
        print(squares.count(), "squares, the largest", squares.max("square"))  # noqa: T201


if __name__ == "__main__":
    main()
