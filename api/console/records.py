"""The record browser: some records of a partition, with what became of their transactions.

The leader is asked as a consumer asks it. Below the last stable offset its reply lists the aborted
transactions, so each record there is committed or aborted. Above it nothing is decided yet, and
only who asks for everything is shown it, marked so.

A search is bounded: by records, bytes and time. Bytes count as they are once decompressed, and of
what a list shows only the beginning is kept. Regular expressions are RE2's, in linear time;
they run on a thread, over a few values at a time, and the time is looked at in between. A form
that needs a large library for foreign bytes (Arrow) is made by a process of its own.

One file: a search, what it keeps, and how a record is shown share these bounds.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from oncelog.actors.process.clock import monotonic_s
from oncelog.actors.protocol.messages.partition import FetchReply, FetchRequest
from oncelog.api.admin.admin import AsyncAdmin
from oncelog.api.console import text
from oncelog.api.consuming.fetch_buffer import AbortedTransactions
from oncelog.api.session.routing import Router
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import (
    CorruptDataError,
    InvalidRequestError,
    RequestTimedOutError,
    exception_for,
)
from oncelog.storage.model import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    IsolationLevel,
    TopicPartition,
)
from oncelog.storage.records.batch import BatchHeader, crc_matches, iterate_batches
from oncelog.storage.records.codec import decode_rows
from oncelog.storage.records.control import decode_control
from oncelog.storage.records.layout import RECORD_BYTES_MIN
from oncelog.storage.records.rows import INT64_MIN, Record, Rows

PAGE_RECORDS_MAX: Final = 200
"""Records on one page."""

PATTERN_CHARS_MAX: Final = 200
"""Of a regular expression, and of any other filter."""

SEARCHED_BYTES_MAX: Final = 8_192
"""Of each value, from its beginning, that a filter looks at."""

SCANNED_RECORDS_MAX: Final = 20_000
"""Records that one search reads; the page has a link to go on."""

SCANNED_BYTES_MAX: Final = 33_554_432
"""Bytes of records, decompressed, that one search reads, likewise; and bytes of batches."""

SCAN_S: Final = 3.0
"""Time for one search, likewise."""

READS_MAX: Final = 2
"""Searches at a time, of all viewers; others wait."""

READ_WAIT_S: Final = 10.0
"""How long one waits for its turn before it is refused."""

MERGED_PARTITIONS_MAX: Final = 16
"""Partitions whose records are shown together."""

HEADERS_SHOWN_MAX: Final = 5
HEADER_NAME_CHARS_MAX: Final = 60
"""Of each record in a list."""

FETCH_BYTES: Final = 1_048_576
FETCH_TIMEOUT_MS: Final = 5_000

MATCHED_AT_ONCE_MAX: Final = 256
SLOW_MATCH_S: Final = 0.05
"""If some values take longer than this to match, fewer are matched at a time."""

ARROW_TIMEOUT_S: Final = 10.0
ARROW_PROCESSES_MAX: Final = 2
"""Processes that read Arrow IPC at a time, for all viewers; others wait ``READ_WAIT_S``."""

ARROW_OUTPUT_MAX_BYTES: Final = 262_144


class Fate(enum.Enum):
    """What a record of the log is, or what became of its transaction."""

    PLAIN = ""
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNDECIDED = "undecided"
    COMMIT = "COMMIT marker"
    ABORT = "ABORT marker"
    CONTROL = "control"

    @property
    def is_marker(self) -> bool:
        """Whether it is no data."""
        return self in (Fate.COMMIT, Fate.ABORT, Fate.CONTROL)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRecord:
    """A record or a marker. ``producer_id`` is -1 for one that names no producer.

    For a list key, value and headers are cut to what it shows (``text.Head``); ``header_count`` is
    of all headers.
    """

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    header_count: int
    fate: Fate
    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Where a partition begins and ends; the last two are exclusive."""

    log_start_offset: int
    last_stable_offset: int
    high_watermark: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """What is looked for: texts that the key, a header ("name" or "name=value") and the value have.

    ``value`` is a regular expression. ``shows_all``: aborted and undecided records, and markers.
    """

    key: str = ""
    header: str = ""
    value: str = ""
    shows_all: bool = False

    def check(self) -> None:
        """``InvalidRequestError`` for a filter that is too long, or no regular expression."""
        for name in ("key", "header", "value"):
            length = len(getattr(self, name))
            if length > PATTERN_CHARS_MAX:
                raise InvalidRequestError(
                    f"the filter for {name} has {length} characters",
                    advice=f"give at most {PATTERN_CHARS_MAX}",
                )
        try:
            _matches(["x"], self.value)
        except (pa.ArrowInvalid, UnicodeEncodeError) as error:
            reason = str(error).removeprefix("Invalid regular expression: ")
            raise InvalidRequestError(
                f"{self.value!r} is no regular expression ({reason})",
                advice="RE2's are known: no look-around, no references back",
            ) from None

    @property
    def is_empty(self) -> bool:
        """Whether every record passes."""
        return not (self.key or self.header or self.value)


@dataclass(slots=True, kw_only=True)
class Found:
    """Records of one partition from ``offset`` on, up to ``next_offset`` (exclusive).

    ``stopped`` says why it ends before the end of the partition, "" if it does not; ``stopped_at``
    where, if that is not ``next_offset``.
    """

    bounds: Bounds
    offset: int
    next_offset: int
    records: list[FoundRecord] = field(default_factory=list)
    scanned_count: int = 0
    scanned_bytes: int = 0
    """Of records, decompressed."""
    passed_count: int = 0
    """How many records passed the filter; the last of them are in ``records``."""
    stopped: str = ""
    stopped_at: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Search:
    """What ends a search, and what of the records is kept: the last ``kept_max`` that pass."""

    wanted: Filter
    count_max: int
    kept_max: int
    until_s: float
    keeps_whole: bool


@contextlib.asynccontextmanager
async def _in_turn(turn: asyncio.Semaphore, others: str) -> AsyncIterator[None]:
    """Hold ``turn``; ``RequestTimedOutError`` says who does if it does not come in time."""
    try:
        await asyncio.wait_for(turn.acquire(), READ_WAIT_S)
    except asyncio.TimeoutError:
        raise RequestTimedOutError(others, advice="try again in a few seconds") from None
    try:
        yield
    finally:
        turn.release()


class Browser:
    """Reads records with the rights of one viewer; ``turn`` is shared by all of them.

    One is for one page: all that it reads ends ``SCAN_S`` after the first of it began.
    """

    def __init__(self, router: Router, admin: AsyncAdmin, turn: asyncio.Semaphore) -> None:
        self._router = router
        self._admin = admin
        self._turn = turn
        self._until_s: float | None = None

    async def bounds(self, tp: TopicPartition) -> Bounds:
        """Where the partition begins and ends now."""
        start, stable, end = await asyncio.gather(
            self._admin.list_offsets({tp: EARLIEST_TIMESTAMP}),
            self._admin.list_offsets({tp: LATEST_TIMESTAMP}),
            self._admin.list_offsets(
                {tp: LATEST_TIMESTAMP}, isolation_level=IsolationLevel.READ_UNCOMMITTED
            ),
        )
        return Bounds(
            log_start_offset=start[tp], last_stable_offset=stable[tp], high_watermark=end[tp]
        )

    async def offset_at(self, tp: TopicPartition, time_ms: int, bounds: Bounds) -> int:
        """The first offset at or after a time; the end if there is none."""
        found = await self._admin.list_offsets({tp: time_ms})
        return found[tp] if found[tp] >= 0 else bounds.last_stable_offset

    async def read(
        self,
        tp: TopicPartition,
        offset: int,
        wanted: Filter,
        count_max: int,
        *,
        kept_max: int | None = None,
        keeps_whole: bool = False,
    ) -> Found:
        """The next records from ``offset`` (inclusive) on that pass the filter.

        The last ``kept_max`` of them are kept, all by default; cut, unless ``keeps_whole``.
        """
        wanted.check()
        async with _in_turn(self._turn, f"{READS_MAX} other searches are under way"):
            bounds = await self.bounds(tp)
            offset = min(max(offset, bounds.log_start_offset), bounds.high_watermark)
            found = Found(bounds=bounds, offset=offset, next_offset=offset)
            if self._until_s is None:
                self._until_s = monotonic_s() + SCAN_S
            search = _Search(
                wanted=wanted,
                count_max=count_max,
                kept_max=count_max if kept_max is None else kept_max,
                until_s=self._until_s,
                keeps_whole=keeps_whole,
            )
            await self._scan(tp, found, search)
            return found

    async def read_last(self, tp: TopicPartition, wanted: Filter, count_max: int) -> Found:
        """The newest records that pass the filter, of those that one search can read."""
        bounds = await self.bounds(tp)
        end = bounds.high_watermark if wanted.shows_all else bounds.last_stable_offset
        reach, told = count_max, ""
        newest: Found | None = None
        while True:
            # Markers and aborted records take offsets too: look further back if it was too few.
            begin = max(end - reach, bounds.log_start_offset)
            found = await self.read(tp, begin, wanted, SCANNED_RECORDS_MAX, kept_max=count_max)
            if found.stopped and newest is not None:
                # It did not get to those that the look before has found.
                told, found = found.stopped, newest
                break
            if found.stopped and 1 < reach <= count_max and self._has_time():
                # It did not get to the end: look less far back.
                told, reach = found.stopped, max(reach // 8, 1)
                continue
            is_enough = found.passed_count >= count_max or begin <= bounds.log_start_offset
            if told or is_enough or reach >= SCANNED_RECORDS_MAX or found.stopped:
                break
            newest = found if found.records else None
            reach = min(8 * reach, SCANNED_RECORDS_MAX)
        if told and not found.stopped:
            found.stopped, found.stopped_at = told, found.offset
        if found.records:
            found.offset = found.records[0].offset
        return found

    def _has_time(self) -> bool:
        return self._until_s is None or monotonic_s() < self._until_s

    async def _scan(self, tp: TopicPartition, found: Found, search: _Search) -> None:
        fetched_bytes = 0
        while found.passed_count < search.count_max and not found.stopped:
            is_stable = found.next_offset < found.bounds.last_stable_offset
            if not is_stable and (
                not search.wanted.shows_all or found.next_offset >= found.bounds.high_watermark
            ):
                return
            if fetched_bytes:
                found.stopped = _limit_of(found, fetched_bytes, search.until_s)
                if found.stopped:
                    return
            reply = await self._fetch(tp, found.next_offset, is_stable=is_stable)
            if not len(reply.records):
                return
            fetched_bytes += len(reply.records)
            await asyncio.to_thread(_take, found, tp.partition, reply, search, is_stable=is_stable)

    async def _fetch(self, tp: TopicPartition, offset: int, *, is_stable: bool) -> FetchReply:
        request = FetchRequest(
            topic_partition=tp,
            fetch_offset=offset,
            isolation_level=(
                IsolationLevel.READ_COMMITTED if is_stable else IsolationLevel.READ_UNCOMMITTED
            ),
            max_wait_ms=0,
            max_bytes=FETCH_BYTES,
        )
        reply = await self._router.call_leader(tp, request, timeout_ms=FETCH_TIMEOUT_MS)
        if reply.error is not ErrorCode.NONE:
            raise exception_for(reply.error, reply.detail or f"{tp} from offset {offset}")
        return reply


# --- one reply --------------------------------------------------------------------------------


def _limit_of(found: Found, fetched_bytes: int, until_s: float) -> str:
    """Which bound of a search is reached, "" if none is."""
    if found.scanned_count >= SCANNED_RECORDS_MAX:
        return f"{SCANNED_RECORDS_MAX:,} records were searched"
    if max(found.scanned_bytes, fetched_bytes) >= SCANNED_BYTES_MAX:
        return f"{text.size(SCANNED_BYTES_MAX)} were searched"
    return f"{SCAN_S:.0f} s were searched" if monotonic_s() >= until_s else ""


def _take(
    found: Found, partition: int, reply: FetchReply, search: _Search, *, is_stable: bool
) -> None:
    """Add the records of a reply that pass; ``next_offset`` moves past what was looked at."""
    aborted = AbortedTransactions(reply.aborted_transactions or ())
    first_offset = found.next_offset
    for place, header in iterate_batches(reply.records):
        if header.has_producer_id:
            aborted.advance_to(header.last_offset)
        fate = _fate_of(header, aborted, is_stable=is_stable)
        rows: Rows[Record] | None = None
        try:
            if not crc_matches(reply.records, header, place):
                raise CorruptDataError("its CRC is another one")
            if header.is_control:
                fate = _fate_of_marker(reply, header, place, aborted)
            is_shown = search.wanted.shows_all or fate in (Fate.PLAIN, Fate.COMMITTED)
            is_shown = is_shown and header.last_offset >= first_offset
            if is_shown and not header.is_control:
                rows = _rows_of(reply, header, place, first_offset)
        except CorruptDataError:
            found.stopped = f"the batch at offset {header.base_offset} is damaged"
            found.next_offset = max(header.next_offset, first_offset + 1)
            return
        if is_shown and header.is_control:
            # It has neither key nor value: with a filter it does not pass.
            found.scanned_count += 1
            if search.wanted.is_empty:
                _keep(found, _marker(header), partition, header, fate, search)
        if rows is not None and not _look_through(found, rows, partition, header, fate, search):
            return
        found.next_offset = max(found.next_offset, header.next_offset)
        if found.passed_count >= search.count_max or _limit_of(found, 0, search.until_s):
            return


def _look_through(
    found: Found,
    rows: Rows[Record],
    partition: int,
    header: BatchHeader,
    fate: Fate,
    search: _Search,
) -> bool:
    """Add the records of a batch that pass; whether all of them were looked at.

    At least one is, and only a few are decoded at a time.
    """
    at_once = 1
    while part := rows.take(at_once):
        began_s = monotonic_s()
        for row, is_passing in zip(part, _flags(part, search.wanted), strict=True):
            found.scanned_count += 1
            found.scanned_bytes += _size_of(row)
            found.next_offset = row.offset + 1
            if is_passing:
                _keep(found, row, partition, header, fate, search)
            if found.passed_count >= search.count_max:
                return not rows.left and row is part[-1]
        now_s = monotonic_s()
        if _limit_of(found, 0, search.until_s):
            return not rows.left
        is_slow = now_s - began_s > SLOW_MATCH_S
        at_once = max(at_once // 4, 1) if is_slow else min(2 * at_once, MATCHED_AT_ONCE_MAX)
    return True


def _size_of(row: Record) -> int:
    size_bytes = RECORD_BYTES_MIN + len(row.key or b"") + len(row.value or b"")
    return size_bytes + sum(len(name) + len(value or b"") for name, value in row.headers)


def _keep(
    found: Found,
    row: Record,
    partition: int,
    header: BatchHeader,
    fate: Fate,
    search: _Search,
) -> None:
    key, value, headers = row.key, row.value, row.headers
    if not search.keeps_whole:
        key, value = text.head(key), text.head(value)
        headers = tuple(
            (text.cut(name, HEADER_NAME_CHARS_MAX), text.head(given))
            for name, given in headers[:HEADERS_SHOWN_MAX]
        )
    found.passed_count += 1
    found.records.append(
        FoundRecord(
            partition=partition,
            offset=row.offset,
            timestamp_ms=row.timestamp_ms,
            key=key,
            value=value,
            headers=headers,
            header_count=len(row.headers),
            fate=fate,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
        )
    )
    if len(found.records) > search.kept_max:
        del found.records[0]


def _fate_of(header: BatchHeader, aborted: AbortedTransactions, *, is_stable: bool) -> Fate:
    if not header.is_transactional:
        return Fate.PLAIN
    if not is_stable:
        return Fate.UNDECIDED
    return Fate.ABORTED if aborted.covers(header) else Fate.COMMITTED


def _fate_of_marker(
    reply: FetchReply, header: BatchHeader, place: int, aborted: AbortedTransactions
) -> Fate:
    """What a control batch says; an aborted transaction ends with it."""
    control = decode_control(reply.records, header, place)
    verdict = None if control is None else control.committed
    if verdict is False:
        aborted.end(header.producer_id)
    return {True: Fate.COMMIT, False: Fate.ABORT, None: Fate.CONTROL}[verdict]


def _marker(header: BatchHeader) -> Record:
    """A marker as a record, which has neither key nor value."""
    return Record(
        offset=header.base_offset, timestamp_ms=header.max_timestamp_ms, key=None, value=None
    )


def _rows_of(reply: FetchReply, header: BatchHeader, place: int, first_offset: int) -> Rows[Record]:
    """The records of a batch from ``first_offset`` on, whose CRC matches."""
    return decode_rows(
        reply.records,
        header,
        place,
        row_type=Record,
        first_offset=max(first_offset, INT64_MIN),
        checks_crc=False,
    )


# --- filters ----------------------------------------------------------------------------------


def _flags(rows: Sequence[Record], wanted: Filter) -> Iterable[bool]:
    values = [True] * len(rows)
    if wanted.value:
        values = _matches([searched(row.value) for row in rows], wanted.value)
    return (
        is_passing
        and (not wanted.key or wanted.key in searched(row.key))
        and (not wanted.header or _has_header(row, wanted.header))
        for row, is_passing in zip(rows, values, strict=True)
    )


def searched(data: bytes | None) -> str:
    """What of a key or value a filter looks at."""
    return "" if data is None else data[:SEARCHED_BYTES_MAX].decode("utf-8", "replace")


def _matches(values: list[str], pattern: str) -> list[bool]:
    """Which values have a match of the regular expression; RE2 takes linear time."""
    found = pc.match_substring_regex(pa.array(values, pa.string()), pattern)
    return [bool(one) for one in found.to_pylist()]


def _has_header(row: Record, wanted: str) -> bool:
    name, equals, value = wanted.partition("=")
    return any(
        key == name and (not equals or value in searched(given)) for key, given in row.headers
    )


# --- forms of a value -------------------------------------------------------------------------

FORMS: Final[tuple[str, ...]] = ("auto", "text", "json", "hex", "arrow")


async def form_of(data: bytes, form: str, turn: asyncio.Semaphore) -> tuple[str, str]:
    """A value in one of ``FORMS``: the form's name, and its lines.

    ``turn`` bounds the processes that read Arrow. ``RequestTimedOutError`` if it does not come.
    """
    makers: dict[str, Callable[[bytes], str | None]] = {
        "json": text.as_json,
        "text": lambda value: None if text.decoded(value) is None else text.as_text(value),
        "hex": text.as_hex,
    }
    if form == "arrow":
        others = f"{ARROW_PROCESSES_MAX} other values are read as Arrow"
        async with _in_turn(turn, others):
            return "arrow", await _as_arrow(data)
    if form == "text":
        return "text", text.as_text(data)
    if form in makers:
        return form, makers[form](data) or (
            f"this is no {form.upper()} of up to 64 KiB and {text.JSON_DEPTH_MAX} levels"
        )
    for name, make in makers.items():
        if (lines := make(data)) is not None:
            return name, lines
    return "hex", text.as_hex(data)


async def _as_arrow(data: bytes) -> str:
    """Arrow IPC as rows, or why it is none; by a process that may use little."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-I",
        str(Path(__file__).with_name("arrow_text.py")),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        output, errors = await asyncio.wait_for(process.communicate(data), ARROW_TIMEOUT_S)
    except asyncio.TimeoutError:
        return f"it could not be read as Arrow IPC within {ARROW_TIMEOUT_S:.0f} s"
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        lines = errors.decode("utf-8", "replace").strip().splitlines()
        return text.shown(lines[-1] if lines else "it cannot be read as Arrow IPC")
    shown = output[:ARROW_OUTPUT_MAX_BYTES].decode("utf-8", "replace")
    return text.shown(shown, keeps_lines=True, chars_max=ARROW_OUTPUT_MAX_BYTES)
