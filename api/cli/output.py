"""What the command line prints: tables, numbers, and every error as one line.

An error line reads ``oncelog: <what> — <what to do>``. Errors of the library carry both; one without
advice of its own gets that of its code's class.
"""

from __future__ import annotations

import base64
import os
import select
import sys
import traceback
from collections.abc import Iterable, Sequence
from typing import Final

from oncelog.storage.exceptions import OncelogError

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


def split_line(line: str) -> tuple[str, str]:
    """The two halves of what ``describe_error`` made, without the program's name."""
    what, _, advice = line.partition(_DASH)
    return what, advice


def describe_error(error: BaseException) -> str:
    """``error`` as its one line, program name included."""
    if isinstance(error, CliError):
        what, advice = one_line(error.what), one_line(error.advice)
    elif isinstance(error, OncelogError):
        what = one_line(error.what).rstrip(".")
        advice = one_line(error.advice) or _default_advice(error)
    else:
        what = one_line(f"{type(error).__name__}: {error}").rstrip(": ")
        advice = f"run it again with {DEBUG_VARIABLE}=1 to see where this comes from"
    return f"{PROGRAM}: {what}{_DASH}{advice}"


def _default_advice(error: OncelogError) -> str:
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
