"""Processes that a benchmark starts: each in a session of its own, measured and ended by its id.

Everything below a process counts as its: what it started, and what those started.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

STOP_TIMEOUT_S: Final = 60.0
POLL_S: Final = 0.02
LOG_TAIL_CHARACTERS: Final = 2_000

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


class Life(NamedTuple):
    """A process that no other is mistaken for: ids are used again."""

    process_id: int
    start_ticks: int


class _Stat(NamedTuple):
    parent_id: int
    busy_ticks: int
    start_ticks: int


def spawn(
    command: Sequence[object], log: Path, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a process in its own session, its output appended to ``log``.

    ``environment`` is ours by default.
    """
    with log.open("ab") as output:
        return subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )


def wait_for(
    condition: Callable[[], object],
    process: subprocess.Popen[bytes],
    log: Path,
    timeout_s: float,
) -> None:
    """Poll until ``condition`` holds; RuntimeError with the end of the log if it never does."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        status = process.poll()
        if status is not None or time.monotonic() > deadline:
            what = f"ended with {status}" if status is not None else f"not up in {timeout_s:.0f} s"
            raise RuntimeError(f"{what}: {tail(log)}")
        time.sleep(POLL_S)


def tail(log: Path) -> str:
    """The end of a log file."""
    return log.read_text(encoding="utf-8", errors="replace")[-LOG_TAIL_CHARACTERS:].strip()


def family(process_id: int) -> list[Life]:
    """The process and all below it that live."""
    stats = {int(path.name): _stat_of(path) for path in Path("/proc").iterdir() if _is_id(path)}
    children: dict[int, list[int]] = {}
    for child, stat in stats.items():
        if stat is not None:
            children.setdefault(stat.parent_id, []).append(child)
    found, left = [], [process_id]
    while left:
        current = left.pop()
        stat = stats.get(current)
        if stat is not None:
            found.append(Life(current, stat.start_ticks))
            left += children.get(current, [])
    return found


def memory_mb(process_id: int) -> float:
    """Proportional set size of the family: pages that several share count once, in MB."""
    return sum(_pss_kb(life.process_id) for life in family(process_id)) / 1_000


def busy_cores(process_id: int, window_s: float) -> float:
    """Processors that the family keeps busy during a window from now on."""
    lives = family(process_id)
    before, started = _busy_s(lives), time.perf_counter()
    time.sleep(window_s)
    return (_busy_s(lives) - before) / (time.perf_counter() - started)


def start_s(life: Life) -> float:
    """When the process began, on the clock of ``time.clock_gettime(CLOCK_BOOTTIME)``."""
    return life.start_ticks / _TICKS_PER_S


def stop(process: subprocess.Popen[bytes], timeout_s: float = STOP_TIMEOUT_S) -> None:
    """Ask the process to end, wait, and kill whatever of its family is left then."""
    lives = family(process.pid)
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout_s)
    kill(lives)
    process.wait(timeout_s)


def kill_family(process: subprocess.Popen[bytes]) -> None:
    """``kill -9`` the process and everything below it at once."""
    kill(family(process.pid))
    process.wait(STOP_TIMEOUT_S)


def kill(lives: Sequence[Life]) -> None:
    """``kill -9`` those that still live, and wait until they are gone."""
    for life in lives:
        if is_alive(life):
            try:
                os.kill(life.process_id, signal.SIGKILL)
            except ProcessLookupError:
                continue
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while any(is_alive(life) for life in lives) and time.monotonic() < deadline:
        time.sleep(POLL_S)


def is_alive(life: Life) -> bool:
    """Whether that very process runs; one that nobody has waited for does not."""
    path = Path("/proc") / str(life.process_id)
    stat = _stat_of(path)
    return stat is not None and stat.start_ticks == life.start_ticks and not _is_zombie(path)


def _is_id(path: Path) -> bool:
    return path.name.isdigit()


def _fields(path: Path) -> list[str]:
    """What follows the program's name, which may hold any character, in ``stat``."""
    try:
        text = (path / "stat").read_text(encoding="ascii", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return []
    return text.rpartition(")")[2].split()


def _is_zombie(path: Path) -> bool:
    return _fields(path)[:1] in ([], ["Z"])


def _stat_of(path: Path) -> _Stat | None:
    fields = _fields(path)
    if not fields:
        return None
    return _Stat(int(fields[1]), int(fields[11]) + int(fields[12]), int(fields[19]))


def _busy_s(lives: Sequence[Life]) -> float:
    stats = (_stat_of(Path("/proc") / str(life.process_id)) for life in lives)
    return sum(stat.busy_ticks for stat in stats if stat is not None) / _TICKS_PER_S


def _pss_kb(process_id: int) -> int:
    try:
        text = Path(f"/proc/{process_id}/smaps_rollup").read_text(encoding="ascii")
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))
