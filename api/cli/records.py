"""``oncelog produce`` and ``oncelog consume``: lines in, lines out; with the options of kcat.

One file: what ``consume --output json`` prints is what ``produce --format jsonl`` reads.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import click

from oncelog.actors.protocol.group.consumer_protocol import decode_assignment
from oncelog.api.cli.arguments import (
    Arguments,
    Command,
    WholeNumber,
    argument,
    as_int,
    exclusive,
    flag,
    group_names,
    option,
    repeated,
    time_ms,
    topic_argument,
    topic_names,
)
from oncelog.api.cli.connect import cluster_options, connect
from oncelog.api.cli.terminal import (
    CliError,
    EndedBySignal,
    UsageError,
    bytes_as_json,
    held,
    is_reader_gone,
    is_terminal,
    progress,
    say,
    table,
    visible,
)
from oncelog.api.cli.topics import checked_partition, known_topic
from oncelog.storage.exceptions import (
    CorruptRecordError,
    IllegalGenerationError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from oncelog.storage.model import (
    INT64_MAX,
    LATEST_TIMESTAMP,
    MESSAGE_MAX_BYTES,
    IsolationLevel,
    TopicPartition,
)
from oncelog.storage.records.compression import Codec

if TYPE_CHECKING:
    from oncelog.api.batching.delivery import RecordFuture, RecordMetadata
    from oncelog.api.client import Cluster
    from oncelog.api.consuming.consumer import Consumer
    from oncelog.api.producing.producer import Producer
    from oncelog.api.records import ConsumerRecord

POLL_MS: Final = 500
POLL_RECORDS_MAX: Final = 500
JOIN_GRACE_MS: Final = 10_000
"""How long a group may take to assign partitions before ``--timeout-ms`` starts to count."""

STABLE: Final = "Stable"
"""The state of a group whose members have their partitions."""

TRANSACTION_TIMEOUT_MS: Final = 900_000
"""The longest that a cluster allows by default: people type more slowly than programs send."""


# --- produce ----------------------------------------------------------------------------------


@dataclass(slots=True)
class _Place:
    """The records of one partition: their number, first and last offset (both inclusive)."""

    count: int
    first_offset: int
    last_offset: int


LINES: Final = "lines"
JSONL: Final = "jsonl"

STANDARD_INPUT: Final = "-"
"""The name that means it, among those of files."""


@click.command(cls=Command)
@topic_argument
@argument(
    "files",
    f"what to read, instead of standard input, which is {STANDARD_INPUT}",
    nargs=-1,
    metavar="[FILE]...",
)
@repeated("--file", "F", "read this file, as if it were given as FILE")
@flag("--whole-file", "each file is one record")
@option(
    "--format",
    type=click.Choice((LINES, JSONL)),
    default=LINES,
    help="a line is a value, or an object as `oncelog consume --output json` prints it "
    "(default: lines)",
)
@option("--key", metavar="K", help="the key of each record")
@option("--key-separator", metavar="S", help="the part of each line before S is the key")
@repeated("--header", "NAME=VALUE", "a header of each record")
@flag("--null-value", "an empty value is null: a tombstone, where the topic is compacted")
@option("--partition", type=WholeNumber(0), help="send to this partition")
@option(
    "--compression",
    type=click.Choice([codec.name.lower() for codec in Codec]),
    default=Codec.NONE.name.lower(),
    help="how batches are compressed (default: none)",
)
@option(
    "--acks",
    type=click.Choice(("all", "1", "0")),
    default="all",
    help="which replicas must have a record: all in sync, the leader, or none (default: all)",
)
@option("--transactional-id", metavar="ID", help="send all records in one transaction of this id")
@cluster_options
def produce(args: Arguments) -> int:
    """Send each line as a record and print the offsets."""
    source = RecordSource(args)
    with connect(args) as cluster:
        topic = known_topic(cluster, args.topic)
        if args.partition is not None:
            checked_partition(topic, args.partition)
        settings: dict[str, Any] = {}
        if args.compression != "none":
            settings["compression_type"] = args.compression
        if args.acks != "all":
            settings["acks"] = int(args.acks)
        if args.transactional_id is not None:
            settings["transactional_id"] = args.transactional_id
            settings["transaction_timeout_ms"] = TRANSACTION_TIMEOUT_MS
        with cluster.producer(**settings) as producer:
            sent = SentRecords(producer, args.topic)
            if args.transactional_id is not None:
                return _produce_at_once(sent, source)
            return _produce_each(sent, source)


def _produce_each(sent: SentRecords, source: RecordSource) -> int:
    """Send line by line; a signal ends the input, and what was sent is still delivered."""
    with contextlib.ExitStack() as told:
        try:
            sent.send(source)
            told.enter_context(held())
        except EndedBySignal:
            sent.flush()
            sent.report()
            raise
        sent.flush()
        sent.report()
    return 0


def _produce_at_once(sent: SentRecords, source: RecordSource) -> int:
    """Send in one transaction; a signal aborts it unless its commit has begun."""
    sent.producer.init_transactions()
    with contextlib.ExitStack() as decided:
        with sent.producer.transaction():
            sent.send(source)
            decided.enter_context(held())
            sent.flush()
        sent.report(", in one transaction")
    return 0


class SentRecords:
    """Records of one topic that were sent, and their offsets."""

    def __init__(self, producer: Producer, topic: str) -> None:
        self.producer = producer
        self._topic = topic
        self._places: dict[int, _Place] = {}
        self._waiting: deque[RecordFuture] = deque()

    def send(self, source: RecordSource) -> None:
        """Send every record of ``source``."""
        waiting = self._waiting
        for record in source.records():
            waiting.append(self.producer.send(self._topic, **record))
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


class RecordSource:
    """Makes records of lines or files: dicts with keywords of ``Producer.send``."""

    def __init__(self, args: Arguments) -> None:
        exclusive("--key", "--key-separator")
        exclusive("--whole-file", "--key-separator")
        if args.format == JSONL:
            for name in ("--key", "--key-separator", "--null-value", "--whole-file"):
                exclusive("--format", name)
        if args.key_separator == "":
            raise UsageError("--key-separator is empty", "give at least one character")
        names = (*args.file, *args.files)
        if names.count(STANDARD_INPUT) > 1:
            raise UsageError("standard input is named twice", f"give {STANDARD_INPUT} once")
        self._sizes = [(name, _size(name)) for name in names]
        """Each file and its size in bytes, in order; one may be named twice."""
        if args.whole_file and not self._sizes:
            raise UsageError("--whole-file reads no standard input", "name the files")
        self._is_whole = args.whole_file
        self._is_json = args.format == JSONL
        self._separator = None if args.key_separator is None else os.fsencode(args.key_separator)
        self._key = None if args.key is None else os.fsencode(args.key)
        self._is_empty_null = args.null_value
        self._headers = [_header(text) for text in args.header]
        self._always = {} if args.partition is None else {"partition": args.partition}

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield each record; files are read one after the other."""
        if not self._sizes:
            yield from self._records_of(sys.stdin.buffer, "")
            return
        done = 0
        with progress("reading", sum(size for _, size in self._sizes)) as reached:
            for name, size in self._sizes:
                with _opened(name) as stream:
                    where = f" of {name}" if len(self._sizes) > 1 else ""
                    for number, record in enumerate(self._records_of(stream, where)):
                        yield record
                        if number % POLL_RECORDS_MAX == 0 and not self._is_whole:
                            reached(done + stream.tell() if stream.seekable() else done)
                done += size
                reached(done)

    def _records_of(self, stream: BinaryIO, where: str) -> Iterator[dict[str, Any]]:
        if self._is_whole:
            value = stream.read(MESSAGE_MAX_BYTES + 1)
            if len(value) > MESSAGE_MAX_BYTES:
                raise CliError(
                    f"a file{where} has more than {MESSAGE_MAX_BYTES:,} bytes",
                    "give files that fit into a record, or leave out --whole-file",
                )
            yield self._record(None, value)
            return
        for number, line in enumerate(stream, 1):
            text = line.removesuffix(b"\n")
            if self._is_json:
                yield self._completed(record_of(text, f"line {number}{where}"))
            elif self._separator is None:
                yield self._record(self._key, text)
            else:
                key, found, value = text.partition(self._separator)
                if not found:
                    raise CliError(
                        f"line {number}{where} has no {os.fsdecode(self._separator)!r} between "
                        "key and value",
                        "give every line a key, or leave out --key-separator",
                    )
                yield self._record(key, value)

    def _record(self, key: bytes | None, value: bytes) -> dict[str, Any]:
        is_null = self._is_empty_null and not value
        return self._completed({"key": key, "value": None if is_null else value})

    def _completed(self, record: dict[str, Any]) -> dict[str, Any]:
        """The record with what the options give to all."""
        record |= self._always
        if self._headers:
            record["headers"] = [*record.get("headers", ()), *self._headers]
        return record


FIELDS: Final = ("key", "value", "headers", "partition", "timestamp_ms")
IGNORED_FIELDS: Final = frozenset({"topic", "offset"})


def record_of(line: bytes, where: str) -> dict[str, Any]:
    """A line of JSON as keywords of ``Producer.send``; ``where`` names it in errors."""
    try:
        fields = json.loads(line)
    except ValueError as error:
        raise CliError(f"{where} is not JSON ({error})", _JSON_ADVICE) from None
    if not isinstance(fields, dict) or "value" not in fields:
        raise CliError(f"{where} is not an object with a value", _JSON_ADVICE)
    unknown = sorted(fields.keys() - {*FIELDS, *IGNORED_FIELDS})
    if unknown:
        raise CliError(
            f"{where} has the field {unknown[0]!r}", f"give only {', '.join(FIELDS)} in an object"
        )
    record: dict[str, Any] = {name: _from_json(fields, name, where) for name in ("key", "value")}
    for name in ("partition", "timestamp_ms"):
        if (number := fields.get(name)) is not None:
            if type(number) is not int or not 0 <= number <= INT64_MAX:
                raise _wrong_field(where, name, number, "a whole number from 0 on")
            record[name] = number
    if headers := fields.get("headers"):
        is_pairs = isinstance(headers, list) and all(
            isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str)
            for pair in headers
        )
        if not is_pairs:
            raise _wrong_field(where, "headers", headers, 'a list like [["name", "value"]]')
        record["headers"] = [
            (name, _from_json({"headers": value}, "headers", where)) for name, value in headers
        ]
    return record


_JSON_ADVICE: Final = "give one object in a line, as `oncelog consume --output json` prints it"


def _wrong_field(where: str, name: str, value: object, allowed: str) -> CliError:
    return CliError(f"{where} has {name}={json.dumps(value)}", f"give {allowed}")


def _from_json(fields: dict[str, Any], name: str, where: str) -> bytes | None:
    """The inverse of ``bytes_as_json``."""
    value = fields.get(name)
    with contextlib.suppress(ValueError):
        if value is None:
            return None
        if isinstance(value, str):
            return value.encode()
        if isinstance(value, dict) and len(value) == 1 and isinstance(value.get("base64"), str):
            return base64.b64decode(value["base64"], validate=True)
    raise _wrong_field(where, name, value, 'a string, null, or {"base64": "..."}')


def _header(text: str) -> tuple[str, bytes]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"--header {text!r} is not a header", "give NAME=VALUE")
    return name, os.fsencode(value)


def _size(name: str) -> int:
    """The size of a file in bytes; it must be readable. 0 for a pipe, which can be opened once."""
    if name == STANDARD_INPUT or Path(name).is_fifo():
        return 0
    with _opened(name) as stream:
        return os.fstat(stream.fileno()).st_size


def _opened(name: str) -> contextlib.AbstractContextManager[BinaryIO]:
    if name == STANDARD_INPUT:
        return contextlib.nullcontext(sys.stdin.buffer)  # It stays open.
    try:
        return Path(name).open("rb")
    except OSError as error:
        raise CliError(
            f"--file {name!r} cannot be read ({error.strerror})",
            "give a readable file, or leave it out to read standard input",
        ) from None


# --- consume ----------------------------------------------------------------------------------

BEGINNING: Final = "beginning"
END: Final = "end"


def offset_of(text: str) -> str | int:
    """A type: ``beginning``, ``end``, an offset, how far before the end (-N), or ``@TIME``."""
    if text in {BEGINNING, END}:
        return text
    if text.startswith("@"):
        return f"@{time_ms(text[1:])}"
    if (number := as_int(text)) is not None and abs(number) <= INT64_MAX:
        return number
    raise click.BadParameter(
        f"{text!r} is no place in a partition: give {BEGINNING}, {END}, N, -N or @TIME"
    )


@click.command(cls=Command)
@argument("topics", nargs=-1, required=True, metavar="TOPIC...", shell_complete=topic_names)
@option(
    "--group",
    metavar="G",
    shell_complete=group_names,
    help="read as a member of this group, and commit offsets",
)
@option("--partition", type=WholeNumber(0), help="only this partition (default: all)")
@option(
    "--offset",
    type=offset_of,
    metavar="O",
    help="where to start: beginning (the default if it stops at the end or at a time), end (the "
    "default otherwise), the offset N, -N for N before the end, or @TIME for the first record at "
    "or after a time",
)
@flag("--from-beginning", "start at the first record, or at the group's committed offset")
@option(
    "--from-time",
    type=time_ms,
    metavar="TIME",
    help="start at the first record at or after this time: 2026-01-31T12:00 (UTC unless it says "
    "else), or ms since 1970",
)
@option(
    "--until-time",
    type=time_ms,
    metavar="TIME",
    help="stop before the first record at or after this time, or at the end",
)
@flag("--exit-at-end", "stop at the end that each partition had at the start")
@flag("--follow", "wait for more records at the end; this is the default")
@option(
    "-c",
    "--count",
    "--max-messages",
    "--max-records",
    "count",
    type=WholeNumber(1),
    help="stop after N records",
)
@option("--timeout-ms", type=WholeNumber(0), metavar="T", help="stop after T ms without a record")
@option(
    "--isolation-level",
    type=click.Choice([level.value for level in IsolationLevel]),
    default=IsolationLevel.READ_COMMITTED.value,
    metavar="L",
    help="read_committed (default) or read_uncommitted",
)
@option(
    "-f",
    "--format",
    metavar="F",
    help="print each record so: %t topic, %p partition, %o offset, %k key, %s value, %h headers, "
    "%T timestamp in ms, %K and %S bytes of key and value (-1: null), %% a percent sign; \\n, \\t "
    "and \\xNN as in C",
)
@option(
    "-o",
    "--output",
    type=click.Choice(("value", "json")),
    default="value",
    help="print each value in a line (default), or an object with all fields",
)
@flag("--json", "the same as --output json")
@flag("--skip-damaged", "skip unreadable records, with a warning")
@cluster_options
def consume(args: Arguments) -> int:
    """Print records until a signal, or until an option says that it is enough."""
    exclusive("--offset", "--from-beginning", "--from-time")
    exclusive("--follow", "--exit-at-end", "--until-time")
    exclusive("--format", "--output", "--json")
    for name in ("--partition", "--offset", "--from-time", "--until-time"):
        # The group says where its members read.
        exclusive("--group", name)
    render = renderer(args)
    start = _start(args)
    with connect(args) as cluster:
        topics = [known_topic(cluster, name) for name in dict.fromkeys(args.topics)]
        settings: dict[str, Any] = {
            "isolation_level": args.isolation_level,
            # Also for a start that retention has overtaken: no record that is left is skipped.
            "auto_offset_reset": "latest" if start == END else "earliest",
            # Committed below, once the records are written out.
            "enable_auto_commit": False,
        }
        if args.group is not None:
            settings["group_id"] = args.group
        with cluster.consumer(**settings) as consumer:
            if args.group is not None:
                consumer.subscribe([topic.name for topic in topics])
            else:
                wanted = [
                    TopicPartition(topic.name, number)
                    for topic in topics
                    for number in (
                        range(len(topic.partitions))
                        if args.partition is None
                        else [checked_partition(topic, args.partition)]
                    )
                ]
                consumer.assign(wanted)
                for tp, offset in _starts(cluster, consumer, start, wanted).items():
                    consumer.seek(tp, offset)
            # A signal is the usual way to end it, so nothing is printed about it.
            try:
                print_records(cluster, consumer, args, render)
            except EndedBySignal as ended:
                return ended.status
    return 0


def _start(args: Arguments) -> str | int:
    """Where to start, as ``--offset`` says it; what ends at the end has to start before it."""
    if args.from_time is not None:
        return f"@{args.from_time}"
    if args.offset is not None:
        start: str | int = args.offset
        return start
    is_range = args.exit_at_end or args.until_time is not None
    return BEGINNING if args.from_beginning or (is_range and args.group is None) else END


def _starts(
    cluster: Cluster, consumer: Consumer, start: str | int, wanted: Sequence[TopicPartition]
) -> dict[TopicPartition, int]:
    """The offsets to start at, unless ``auto_offset_reset`` says it: always within the log."""
    if start in {BEGINNING, END}:
        return {}
    firsts = consumer.beginning_offsets(wanted)
    if isinstance(start, int) and start >= 0:
        # An open transaction may hold back the end that the consumer sees.
        ends: Mapping[TopicPartition, int] = cluster.admin().list_offsets(
            dict.fromkeys(wanted, LATEST_TIMESTAMP),
            isolation_level=IsolationLevel.READ_UNCOMMITTED,
        )
        return {tp: min(max(start, firsts[tp]), end) for tp, end in ends.items()}
    ends = consumer.end_offsets(wanted)
    if isinstance(start, str):
        found = consumer.offsets_for_times(dict.fromkeys(wanted, int(start[1:])))
        return {tp: ends[tp] if one is None else one.offset for tp, one in found.items()}
    return {tp: max(end + start, firsts[tp]) for tp, end in ends.items()}


class _Ends:
    """Where each partition is read to: its end when it was first assigned, or earlier."""

    def __init__(self, consumer: Consumer, until_time_ms: int | None) -> None:
        self._consumer = consumer
        self._until_time_ms = until_time_ms
        self._ends: dict[TopicPartition, int] = {}

    def take_in(self) -> None:
        """Look up the ends of partitions that are new here."""
        new = [tp for tp in self._consumer.assignment() if tp not in self._ends]
        if not new:
            return
        self._ends |= self._consumer.end_offsets(new)
        if self._until_time_ms is not None:
            found = self._consumer.offsets_for_times(dict.fromkeys(new, self._until_time_ms))
            self._ends |= {tp: one.offset for tp, one in found.items() if one is not None}

    def before(self, records: list[ConsumerRecord]) -> list[ConsumerRecord]:
        """The records that are to be printed."""
        if self._until_time_ms is None:
            return records
        return [
            record
            for record in records
            if record.offset < self._ends[TopicPartition(record.topic, record.partition)]
        ]

    def are_reached(self) -> bool:
        """Whether there is nothing left to read."""
        assigned = self._consumer.assignment()
        places = self._consumer.position(assigned) if assigned else {}
        return bool(places) and all(place >= self._ends[tp] for tp, place in places.items())


def print_records(
    cluster: Cluster,
    consumer: Consumer,
    args: Arguments,
    render: Callable[[ConsumerRecord], bytes],
) -> None:
    """Poll, print and, in a group, commit what was printed."""
    left = args.count
    ends = None
    if args.exit_at_end or args.until_time is not None:
        ends = _Ends(consumer, args.until_time)
    idle_since = time.monotonic()
    empty_since: float | None = None
    grace_s = JOIN_GRACE_MS / 1_000 if args.group is not None else 0
    # In one terminal the bar would stand among the records.
    with progress("consuming", None if is_terminal(sys.stdout) else left) as reached:
        while left is None or left > 0:
            if ends is not None:
                ends.take_in()
                if ends.are_reached():
                    return
            records = _polled(consumer, args, left)
            if is_reader_gone():
                raise BrokenPipeError
            now = time.monotonic()
            # A rebalance that takes all partitions away has as long again.
            empty_since = None if consumer.assignment() else (empty_since or now)
            if records:
                shown = records if ends is None else ends.before(records)
                if args.group is None:
                    write(shown, render)
                else:
                    # A signal waits for both, so that no record is printed twice.
                    with held():
                        write(shown, render)
                        commit(consumer)
                if left is not None:
                    left -= len(shown)
                    reached(args.count - left)
                idle_since = now
            elif empty_since is not None and now - empty_since < grace_s:
                idle_since = now
            elif empty_since is not None and ends is not None:
                check_left_out(cluster, consumer)
                return
            elif args.timeout_ms is not None and (now - idle_since) * 1_000 >= args.timeout_ms:
                return


def check_left_out(cluster: Cluster, consumer: Consumer) -> None:
    """Whether others of a stable group read all partitions; ``CliError`` if not, or not yet."""
    own = consumer.group_metadata()
    group = cluster.admin().describe_group(own.group_id)
    given = [one.assignment for one in group.members if one.member_id == own.member_id]
    if group.state != STABLE or not given or decode_assignment(given[0]).partitions:
        raise CliError(
            f"the group {own.group_id!r} did not assign partitions within {JOIN_GRACE_MS:,} ms",
            f"it is {group.state}: see `oncelog groups describe {own.group_id}`, and try again",
        )


def _polled(consumer: Consumer, args: Arguments, left: int | None) -> list[ConsumerRecord]:
    """The next records, at most ``left``; none after damage that is to be skipped."""
    wait_ms = POLL_MS if args.timeout_ms is None else min(POLL_MS, args.timeout_ms)
    room = POLL_RECORDS_MAX if left is None else min(POLL_RECORDS_MAX, left)
    try:
        return consumer.poll(timeout_ms=wait_ms, max_records=room)
    except CorruptRecordError as error:
        if not args.skip_damaged:
            raise CliError(str(error), "see `oncelog status`; --skip-damaged skips them") from error
        pass_over(consumer, error)
        return []


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


# --- how records are printed ------------------------------------------------------------------


def write(records: Iterable[ConsumerRecord], render: Callable[[ConsumerRecord], bytes]) -> None:
    """Print each record; a terminal gets no control characters."""
    stream = sys.stdout.buffer
    is_shown = is_terminal(sys.stdout)
    for record in records:
        data = render(record)
        stream.write(visible(data.decode(errors="backslashreplace")).encode() if is_shown else data)
    stream.flush()


def renderer(args: Arguments) -> Callable[[ConsumerRecord], bytes]:
    """What makes the bytes to print of a record."""
    if args.format is not None:
        return formatter(args.format)
    if args.json or args.output == "json":
        return lambda record: as_json(record).encode() + b"\n"
    return lambda record: (record.value or b"") + b"\n"


TOKENS: Final[dict[str, Callable[[ConsumerRecord], bytes]]] = {
    "t": lambda record: record.topic.encode(),
    "p": lambda record: b"%d" % record.partition,
    "o": lambda record: b"%d" % record.offset,
    "k": lambda record: record.key or b"",
    "s": lambda record: record.value or b"",
    "h": lambda record: b",".join(
        name.encode() + b"=" + (b"NULL" if value is None else value)
        for name, value in record.headers
    ),
    "T": lambda record: b"%d" % record.timestamp_ms,
    "K": lambda record: b"%d" % (-1 if record.key is None else len(record.key)),
    "S": lambda record: b"%d" % (-1 if record.value is None else len(record.value)),
    "%": lambda _: b"%",
}
"""Source: kcat's ``-f``."""

_ESCAPES: Final = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_PIECE: Final = re.compile(r"%(.?)|\\(x[0-9a-fA-F]{2}|.?)|([^%\\]+)", re.DOTALL)


def formatter(text: str) -> Callable[[ConsumerRecord], bytes]:
    """What prints a record as a format of kcat says."""
    pieces: list[bytes | Callable[[ConsumerRecord], bytes]] = []
    for match in _PIECE.finditer(text):
        token, escape, plain = match.groups()
        if plain:
            pieces.append(os.fsencode(plain))
        elif token in TOKENS:
            pieces.append(TOKENS[token])
        elif escape in _ESCAPES:
            pieces.append(_ESCAPES[escape])
        elif escape and len(escape) == 3:
            pieces.append(bytes([int(escape[1:], 16)]))
        else:
            raise UsageError(
                f"--format has {match[0]!r}",
                f"give %{', %'.join(TOKENS)}, \\n, \\t, \\r, \\0, \\\\ or \\xNN",
            )
    return lambda record: b"".join(
        piece if isinstance(piece, bytes) else piece(record) for piece in pieces
    )


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
