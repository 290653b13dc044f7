"""A consumer that keeps offsets in a store of its own, ported from Java.

Each time it gets partitions, a rebalance listener moves it to where the store says. Results and
offsets go into the store together, so each record counts there once.
"""

from __future__ import annotations

import sqlite3

import oncelog
from oncelog import ConsumerRebalanceListener, TopicPartition


class Store(ConsumerRebalanceListener):
    """A table of results and one of offsets, in SQLite, and the listener that goes by them."""

    def __init__(self, consumer: oncelog.Consumer, path: str) -> None:
        self._consumer = consumer
        self._database = sqlite3.connect(path, check_same_thread=False)
        with self._database:
            self._database.execute("CREATE TABLE IF NOT EXISTS results (value BLOB)")
            self._database.execute(
                "CREATE TABLE IF NOT EXISTS offsets (topic, number, offset, "
                "PRIMARY KEY (topic, number))"
            )

    def on_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        """Go on where the store ends."""
        for partition in partitions:
            found = self._database.execute(
                "SELECT offset FROM offsets WHERE topic = ? AND number = ?",
                (partition.topic, partition.partition),
            ).fetchone()
            if found is not None:
                self._consumer.seek(partition, found[0])

    def add(self, records: list[oncelog.ConsumerRecord]) -> None:
        """Keep the results and the next offsets, both or neither."""
        with self._database:
            for record in records:
                self._database.execute("INSERT INTO results VALUES (?)", (record.value,))
                self._database.execute(
                    "INSERT OR REPLACE INTO offsets VALUES (?, ?, ?)",
                    (record.topic, record.partition, record.offset + 1),
                )

    def values(self) -> list[bytes]:
        """All results, in the order in which they came."""
        return [value for (value,) in self._database.execute("SELECT value FROM results")]

    def close(self) -> None:
        """Close the database."""
        self._database.close()


def collect(cluster: oncelog.Cluster, topic: str, path: str, *, until_idle_ms: int) -> list[bytes]:
    """Read until nothing has come for ``until_idle_ms``; return all that the store has then."""
    with cluster.consumer(
        group_id="collector", enable_auto_commit=False, auto_offset_reset="earliest"
    ) as consumer:
        store = Store(consumer, path)
        try:
            consumer.subscribe([topic], listener=store)
            while records := consumer.poll(timeout_ms=until_idle_ms):
                store.add(records)
            return store.values()
        finally:
            store.close()
