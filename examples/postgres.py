"""Rows of PostgreSQL and records of the log: both or neither, whatever dies in between (KIP-939).

Run it with ``python -m oncelog.examples.postgres DSN COUNT``. It needs psycopg, and a cluster with
``transaction_two_phase_commit_enable``. Run it again after any death: it goes on where it was.

Each order is a row of ``orders`` and a record of the topic ``orders``. The table ``writer`` has one
row, for the program's transactional id: which prepared transaction belongs to the last rows, and
whose turn it is. The database commits that row with the orders. So a program that starts finds out
there whether what is prepared in the log is to be committed.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable
from typing import Any

import psycopg

import oncelog

TOPIC = "orders"
WRITER = "orders-1"
TABLES = """
CREATE TABLE IF NOT EXISTS orders (number BIGINT PRIMARY KEY, text TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS writer (id TEXT PRIMARY KEY, turn TEXT, prepared TEXT);
"""


def _nothing(_step: str) -> None:
    pass


class Orders:
    """One writer of orders. ``after`` is called with the name of each step, once it is done."""

    def __init__(
        self,
        cluster: oncelog.Cluster,
        database: psycopg.Connection[Any],
        after: Callable[[str], None] = _nothing,
    ) -> None:
        self._database = database
        self._after = after
        self._turn = uuid.uuid4().hex
        with database.transaction():
            database.execute(TABLES)
        self._producer = cluster.producer(transactional_id=WRITER)
        # It fences an older producer here; to take the turn fences an older program there.
        self._producer.init_transactions(keep_prepared=True)
        self._producer.complete_transaction(self._take_turn())

    def _take_turn(self) -> oncelog.PreparedTxnState | None:
        """Make every other program's next commit fail; return what the last one has committed."""
        with self._database.transaction():
            row = self._database.execute(
                "INSERT INTO writer (id, turn) VALUES (%s, %s) "
                "ON CONFLICT (id) DO UPDATE SET turn = EXCLUDED.turn RETURNING prepared",
                (WRITER, self._turn),
            ).fetchone()
        prepared = None if row is None else row[0]
        return None if prepared is None else oncelog.PreparedTxnState.parse(prepared)

    def next_number(self) -> int:
        """One above the last order that the database has."""
        row = self._database.execute("SELECT coalesce(max(number) + 1, 0) FROM orders").fetchone()
        assert row is not None
        return int(row[0])

    def add(self, number: int, text: str) -> None:
        """Add one order to both; durable in both on return."""
        self._producer.begin_transaction()
        self._producer.send(TOPIC, key=b"%d" % number, value=text.encode())
        state = self._producer.prepare_transaction()
        self._after("prepared")
        with self._database.transaction():
            self._database.execute("INSERT INTO orders VALUES (%s, %s)", (number, text))
            done = self._database.execute(
                "UPDATE writer SET prepared = %s WHERE id = %s AND turn = %s",
                (str(state), WRITER, self._turn),
            )
            if done.rowcount != 1:
                raise RuntimeError(f"another program writes as {WRITER!r} now")
            self._after("written")
        self._after("committed")
        self._producer.complete_transaction(state)
        self._after("completed")

    def close(self) -> None:
        """Close the producer; what is prepared stays."""
        self._producer.close()


def main(
    dsn: str,
    count: int,
    after: Callable[[str], None] = _nothing,
    *,
    address: str = "auto",
) -> None:
    """Add orders until there are ``count``."""
    with (
        oncelog.connect(address) as cluster,
        psycopg.connect(dsn, autocommit=True) as database,
    ):
        cluster.admin().create_topic(TOPIC, partitions=1, exist_ok=True)
        orders = Orders(cluster, database, after)
        for number in range(orders.next_number(), count):
            orders.add(number, f"order {number}")
        orders.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
