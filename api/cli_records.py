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

from oncelog.api.cli_connect import connect
from oncelog.api.cli_output import CliError, UsageError, bytes_as_json, say, table
from oncelog.api.cli_topics import known_topic
from oncelog.storage.exceptions import (
    CorruptRecordError,
    IllegalGenerationError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from oncelog.storage.model import TopicPartition

if TYPE_CHECKING:
    from oncelog.api.consumer import Consumer
    from oncelog.api.delivery import RecordFuture, RecordMetadata
    from oncelog.api.producer import Producer
    from oncelog.api.records import ConsumerRecord

POLL_MS: Final = 500
POLL_RECORDS_MAX: Final = 500
JOIN_GRACE_MS: Final = 10_000
"""How long a group may take to assign partitions before ``--timeout-ms`` begins to count."""

TRANSACTION_TIMEOUT_MS: Final = 900_000
"""The most a cluster allows by default: whoever types the lines is slower than a program."""


# --- produce ----------------------------------------------------------------------------------


@dataclass(slots=True)
class _Place:
    """Where the records of one partition stand: how many, and the offsets of first and last."""

    count: int
    first_offset: int
    last_offset: int


def produce(args: argparse.Namespace) -> int:
    """Send each line as a record and tell where they stand."""
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
            if args.transactional_id is None:
                places = send_lines(producer, args.topic, stream, args.key_separator)
            else:
                producer.init_transactions()
                with producer.transaction():
                    places = send_lines(producer, args.topic, stream, args.key_separator)
    total = sum(place.count for place in places.values())
    ending = "" if args.transactional_id is None else ", in one transaction"
    say(f"{total:,} {'record' if total == 1 else 'records'} to {args.topic}{ending}")
    if places:
        rows = (
            (partition, place.count, place.first_offset, place.last_offset)
            for partition, place in sorted(places.items())
        )
        say(table(("partition", "records", "first offset", "last offset"), rows))
    return 0


def send_lines(
    producer: Producer, topic: str, stream: BinaryIO, key_separator: str | None
) -> dict[int, _Place]:
    """Send every line of ``stream`` and wait for all; by partition, where they stand."""
    places: dict[int, _Place] = {}
    waiting: deque[RecordFuture] = deque()
    for key, value in split_lines(stream, key_separator):
        waiting.append(producer.send(topic, value=value, key=key))
        while waiting and waiting[0].done():
            _note(places, waiting.popleft().result())
    producer.flush()
    for future in waiting:
        _note(places, future.result())
    return places


def split_lines(
    stream: BinaryIO, key_separator: str | None
) -> Iterator[tuple[bytes | None, bytes]]:
    """(key, value) of each line, without its line feed; no separator asked for means no key."""
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


def _note(places: dict[int, _Place], metadata: RecordMetadata) -> None:
    place = places.get(metadata.partition)
    if place is None:
        places[metadata.partition] = _Place(1, metadata.offset, metadata.offset)
        return
    place.count += 1
    place.first_offset = min(place.first_offset, metadata.offset)
    place.last_offset = max(place.last_offset, metadata.offset)


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
            "give one that can, or leave it out to read standard input",
        ) from None
    with stream:
        yield stream


# --- consume ----------------------------------------------------------------------------------


def consume(args: argparse.Namespace) -> int:
    """Print records until told to stop, or until there are enough, or none for long enough."""
    with connect(args) as cluster:
        topic = known_topic(cluster, args.topic)
        settings: dict[str, Any] = {
            "isolation_level": args.isolation_level,
            "auto_offset_reset": "earliest" if args.from_beginning else "latest",
            # Committed below, after the records have been written out.
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
            # Interrupting it is the usual way to end it; the group is left all the same.
            with contextlib.suppress(KeyboardInterrupt):
                print_records(consumer, args)
    return 0


def print_records(consumer: Consumer, args: argparse.Namespace) -> None:
    """Poll, write and, in a group, commit what has been written."""
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
                    str(error), "see `oncelog status`; --skip-damaged passes over it"
                ) from error
            pass_over(consumer, error)
            records = []
        now = time.monotonic()
        if records:
            _write(records, is_json=args.json)
            if args.group is not None:
                # Lost partitions are another member's now, which prints these records again.
                with contextlib.suppress(
                    IllegalGenerationError, RebalanceInProgressError, UnknownMemberIdError
                ):
                    consumer.commit()
            left = None if left is None else left - len(records)
            idle_since = now
        elif not consumer.assignment() and now < joining_until:
            idle_since = now
        elif args.timeout_ms is not None and (now - idle_since) * 1_000 >= args.timeout_ms:
            return


def pass_over(consumer: Consumer, error: CorruptRecordError) -> None:
    """Go on behind records that cannot be read, and say so."""
    if error.topic_partition is None:
        raise error
    count = error.next_offset - error.offset
    sys.stderr.write(
        f"warning: {error.topic_partition}: passing over {count} unreadable "
        f"{'offset' if count == 1 else 'offsets'} from {error.offset}\n"
    )
    consumer.seek(error.topic_partition, error.next_offset)


def _write(records: list[ConsumerRecord], *, is_json: bool) -> None:
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
