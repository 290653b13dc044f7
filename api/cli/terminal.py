"""A command and its terminal: output, one-line errors, progress, and signals.

The first SIGINT or SIGTERM ends a command cleanly, a second one at once. A terminal gets colours
and no control characters of others' making; a pipe gets plain text.

An error line reads ``oncelog: <what> — <what to do>``. Errors of the library carry both; an error
without advice gets that of its code's class.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import select
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, NoReturn, TextIO

if TYPE_CHECKING:
    from oncelog.api.cli.arguments import Arguments
    from oncelog.storage.exceptions import OncelogError

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
    from oncelog.storage.exceptions import OncelogError

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


def is_terminal(stream: TextIO) -> bool:
    """Whether people read ``stream`` as it is written."""
    return stream.isatty()


def visible(text: str) -> str:
    """``text`` with its control characters as JSON escapes them: a terminal would obey them."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each in "\n\t" else json.dumps(each)[1:-1] for each in text
    )


def show(args: Arguments, facts: Any, as_text: Callable[[], str]) -> None:
    """Print ``facts`` as ``--output`` says: as JSON, as YAML, or as the text for people."""
    if args.json or args.output == "json":
        say(json.dumps(facts, indent=2))
    elif args.output == "yaml":
        say(as_yaml(facts))
    else:
        say(as_text())


def as_yaml(facts: Any) -> str:
    """What is JSON, as YAML."""
    import yaml

    dump: Any = yaml.safe_dump  # PyYAML has no types.
    plain = json.loads(json.dumps(facts))
    text: str = dump(plain, sort_keys=False, allow_unicode=True, width=sys.maxsize)
    return text.removesuffix("\n")


def fields(pairs: Iterable[tuple[str, object]]) -> str:
    """A line for each name and its value."""
    pairs = list(pairs)
    width = max(len(name) for name, _ in pairs) + 2
    return "\n".join(f"{name:<{width}}{visible(str(value))}" for name, value in pairs)


TERMINAL_ROWS_MAX: Final = 500
"""Longer tables are plain in a terminal too: rich takes a millisecond for a row."""


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Rows under headings; numbers are aligned right, text left. In a terminal lines are folded."""
    values = [list(row) for row in rows]
    cells = [[visible(_cell(value)) for value in row] for row in values]
    is_right = [
        bool(values) and all(row[column] is None or _is_number(row[column]) for row in values)
        for column in range(len(headings))
    ]
    names = [heading.upper() for heading in headings]
    if is_terminal(sys.stdout) and len(cells) <= TERMINAL_ROWS_MAX:
        return _terminal_table(names, cells, is_right)
    widths = [max(map(len, column)) for column in zip(names, *cells, strict=True)]
    lines = [
        "  ".join(
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(line, widths, is_right, strict=True)
        ).rstrip()
        for line in (names, *cells)
    ]
    return "\n".join(lines)


STYLES: Final = {
    **dict.fromkeys(("serving", "following", "alive", "Stable"), "green"),
    **dict.fromkeys(("starting", "draining", "Ongoing"), "yellow"),
    **dict.fromkeys(("offline", "gone", "fenced", "failed", "takes"), "red"),
}
"""The colours of states, by their first word."""


def _terminal_table(
    names: Sequence[str], cells: Sequence[Sequence[str]], is_right: Sequence[bool]
) -> str:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name, right in zip(names, is_right, strict=True):
        shown.add_column(name, justify="right" if right else "left", overflow="fold")
    for row in cells:
        shown.add_row(*(Text(cell, STYLES.get(re.split(r"[ :,;]", cell)[0], "")) for cell in row))
    console = Console(file=sys.stdout)
    with console.capture() as captured:
        console.print(shown)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


# --- progress ---------------------------------------------------------------------------------


@contextlib.contextmanager
def progress(text: str, total: float | None) -> Iterator[Callable[[float], None]]:
    """Show a bar while the block runs: on standard error, and only if that is a terminal.

    The block is given a function to say how much of ``total`` is done. Without a total there is no
    bar.
    """
    if not total or not is_terminal(sys.stderr):
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    console = Console(stderr=True)
    bar = Progress(
        *columns,
        TimeElapsedColumn(),
        console=console,
        transient=True,
        # Lines of the command stand above the bar, but what goes to a pipe goes there.
        redirect_stdout=is_terminal(sys.stdout),
    )
    with bar:
        task = bar.add_task(text, total=total)
        yield lambda done: bar.update(task, completed=done)


# --- texts ------------------------------------------------------------------------------------


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
