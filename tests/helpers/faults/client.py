"""What every client of a campaign has: its connection, its history file and its randomness.

A client process runs until the file ``--until`` exists. It leads one life after another: each has
its own process id in the history and new producers and consumers; a life ends when one of
them is beyond repair.
"""

from __future__ import annotations

import contextlib
import json
import logging
import random
import socket
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from deadlines import DEADLINE_S
from faults.history import HistoryWriter

import oncelog
from oncelog.storage.exceptions import ConnectionFailedError, OncelogError

EVENTS_TOPIC: Final = "events"
COPIES_TOPIC: Final = "copies"
GROUP: Final = "copiers"
MEMBERS_GROUP: Final = "members"
"""The group of clients of Kafka."""
LIFE_PAUSE_S: Final = 0.2

_log = logging.getLogger("faults.client")


def partition_of(key: str) -> oncelog.TopicPartition:
    """The partition that a key of the history names."""
    topic, _, number = key.rpartition("-")
    return oncelog.TopicPartition(topic, int(number))


def all_keys(arguments: Namespace) -> list[str]:
    """Every key of the campaign."""
    return [f"{EVENTS_TOPIC}-{n}" for n in range(arguments.partitions)] + [
        f"{COPIES_TOPIC}-{n}" for n in range(arguments.copies)
    ]


def key_of(partition: oncelog.TopicPartition) -> str:
    """The key of the history that names a partition."""
    return f"{partition.topic}-{partition.partition}"


def polled(records: list[Any]) -> dict[str, list[list[Any]]]:
    """Records as a poll of the history."""
    found: dict[str, list[list[Any]]] = {}
    for record in records:
        found.setdefault(key_of(record.topic_partition), []).append(
            [record.offset, record.value.decode()]
        )
    return found


class LifeEnded(Exception):
    """The producer or consumer is beyond repair; the client goes on with new ones."""


class Client:
    """A client process; its kinds say what one life does."""

    def __init__(self, arguments: Namespace) -> None:
        self.name: str = arguments.name
        self.directory = Path(arguments.history)
        self.chance = random.Random(f"{arguments.seed} {arguments.name} {self._lives()}")
        self._until = Path(arguments.until)
        self._notices = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._notices_address = ("127.0.0.1", int(arguments.notices))
        self._value_number = 0
        self.writer: HistoryWriter

    @property
    def is_over(self) -> bool:
        """Whether the campaign asks its clients to end."""
        return self._until.exists()

    def run(self) -> None:
        """Live one life after another until the campaign ends."""
        while not self.is_over:
            self.writer = HistoryWriter(self.directory, f"{self.name}.{self._lives()}")
            try:
                self.live()
            except LifeEnded as end:
                _log.warning("%s: %s", self.writer.process, end)
                time.sleep(LIFE_PAUSE_S)
            self.writer.event("close")
            self.writer.close()

    def live(self) -> None:
        """One life: make producers and consumers, and work until ``is_over``."""
        raise NotImplementedError

    def new_value(self) -> str:
        """A value that nobody has sent before."""
        self._value_number += 1
        return f"{self.writer.process}-{self._value_number}"

    def notify(self, transactional_id: str, keys: list[str], group: str | None = None) -> None:
        """Tell the nemesis that a commit request is about to leave."""
        notice = {"name": self.name, "txn_id": transactional_id, "keys": keys, "group": group}
        with contextlib.suppress(OSError):  # Nobody listens any more.
            self._notices.sendto(json.dumps(notice).encode(), self._notices_address)

    def _lives(self) -> int:
        return len(list(self.directory.glob(f"{self.name}.*.jsonl")))


class OwnClient(Client):
    """One of oncelog's own clients."""

    def __init__(self, arguments: Namespace) -> None:
        super().__init__(arguments)
        self.cluster = self._connect(arguments.address)

    @contextlib.contextmanager
    def closing(self, client: Any) -> Iterator[Any]:
        """Close a producer or consumer at the end; that it cannot is not what is tested here."""
        try:
            yield client
        finally:
            try:
                if isinstance(client, oncelog.Producer):
                    client.close(5_000)
                else:
                    client.close()
            except OncelogError as error:
                _log.warning("%s: close: %s", self.writer.process, error)

    def _connect(self, address: str) -> oncelog.Cluster:
        deadline = time.monotonic() + DEADLINE_S
        while True:
            try:
                return oncelog.connect(address)
            except ConnectionFailedError as error:
                if time.monotonic() > deadline:
                    raise
                _log.warning("%s: %s", self.name, error)
                time.sleep(1.0)


def repeat(call: Callable[[], Any], deadline_s: float = DEADLINE_S) -> Any:
    """Make a call again while it times out: only that tells what became of it."""
    deadline = time.monotonic() + deadline_s
    while True:
        try:
            return call()
        except OncelogError as error:
            if not error.retriable or time.monotonic() > deadline:
                raise
            _log.warning("repeated: %s", error)
