"""Transactions over several partitions, each noted in a ledger with its outcome.

    python writer.py NAME TOPIC PARTITION,... COUNT LEDGER

A transaction sends its name to each partition; every fifth is aborted. The ledger has two lines per
transaction, each with its name and partitions: begun, then committed, aborted or unknown, and when,
in seconds. After an error, which may be a host that is gone, the program goes on with the next
transaction as a new producer of the same id. With a COUNT of 0 it writes, with short breaks, until
there is a file named as the ledger is, with "stop-" before it.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import oncelog

ABORTED_ONE_IN: Final = 5
GIVE_UP_S: Final = 200.0
REFUSED: Final = (
    oncelog.SaslAuthenticationFailedError,
    oncelog.TopicAuthorizationFailedError,
)
"""What waiting does not mend: it ends the program."""

BREAK_S: Final = 0.02
"""Between the transactions of a program that writes until it is stopped: hosts share a machine."""


def main(name: str, topic: str, chosen: str, count: str, ledger: str) -> None:
    path = Path(ledger)
    begun = path.read_text().count(" begun ") if path.exists() else 0
    numbers = until_stopped(begun, path.with_name(f"stop-{path.name}"))
    if int(count):
        numbers = iter(range(begun, begun + int(count)))
    deadline = time.monotonic() + GIVE_UP_S
    with oncelog.connect() as cluster, path.open("a", encoding="utf-8", buffering=1) as lines:
        number = next(numbers, None)
        while number is not None:
            try:
                with cluster.producer(transactional_id=name) as producer:
                    producer.init_transactions()
                    while number is not None:
                        transaction = f"{name}-{number} {chosen}"
                        lines.write(f"{transaction} begun {time.monotonic():.3f}\n")
                        this, number = number, next(numbers, None)
                        outcome = "unknown"
                        try:
                            outcome = transact(producer, this, transaction, topic)
                        finally:
                            lines.write(f"{transaction} {outcome} {time.monotonic():.3f}\n")
            except oncelog.OncelogError as error:
                print(f"{name} before {number}: {error!r}", flush=True)
                if isinstance(error, REFUSED) or time.monotonic() > deadline:
                    raise


def until_stopped(first: int, stop: Path) -> Iterator[int]:
    """Numbers of transactions, until there is a file."""
    for number in itertools.count(first):
        if stop.exists():
            return
        yield number
        time.sleep(BREAK_S)


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
