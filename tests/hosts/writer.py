"""Transactions over several partitions, each noted in a ledger with its outcome.

    python writer.py NAME TOPIC PARTITION,... COUNT LEDGER

A transaction sends its name to each partition; every fifth is aborted. The ledger has two lines per
transaction, each with its name and partitions: begun, then committed, aborted or unknown. After an
error, which may be a host that is gone, the program goes on with the next transaction as a new
producer of the same id.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Final

import oncelog

ABORTED_ONE_IN: Final = 5
GIVE_UP_S: Final = 200.0


def main(name: str, topic: str, chosen: str, count: str, ledger: str) -> None:
    path = Path(ledger)
    begun = path.read_text().count(" begun\n") if path.exists() else 0
    remaining = list(range(begun, begun + int(count)))
    deadline = time.monotonic() + GIVE_UP_S
    with oncelog.connect() as cluster, path.open("a", encoding="utf-8", buffering=1) as lines:
        while remaining:
            try:
                with cluster.producer(transactional_id=name) as producer:
                    producer.init_transactions()
                    while remaining:
                        number = remaining.pop(0)
                        transaction = f"{name}-{number} {chosen}"
                        lines.write(f"{transaction} begun\n")
                        outcome = "unknown"
                        try:
                            outcome = transact(producer, number, transaction, topic)
                        finally:
                            lines.write(f"{transaction} {outcome}\n")
            except oncelog.OncelogError as error:
                print(f"{len(remaining)} to go: {error!r}", flush=True)
                if time.monotonic() > deadline:
                    raise


def transact(producer: oncelog.Producer, number: int, transaction: str, topic: str) -> str:
    """One transaction, and what became of it."""
    value, chosen = transaction.split()
    producer.begin_transaction()
    for partition in chosen.split(","):
        producer.send(topic, value.encode(), partition=int(partition))
    if number % ABORTED_ONE_IN == ABORTED_ONE_IN - 1:
        producer.abort_transaction()
        return "aborted"
    producer.commit_transaction()
    return "committed"


if __name__ == "__main__":
    main(*sys.argv[1:])
