"""A smoke test of an installed package: import all of it, and write and read a transaction.

``./run versions`` runs it on each Python of the machine, and with the lowest dependencies.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import pkgutil
import sys
import tempfile

import oncelog

RECORDS = 100


def import_all() -> int:
    """Import every module whose own dependencies are there; return how many."""
    count = 0
    for module in pkgutil.walk_packages(oncelog.__path__, "oncelog."):
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] in ("oncelog", "ray", "numpy", "pyarrow"):
                raise
        else:
            count += 1
    return count


def write_and_read(data_dir: str) -> list[bytes]:
    """The values that a reader sees of a committed and of an aborted transaction."""
    values: list[bytes] = []
    with oncelog.init(data_dir, num_cpus=2) as cluster:
        cluster.admin().create_topic("flights", partitions=2)
        with cluster.producer(transactional_id="loader") as producer:
            producer.init_transactions()
            with producer.transaction():
                for number in range(RECORDS):
                    producer.send("flights", b"%03d" % number, key=b"%d" % number)
            producer.begin_transaction()
            producer.send("flights", b"never")
            producer.flush()
            producer.abort_transaction()
        with cluster.consumer(group_id="readers", auto_offset_reset="earliest") as consumer:
            consumer.subscribe(["flights"])
            while len(values) < RECORDS:
                values += [record.value for record in consumer.poll(timeout_ms=10_000)]
            values += [record.value for record in consumer.poll(timeout_ms=500)]
        cluster.shutdown()
    return values


def main() -> None:
    """Print what was tried; an assertion fails if it does not hold."""
    modules = import_all()
    with tempfile.TemporaryDirectory() as data_dir:
        values = write_and_read(data_dir)
    assert sorted(values) == [b"%03d" % number for number in range(RECORDS)], values
    names = ("ray", "numpy", "pyarrow", "msgspec", "msgpack", "crc32c", "uvloop")
    versions = " ".join(f"{name} {importlib.metadata.version(name)}" for name in names)
    tried = f"Python {sys.version.split()[0]}, {versions}: {modules} modules, {RECORDS} records"
    sys.stdout.write(f"smoke: {tried}\n")


if __name__ == "__main__":
    main()
