"""A command and its terminal: arguments, output, one-line errors, and signals.

Wrong arguments are rejected in one line, and numbers are within limits. The first SIGINT or SIGTERM
ends a command cleanly, a second one at once.

An error line reads ``oncelog: <what> — <what to do>``. Errors of the library carry both; an error
without advice gets that of its code's class.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FrameType
from typing import Final, NoReturn, TypeAlias

from oncelog.storage.exceptions import OncelogError
from oncelog.storage.model import INT32_MAX

PROGRAM: Final = "oncelog"
DEBUG_VARIABLE: Final = "ONCELOG_DEBUG"

STATUS_ERROR: Final = 1
STATUS_USAGE: Final = 2
STATUS_NOT_SERVED: Final = 3
"""Of ``oncelog status``: not all is served; service managers use 3 for "not running"."""

STATUS_INTERRUPTED: Final = 130
"""The shells' status for a program that SIGINT ended."""

STATUS_BROKEN_PIPE: Final = 141
"""The shells' status for a program that SIGPIPE ended: its reader is gone."""

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
    """``text`` with each run of white space as one space."""
    return " ".join(text.split())


def split_line(line: str) -> tuple[str, str]:
    """Split a line of ``describe_error`` into error and advice, without the program's name."""
    what, _, advice = line.partition(_DASH)
    return what, advice


def describe_error(error: BaseException) -> str:
    """``error`` as one line, program name included."""
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
        return "try again; if it persists, look at `oncelog status`"
    if error.abortable:
        return "the transaction was aborted; run the command again"
    return f"run it again with {DEBUG_VARIABLE}=1 to see where this comes from"


def report(error: BaseException) -> int:
    """Print ``error``, with its stack trace only when debugging; return the exit status."""
    if is_debugging():
        traceback.print_exception(error)
    sys.stderr.write(describe_error(error) + "\n")
    sys.stderr.flush()
    return error.status if isinstance(error, CliError) else STATUS_ERROR


# --- output -----------------------------------------------------------------------------------


def say(text: str = "") -> None:
    """Print one or several lines on standard output."""
    sys.stdout.write(text + "\n")


def is_reader_gone() -> bool:
    """Whether the reader of standard output is gone; a pipe tells without a write."""
    try:
        number = sys.stdout.fileno()
    except OSError:
        return False  # Standard output is kept in memory.
    poll = select.poll()
    poll.register(number, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Rows under headings; numbers are aligned right, text left."""
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
    """Bytes as text, or as ``{"base64": ...}`` if they are not UTF-8."""
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


# --- arguments --------------------------------------------------------------------------------


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, like all others."""

    def error(self, message: str) -> NoReturn:
        """Reject the arguments."""
        raise UsageError(message, f"see `{self.prog} --help`")


def whole_number(minimum: int, maximum: int = INT32_MAX) -> Callable[[str], int]:
    """An argument type: an int from ``minimum`` to ``maximum``, both inclusive."""

    def parse(text: str) -> int:
        number = int(text) if text.lstrip("-").isdecimal() else minimum - 1
        if not minimum <= number <= maximum:
            raise argparse.ArgumentTypeError(
                f"{text!r} is not a whole number from {minimum} to {maximum}"
            )
        return number

    return parse


Commands: TypeAlias = "argparse._SubParsersAction[Parser]"


def add_actions(commands: Commands, name: str, text: str) -> Commands:
    """Add a command ``name``, described by ``text``, that has actions of its own."""
    parser = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
    return parser.add_subparsers(dest="action", metavar="ACTION", required=True)


def add_repeated(parser: argparse.ArgumentParser, name: str, metavar: str, text: str) -> None:
    """Add an option that may be given more than once."""
    text = f"{text}; may be given more than once"
    parser.add_argument(name, action="append", default=[], metavar=metavar, help=text)


def add_json(*parsers: argparse.ArgumentParser) -> None:
    """Add ``--json`` to each of ``parsers``."""
    for parser in parsers:
        parser.add_argument("--json", action="store_true", help="print JSON")


def add_command(
    commands: Commands,
    name: str,
    text: str,
    run: Callable[[argparse.Namespace], int],
) -> argparse.ArgumentParser:
    """Add a command ``name``, described by ``text``, that calls ``run``."""
    parser = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
    parser.set_defaults(run=run)
    return parser


# --- signals ----------------------------------------------------------------------------------

STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)

STATUS_BASE: Final = 128
"""Shells add this to the number of the signal that ended a program."""


class EndedBySignal(KeyboardInterrupt):
    """A signal asks the command to end. Not an ``Exception``, since it is not a failure."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number

    @property
    def status(self) -> int:
        """The exit status that shells expect."""
        return STATUS_BASE + self.number


class _OrderlyEnd:
    """Raises the first signal wherever the program is, unless signals are held."""

    def __init__(self) -> None:
        self._is_ours = False
        self._holders = 0
        self._held: int | None = None

    def begin(self) -> None:
        """From now on the first signal raises ``EndedBySignal`` in the main thread."""
        self._is_ours = True
        self._held = None
        for number in STOP_SIGNALS:
            signal.signal(number, self._handle)

    def end(self) -> None:
        """From now on a signal ends the process at once and silently, if ``begin`` was called.

        For exit handlers, which must not print a traceback either.
        """
        if self._is_ours:
            self._is_ours = False
            for number in STOP_SIGNALS:
                signal.signal(number, signal.SIG_DFL)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Hold signals until the end of the block."""
        self._holders += 1
        try:
            yield
        finally:
            self._holders -= 1
        if self._held is not None and not self._holders:
            self._raise(self._held)

    def _handle(self, number: int, _: FrameType | None) -> None:
        self.end()
        if self._holders:
            self._held = number
        else:
            self._raise(number)

    def _raise(self, number: int) -> NoReturn:
        self._held = None
        raise EndedBySignal(number)


_orderly_end: Final = _OrderlyEnd()
end_in_order: Final = _orderly_end.begin
end_at_once: Final = _orderly_end.end
held: Final = _orderly_end.held


@contextlib.contextmanager
def blocked_termination() -> Iterator[None]:
    """Hold SIGTERM until the end of the block: Ray would print a stack trace while joining."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
