"""The audit log of a process: who was refused what, and if wanted also who was allowed what.

A file of JSON lines in ``audit`` in the broker's own data directory, one line for each operation
and kind of resource of a call. ``Dispatch`` tells what was decided; servers are not asked what they
may, so they have no lines.

A call never waits for the file. Lines are queued, and a thread writes them; what is too much is
left out and counted, and the next line says how many. So does a disk that fails: nobody is refused
for it. A line has names that the caller chose, escaped and cut, and nothing else of a request.

Files are opened for each write, since a process that hangs and its successor may share one; if both
write in the same instant, one overwrites lines of the other. Nothing is synced: a power loss may
take the last lines, and the death of the process those of a moment.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import hashlib
import json
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Final, NamedTuple

from oncelog.actors.interfaces import Background, Clock
from oncelog.actors.process.background import OwnTasks
from oncelog.actors.process.clock import loop_ms
from oncelog.actors.process.metrics import (
    AUDIT_LINES_LEFT_OUT,
    NO_METRICS,
    REFUSED_CALLS,
    MetricSink,
)
from oncelog.actors.protocol.access import SOME_NAME, Principal, Verdict
from oncelog.actors.protocol.messages.access import USER_KIND, Operation, Resource
from oncelog.storage.disk.file_system import FileSystem
from oncelog.storage.errors import ErrorCode

_logger = logging.getLogger(__name__)

AUDIT_DIRECTORY: Final = "audit"
"""In the broker's own data directory."""

AUDIT_FILE_MAX_BYTES: Final = 16_777_216
"""Another file is begun before one grows larger."""

AUDIT_FILES_KEPT: Final = 4
"""Files of an actor, the one that is written included."""

AUDIT_QUEUE_MAX_BYTES: Final = 1_048_576
"""Lines that wait for the thread; those about what was allowed may take half."""

AUDIT_LINES_PER_SECOND_MAX: Final = 100
"""Lines about one principal in a second: so many of what it was refused, and of what allowed.

Also of the refused logins from one address.
"""

AUDIT_NAMES_MAX: Final = 10
"""Names in one line; the others are counted."""

NAME_MAX: Final = 249
"""Characters of a name in a line: those that a topic's may have."""

FLUSH_TIMEOUT_S: Final = 5
"""How long a shutdown waits for the last lines."""

LOGIN: Final = "login"
"""The request of a user that logs in."""

ANY: Final = "*"
"""In a line: any resource of the kind would have done."""

_FILE_NAME_MAX: Final = 200
_WARN_INTERVAL_MS: Final = 60_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)


class _Line(NamedTuple):
    data: bytes
    stands_for: int
    """Itself and the lines left out that it tells of."""


class AuditLog:
    """``Audit`` of production: queues lines and counts refusals; used from one event loop.

    ``actor`` names the file. ``on_bug`` gets what is no error of the disk.
    """

    def __init__(
        self,
        *,
        actor: str,
        data_dir: Path,
        filesystem: FileSystem,
        background: Background,
        clock: Clock,
        on_bug: Callable[[BaseException], None],
        has_allowed: bool = False,
        metrics: MetricSink = NO_METRICS,
        metrics_interval_ms: int = 0,
    ) -> None:
        self.lines_left_out = 0
        """In all, since the process began."""
        self._actor = actor
        self._files = AuditFiles(filesystem, data_dir, actor)
        self._background = background
        self._clock = clock
        self._has_allowed = has_allowed
        self._metrics = metrics
        self._metrics_interval_ms = metrics_interval_ms
        self._tasks = OwnTasks(on_bug)
        self._writing: asyncio.Task[None] | None = None
        self._queue: list[_Line] = []
        self._queued_bytes = 0
        self._untold = 0
        """Lines left out since the last line."""
        self._second = 0
        self._in_second: dict[tuple[str, bool], int] = {}
        self._warn_at_ms = 0
        self._refused: dict[tuple[str, ErrorCode], int] = {}
        self._left_out = 0
        """Lines left out since the last report."""
        self._timer: asyncio.TimerHandle | None = None

    # --- what is told ---------------------------------------------------------------------

    def judged(self, who: Principal, host: str, method: str, verdicts: list[Verdict], /) -> None:
        """Take what was decided about a call of ``method`` by ``who``, from ``host``."""
        refused = {verdict.error for verdict in verdicts if not verdict.is_allowed}
        for error in refused:
            self._refused[method, error] = self._refused.get((method, error), 0) + 1
            self._report_later()
        if not refused and not (self._has_allowed and verdicts):
            return
        told = verdicts if self._has_allowed else [one for one in verdicts if not one.is_allowed]
        for verdict, names in _by_operation(told):
            if self._is_too_many(who.name, is_allowed=verdict.is_allowed):
                self._leave_out(1)
            else:
                fields = _fields(who.name, host, method, verdict, names)
                self._enqueue(fields, is_allowed=verdict.is_allowed)

    def login_refused(self, name: str, host: str) -> None:
        """Note that a caller was not believed to be the user ``name``."""
        error = ErrorCode.SASL_AUTHENTICATION_FAILED
        self._refused[LOGIN, error] = self._refused.get((LOGIN, error), 0) + 1
        self._report_later()
        # By address: the name is what somebody claims, who could take the lines of another.
        if self._is_too_many(f"{LOGIN} {host}", is_allowed=False):
            self._leave_out(1)
            return
        fields = {
            "principal": USER_KIND + name[:NAME_MAX],
            "address": host,
            "request": LOGIN,
            "verdict": "denied",
            "error": error.name,
        }
        self._enqueue(fields, is_allowed=False)

    def _is_too_many(self, who: str, *, is_allowed: bool) -> bool:
        # A principal takes no line of another, nor calls that are allowed those of refused ones.
        second = loop_ms() // 1_000
        if second != self._second:
            self._second = second
            self._in_second.clear()
        key = (who, is_allowed)
        self._in_second[key] = self._in_second.get(key, 0) + 1
        return self._in_second[key] > AUDIT_LINES_PER_SECOND_MAX

    def _enqueue(self, fields: dict[str, Any], *, is_allowed: bool) -> None:
        told = {"lines_left_out": self._untold} if self._untold else {}
        data = _encoded({"time": _iso(self._clock.now_ms()), **fields, **told})
        room = AUDIT_QUEUE_MAX_BYTES // 2 if is_allowed else AUDIT_QUEUE_MAX_BYTES
        if self._queued_bytes + len(data) > room:
            self._leave_out(1)
            return
        self._queue.append(_Line(data, 1 + self._untold))
        self._queued_bytes += len(data)
        self._untold = 0
        if self._writing is None or self._writing.done():
            self._writing = self._tasks.spawn(self._write_queued())

    def _leave_out(self, count: int) -> None:
        self.lines_left_out += count
        self._left_out += count
        self._untold += count
        self._report_later()

    # --- the file -------------------------------------------------------------------------

    async def _write_queued(self) -> None:
        while self._queue:
            lines, self._queue, self._queued_bytes = self._queue, [], 0
            write = functools.partial(self._files.write, [line.data for line in lines])
            written, error = await self._background.run(write)
            if error is not None:
                self._lost(lines[written:], error)

    def _lost(self, lines: Sequence[_Line], error: OSError) -> None:
        """A failed write lost these, and with them what they told of others."""
        self._leave_out(len(lines))
        self._untold += sum(line.stands_for - 1 for line in lines)
        if loop_ms() >= self._warn_at_ms:
            self._warn_at_ms = loop_ms() + _WARN_INTERVAL_MS
            _logger.warning(
                "cannot write %s: %s; %d lines of it are lost so far — make room on its disk, or "
                "repair it",
                *(self._files.path, error, self.lines_left_out),
            )

    async def flush(self) -> None:
        """Wait until all is written, or lost; report what was counted. Safe to repeat."""
        self.report()
        if self._untold:
            self._enqueue({}, is_allowed=False)
        if self._writing is not None and not self._writing.done():
            # Whoever is cancelled here does not cancel the writing.
            await asyncio.wait({self._writing}, timeout=FLUSH_TIMEOUT_S)

    # --- metrics --------------------------------------------------------------------------

    def _report_later(self) -> None:
        if self._timer is None and self._metrics is not NO_METRICS:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._metrics_interval_ms / 1_000, self.report)

    def report(self) -> None:
        """Report what was counted since the last report."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        refused, self._refused = self._refused, {}
        left_out, self._left_out = self._left_out, 0
        tags = {"actor": self._actor}
        for (method, error), count in refused.items():
            self._metrics.add(REFUSED_CALLS, count, {**tags, "method": method, "error": error.name})
        self._metrics.add(AUDIT_LINES_LEFT_OUT, left_out, tags)


def _by_operation(verdicts: Sequence[Verdict]) -> Iterator[tuple[Verdict, list[str]]]:
    """The first verdict on each operation and kind of resource, with the names of all."""
    names: dict[tuple[Operation, Resource, bool], dict[str, Verdict]] = {}
    for verdict in verdicts:
        key = (verdict.operation, verdict.resource, verdict.is_allowed)
        names.setdefault(key, {}).setdefault(verdict.name, verdict)
    for by_name in names.values():
        yield next(iter(by_name.values())), list(by_name)


def _fields(
    principal: str, host: str, method: str, verdict: Verdict, names: Sequence[str]
) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "principal": principal[:NAME_MAX],
        "address": host[:NAME_MAX],
        "request": method,
        "resource": verdict.resource.value,
        "names": [ANY if name == SOME_NAME else name[:NAME_MAX] for name in names][
            :AUDIT_NAMES_MAX
        ],
        "operation": verdict.operation.value,
        "verdict": "allowed" if verdict.is_allowed else "denied",
    }
    if len(names) > AUDIT_NAMES_MAX:
        fields["names_left_out"] = len(names) - AUDIT_NAMES_MAX
    if not verdict.is_allowed:
        fields["error"] = verdict.error.name
    return fields


def _encoded(fields: dict[str, Any]) -> bytes:
    """One line of ASCII: whatever a name has, it begins no other line."""
    return json.dumps(fields, ensure_ascii=True, separators=(",", ":")).encode("ascii") + b"\n"


def _iso(now_ms: int) -> str:
    moment = _EPOCH + timedelta(milliseconds=now_ms)
    return moment.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


class AuditFiles:
    """The files of one actor: ``NAME.log`` is written, ``NAME.log.1`` and so on are older.

    Used by one thread at a time. A directory that is missing is made, but never the data directory:
    its disk may not be mounted.
    """

    def __init__(self, filesystem: FileSystem, data_dir: Path, actor: str) -> None:
        self._filesystem = filesystem
        self._data_dir = data_dir
        self.path = data_dir / AUDIT_DIRECTORY / f"{file_name(actor)}.log"

    def write(self, lines: Sequence[bytes]) -> tuple[int, OSError | None]:
        """Write lines in order; returns how many, and why no more."""
        written = 0
        try:
            self._make_directory()
            while written < len(lines):
                written += self._append(lines[written:])
        except OSError as error:
            return written, error
        return written, None

    def _make_directory(self) -> None:
        if self._filesystem.exists(self.path.parent):
            return
        if not self._filesystem.exists(self._data_dir):
            raise FileNotFoundError(errno.ENOENT, "no data directory", str(self._data_dir))
        self._filesystem.make_directory(self.path.parent)

    def _append(self, lines: Sequence[bytes]) -> int:
        """Write what the current file has room for, then begin another; returns how many."""
        handle = self._filesystem.open(self.path, create=True)
        try:
            # A write that failed has left a part of a line.
            is_torn = handle.size > 0 and handle.read(handle.size - 1, 1) != b"\n"
            part = [b"\n"] if is_torn else []
            size = handle.size + len(part)
            count = 0
            for line in lines:
                if size and size + len(line) > AUDIT_FILE_MAX_BYTES:
                    break
                part.append(line)
                size += len(line)
                count += 1
            if count:
                handle.append((b"".join(part),))
        finally:
            handle.close()
        if count < len(lines):
            self._rotate()
        return count

    def _rotate(self) -> None:
        for number in reversed(range(1, AUDIT_FILES_KEPT)):
            newer = self._numbered(number - 1)
            if self._filesystem.exists(newer):
                self._filesystem.rename(newer, self._numbered(number))

    def _numbered(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}") if number else self.path


def file_name(actor: str) -> str:
    """The actor's name with what a file's may have; a long one ends in a digest of it."""
    safe = re.sub(r"[^A-Za-z0-9._-]", "_", actor)
    if len(safe) <= _FILE_NAME_MAX:
        return safe
    return f"{safe[:_FILE_NAME_MAX]}-{hashlib.sha256(actor.encode()).hexdigest()[:16]}"
