"""What the command line prints: tables, numbers, and every error as one line.

An error line reads ``oncelog: <what> — <what to do>``. Messages of the library carry both halves,
joined by a colon or a semicolon; what has no advice of its own gets one by the class of its code.
"""

from __future__ import annotations

import base64
import os
import re
import select
import sys
import traceback
from collections.abc import Iterable, Sequence
from typing import Final

from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import InvalidSettingError, OncelogError

PROGRAM: Final = "oncelog"
DEBUG_VARIABLE: Final = "ONCELOG_DEBUG"

STATUS_ERROR: Final = 1
STATUS_USAGE: Final = 2
STATUS_NOT_SERVED: Final = 3
"""Of ``oncelog status``: something is not served, as service managers say of what is stopped."""

STATUS_INTERRUPTED: Final = 130
"""What shells use for a program that SIGINT ended."""

STATUS_BROKEN_PIPE: Final = 141
"""What shells use for a program that SIGPIPE ended: its reader is gone."""

_DASH: Final = " — "
_ADVICE = re.compile(
    r"[:;] (?=(?:give|use|a|allowed|at least|call|change|check|choose|close|create|did|end|free|"
    r"install|known|less|look|make|one|only|pass|retry|seek|send|set|start|stop|text|True|try|"
    r"wait|'read_committed')\b)"
)
"""Where the advice of a message begins: at a mark before a word that asks or allows."""

_ADVICE_BY_CODE: Final = {
    ErrorCode.TOPIC_ALREADY_EXISTS: "choose another name, or `oncelog topics delete` it first",
    ErrorCode.INVALID_TOPIC_EXCEPTION: (
        "give 1 to 249 of letters, digits, '.', '_' and '-'; names of internal topics are taken"
    ),
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "`oncelog topics list` shows those that exist",
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: "`oncelog transactions list` shows those that exist",
    ErrorCode.GROUP_ID_NOT_FOUND: "`oncelog groups list` shows those that exist",
    ErrorCode.BROKER_NOT_AVAILABLE: "`oncelog status` shows the brokers",
    ErrorCode.INVALID_REPLICA_ASSIGNMENT: (
        "give brokers that `oncelog status` shows as alive and not draining"
    ),
    ErrorCode.INVALID_REPLICATION_FACTOR: "add a broker, or give topics fewer replicas",
    ErrorCode.INELIGIBLE_REPLICA: (
        "wait until one of them is back in sync: `oncelog topics describe TOPIC` shows it"
    ),
    ErrorCode.PRODUCER_FENCED: "another producer has taken the transactional id; give another one",
}


class CliError(Exception):
    """An error of the command line itself: what is wrong, and what to do."""

    status = STATUS_ERROR

    def __init__(self, what: str, advice: str) -> None:
        super().__init__(what, advice)
        self.what = what
        self.advice = advice


class UsageError(CliError):
    """The arguments are wrong; nothing was done."""

    status = STATUS_USAGE


# --- errors -----------------------------------------------------------------------------------


def is_debugging() -> bool:
    """Whether the user asked for stack traces."""
    return os.environ.get(DEBUG_VARIABLE, "") not in {"", "0"}


def one_line(text: str) -> str:
    """``text`` with every run of white space as one space."""
    return " ".join(text.split())


def split_advice(message: str) -> tuple[str, str]:
    """The two halves of a message; the second is empty if it does not say what to do."""
    text = one_line(message).rstrip(".")
    what, dash, advice = text.partition(_DASH)
    if dash:
        return what, advice
    found = _ADVICE.search(text)
    return (text[: found.start()], text[found.end() :]) if found else (text, "")


def describe_error(error: BaseException) -> str:
    """``error`` as its one line, program name included."""
    if isinstance(error, CliError):
        what, advice = one_line(error.what), one_line(error.advice)
    elif isinstance(error, OncelogError):
        what, advice = split_advice(str(error))
        if not advice and isinstance(error, InvalidSettingError):
            # These always say what is allowed, whatever word that begins with.
            what, _, advice = what.partition(": ")
        advice = advice or _default_advice(error)
    else:
        what = one_line(f"{type(error).__name__}: {error}").rstrip(": ")
        advice = f"run it again with {DEBUG_VARIABLE}=1 to see where this comes from"
    return f"{PROGRAM}: {what}{_DASH}{advice}"


def _default_advice(error: OncelogError) -> str:
    known = _ADVICE_BY_CODE.get(error.code)
    if known is not None:
        return known
    if error.retriable:
        return "try again, and look at `oncelog status` if it stays"
    if error.abortable:
        return "nothing of the transaction is kept; run the command again"
    return f"run it again with {DEBUG_VARIABLE}=1 to see where this comes from"


def report(error: BaseException) -> int:
    """Print ``error`` on standard error, its stack trace only when debugging; the exit status."""
    if is_debugging():
        traceback.print_exception(error)
    sys.stderr.write(describe_error(error) + "\n")
    sys.stderr.flush()
    return error.status if isinstance(error, CliError) else STATUS_ERROR


# --- output -----------------------------------------------------------------------------------


def say(text: str = "") -> None:
    """Print one line, or several, on standard output."""
    sys.stdout.write(text + "\n")


def is_reader_gone() -> bool:
    """Whether the reader of standard output is gone; a pipe shows it without a write."""
    try:
        number = sys.stdout.fileno()
    except OSError:
        return False  # It is kept in memory.
    poll = select.poll()
    poll.register(number, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Rows under headings, columns aligned: numbers to the right, text to the left."""
    values = [list(row) for row in rows]
    cells = [[_cell(value) for value in row] for row in values]
    widths = [
        max(len(heading), *(len(row[column]) for row in cells)) if cells else len(heading)
        for column, heading in enumerate(headings)
    ]
    is_right = [
        bool(values) and all(row[column] is None or _is_number(row[column]) for row in values)
        for column in range(len(headings))
    ]
    lines = [
        "  ".join(
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(line, widths, is_right, strict=True)
        ).rstrip()
        for line in ([heading.upper() for heading in headings], *cells)
    ]
    return "\n".join(lines)


def size_text(size_bytes: int) -> str:
    """A size for people: bytes up to 1,024, then KiB, MiB and so on with one decimal."""
    if size_bytes < 1_024:
        return f"{size_bytes} B"
    size: float = size_bytes
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1_024
        if size < 1_024:
            return f"{size:.1f} {unit}"
    return f"{size / 1_024:.1f} TiB"


def bytes_as_json(data: bytes | None) -> str | dict[str, str] | None:
    """Bytes as text; what is not UTF-8 as ``{"base64": ...}``."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def duration_text(duration_ms: int) -> str:
    """A duration for people: its two largest units, as in "2 h 5 min"."""
    units = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000), ("ms", 1))
    parts: list[str] = []
    for unit, size_ms in units:
        count, duration_ms = divmod(duration_ms, size_ms)
        if count:
            parts.append(f"{count:,} {unit}")
        if parts and (len(parts) == 2 or not count):
            break
    return " ".join(parts) or "0 ms"


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if _is_number(value) else str(value)


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
