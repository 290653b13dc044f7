"""Clients without transactions: idempotent senders and readers."""

from __future__ import annotations

import time
from argparse import Namespace
from typing import Any, Final

from faults.client import (
    EVENTS_TOPIC,
    GROUP,
    LifeEnded,
    OwnClient,
    all_keys,
    partition_of,
    polled,
)
from faults.transactors import offset_of

from oncelog.storage.exceptions import OncelogError

IN_FLIGHT_MAX: Final = 5
RECORDS_MAX: Final = 12
FETCH_SHARE: Final = 0.05
REWIND_SHARE: Final = 0.005
POLL_MS: Final = 200


class Sender(OwnClient):
    """Sends without transactions, several requests in flight: idempotence alone must hold."""

    def __init__(self, arguments: Namespace) -> None:
        super().__init__(arguments)
        self._keys = [f"{EVENTS_TOPIC}-{n}" for n in range(arguments.partitions)]

    def live(self) -> None:
        """Send until the campaign ends."""
        producer = self.cluster.producer(batch_size=256, linger_ms=0)
        with self.closing(producer):
            while not self.is_over:
                self._send(producer)
                time.sleep(self.chance.uniform(0.0, 0.1))

    def _send(self, producer: Any) -> None:
        steps = [
            ["send", self.chance.choice(self._keys), self.new_value()]
            for _ in range(self.chance.randint(1, RECORDS_MAX))
        ]
        self.writer.invoke("send", steps, txn=False)
        futures: list[Any] = []
        error: OncelogError | None = None
        try:
            for _, key, value in steps:
                tp = partition_of(key)
                futures.append(producer.send(tp.topic, value.encode(), partition=tp.partition))
            errors = [failure for one in futures if (failure := one.exception()) is not None]
            error = errors[0] if errors else None
        except OncelogError as failure:
            error = failure
        known = [offset_of(future) for future in futures]
        known += [None] * (len(steps) - len(known))
        results = [[*step, offset] for step, offset in zip(steps, known, strict=True)]
        if error is None:
            self.writer.complete("ok", results)
            return
        self.writer.complete("info", results, error=str(error))
        raise LifeEnded(f"send: {error}") from error


class Reader(OwnClient):
    """Reads every key in order, looks the group's offsets up, and begins again now and then."""

    def __init__(self, arguments: Namespace) -> None:
        super().__init__(arguments)
        self._isolation: str = arguments.isolation
        self._keys = all_keys(arguments)
        self._events = [partition_of(key) for key in self._keys if key.startswith(EVENTS_TOPIC)]

    def live(self) -> None:
        """Read until the campaign ends."""
        consumer = self.cluster.consumer(
            group_id=GROUP, isolation_level=self._isolation, enable_auto_commit=False
        )
        with self.closing(consumer):
            self._begin(consumer)
            while not self.is_over:
                chance = self.chance.random()
                if chance < REWIND_SHARE:
                    self._begin(consumer)
                elif chance < FETCH_SHARE and self._isolation == "read_committed":
                    self._fetch_offsets(consumer)
                self._poll(consumer)

    def _begin(self, consumer: Any) -> None:
        consumer.assign([partition_of(key) for key in self._keys])
        consumer.seek_to_beginning()
        self.writer.event("assign", self._keys, seek_to_beginning=True)

    def _poll(self, consumer: Any) -> None:
        self.writer.invoke("poll", [["poll"]], txn=False)
        try:
            records = consumer.poll(POLL_MS)
        except OncelogError as error:
            self.writer.complete("fail", [["poll"]], error=str(error))
            raise LifeEnded(f"poll: {error}") from error
        self.writer.complete("ok", [["poll", polled(records)]])
        time.sleep(self.chance.uniform(0.0, 0.1))

    def _fetch_offsets(self, consumer: Any) -> None:
        partition = self.chance.choice(self._events)
        self.writer.invoke("committed", group=GROUP)
        try:
            offset = consumer.committed(partition)
        except OncelogError as error:
            self.writer.complete("info", error=str(error))
            return
        key = f"{partition.topic}-{partition.partition}"
        self.writer.complete("ok", {key: offset}, group=GROUP)
