"""``oncelog produce`` and ``oncelog consume``: lines in, lines out."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from oncelog.api.cli.connect import connect
from oncelog.api.cli.terminal import (
    CliError,
    EndedBySignal,
    UsageError,
    bytes_as_json,
    held,
    is_reader_gone,
    say,
    table,
)
from oncelog.api.cli.topics import known_topic
from oncelog.storage.exceptions import (
    CorruptRecordError,
    IllegalGenerationError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from oncelog.storage.model import TopicPartition

if TYPE_CHECKING:
    from oncelog.api.batching.delivery import RecordFuture, RecordMetadata
    from oncelog.api.consuming.consumer import Consumer
    from oncelog.api.producing.producer import Producer
    from oncelog.api.records import ConsumerRecord

POLL_MS: Final = 500
POLL_RECORDS_MAX: Final = 500
JOIN_GRACE_MS: Final = 10_000
"""How long a group may take to assign partitions before ``--timeout-ms`` starts to count."""

TRANSACTION_TIMEOUT_MS: Final = 900_000
"""The longest that a cluster allows by default: people type more slowly than programs send."""


# --- produce ----------------------------------------------------------------------------------


@dataclass(slots=True)
class _Place:
    """The records of one partition: their number, first and last offset (both inclusive)."""

    count: int
    first_offset: int
    last_offset: int


def produce(args: argparse.Namespace) -> int:
    """Send each line as a record and print the offsets."""
    if args.key_separator == "":
        raise UsageError("--key-separator is empty", "give at least one character")
    with _input(args.file) as stream, connect(args) as cluster:
        known_topic(cluster, args.topic)
        settings: dict[str, Any] = {}
        if args.transactional_id is not None:
            settings = {
                "transactional_id": args.transactional_id,
                "transaction_timeout_ms": TRANSACTION_TIMEOUT_MS,
            }
        with cluster.producer(**settings) as producer:
            sent = SentLines(producer, args.topic, args.key_separator)
            if args.transactional_id is not None:
                return _produce_at_once(sent, stream)
            return _produce_each(sent, stream)


def _produce_each(sent: SentLines, stream: BinaryIO) -> int:
    """Send line by line; a signal ends the input, and what was sent is still delivered."""
    with contextlib.ExitStack() as told:
        try:
            sent.send(stream)
            told.enter_context(held())
        except EndedBySignal:
            sent.flush()
            sent.report()
            raise
        sent.flush()
        sent.report()
    return 0


def _produce_at_once(sent: SentLines, stream: BinaryIO) -> int:
    """Send in one transaction; a signal aborts it unless its commit has begun."""
    sent.producer.init_transactions()
    with contextlib.ExitStack() as decided:
        with sent.producer.transaction():
            sent.send(stream)
            decided.enter_context(held())
            sent.flush()
        sent.report(", in one transaction")
    return 0


class SentLines:
    """Lines that became records of one topic, and their offsets."""

    def __init__(self, producer: Producer, topic: str, key_separator: str | None) -> None:
        self.producer = producer
        self._topic = topic
        self._key_separator = key_separator
        self._places: dict[int, _Place] = {}
        self._waiting: deque[RecordFuture] = deque()

    def send(self, stream: BinaryIO) -> None:
        """Send every line of ``stream``."""
        waiting = self._waiting
        for key, value in split_lines(stream, self._key_separator):
            waiting.append(self.producer.send(self._topic, value=value, key=key))
            while waiting and waiting[0].done():
                self._count(waiting.popleft().result())

    def flush(self) -> None:
        """Wait for all that was sent."""
        self.producer.flush()
        while self._waiting:
            self._count(self._waiting.popleft().result())

    def report(self, how: str = "") -> None:
        """Print how many records there are, and their offsets by partition."""
        total = sum(place.count for place in self._places.values())
        say(f"{total:,} {'record' if total == 1 else 'records'} to {self._topic}{how}")
        if self._places:
            rows = (
                (partition, place.count, place.first_offset, place.last_offset)
                for partition, place in sorted(self._places.items())
            )
            say(table(("partition", "records", "first offset", "last offset"), rows))

    def _count(self, metadata: RecordMetadata) -> None:
        place = self._places.get(metadata.partition)
        if place is None:
            self._places[metadata.partition] = _Place(1, metadata.offset, metadata.offset)
            return
        place.count += 1
        place.first_offset = min(place.first_offset, metadata.offset)
        place.last_offset = max(place.last_offset, metadata.offset)


def split_lines(
    stream: BinaryIO, key_separator: str | None
) -> Iterator[tuple[bytes | None, bytes]]:
    """Yield (key, value) of each line without its line feed; without a separator, no key."""
    separator = None if key_separator is None else key_separator.encode()
    for number, line in enumerate(stream, 1):
        text = line.removesuffix(b"\n")
        if separator is None:
            yield None, text
            continue
        key, found, value = text.partition(separator)
        if not found:
            raise CliError(
                f"line {number} has no {key_separator!r} between key and value",
                "give every line a key, or leave out --key-separator",
            )
        yield key, value


@contextlib.contextmanager
def _input(file: str | None) -> Iterator[BinaryIO]:
    if file is None:
        yield sys.stdin.buffer
        return
    try:
        stream = Path(file).open("rb")  # noqa: SIM115
    except OSError as error:
        raise CliError(
            f"--file {file!r} cannot be read ({error.strerror})",
            "give a readable file, or leave it out to read standard input",
        ) from None
    with stream:
        yield stream


# --- consume ----------------------------------------------------------------------------------


def consume(args: argparse.Namespace) -> int:
    """Print records until a signal, ``--max-records``, or ``--timeout-ms`` without any."""
    with connect(args) as cluster:
        topic = known_topic(cluster, args.topic)
        settings: dict[str, Any] = {
            "isolation_level": args.isolation_level,
            "auto_offset_reset": "earliest" if args.from_beginning else "latest",
            # Committed below, once the records are written out.
            "enable_auto_commit": False,
        }
        if args.group is not None:
            settings["group_id"] = args.group
        with cluster.consumer(**settings) as consumer:
            if args.group is not None:
                consumer.subscribe([args.topic])
            else:
                consumer.assign(
                    TopicPartition(args.topic, partition.partition)
                    for partition in topic.partitions
                )
            # A signal is the usual way to end it, so nothing is printed about it.
            try:
                print_records(consumer, args)
            except EndedBySignal as ended:
                return ended.status
    return 0


def print_records(consumer: Consumer, args: argparse.Namespace) -> None:
    """Poll, print and, in a group, commit what was printed."""
    left = args.max_records
    idle_since = time.monotonic()
    joining_until = idle_since + (JOIN_GRACE_MS / 1_000 if args.group is not None else 0)
    while left is None or left > 0:
        wait_ms = POLL_MS if args.timeout_ms is None else min(POLL_MS, args.timeout_ms)
        room = POLL_RECORDS_MAX if left is None else min(POLL_RECORDS_MAX, left)
        try:
            records = consumer.poll(timeout_ms=wait_ms, max_records=room)
        except CorruptRecordError as error:
            if not args.skip_damaged:
                raise CliError(
                    str(error), "see `oncelog status`; --skip-damaged skips them"
                ) from error
            pass_over(consumer, error)
            records = []
        if is_reader_gone():
            raise BrokenPipeError
        now = time.monotonic()
        if records:
            if args.group is None:
                write(records, is_json=args.json)
            else:
                # A signal waits for both, so that no record is printed twice.
                with held():
                    write(records, is_json=args.json)
                    commit(consumer)
            left = None if left is None else left - len(records)
            idle_since = now
        elif not consumer.assignment() and now < joining_until:
            idle_since = now
        elif args.timeout_ms is not None and (now - idle_since) * 1_000 >= args.timeout_ms:
            return


def commit(consumer: Consumer) -> None:
    """Commit what was printed."""
    # Lost partitions now belong to another member, which prints these records again.
    with contextlib.suppress(
        IllegalGenerationError, RebalanceInProgressError, UnknownMemberIdError
    ):
        consumer.commit()


def pass_over(consumer: Consumer, error: CorruptRecordError) -> None:
    """Skip unreadable records, with a warning."""
    if error.topic_partition is None:
        raise error
    count = error.next_offset - error.offset
    sys.stderr.write(
        f"warning: {error.topic_partition}: skipping {count} unreadable "
        f"{'offset' if count == 1 else 'offsets'} from {error.offset}\n"
    )
    consumer.seek(error.topic_partition, error.next_offset)


def write(records: list[ConsumerRecord], *, is_json: bool) -> None:
    """Print each record on its own line."""
    stream = sys.stdout.buffer
    for record in records:
        stream.write((as_json(record).encode() if is_json else record.value or b"") + b"\n")
    stream.flush()


def as_json(record: ConsumerRecord) -> str:
    """A record as one line of JSON."""
    return json.dumps(
        {
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp_ms": record.timestamp_ms,
            "key": bytes_as_json(record.key),
            "value": bytes_as_json(record.value),
            "headers": [[name, bytes_as_json(value)] for name, value in record.headers],
        },
        ensure_ascii=False,
    )
