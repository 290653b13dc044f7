"""Hurts a cluster in five ways, and tells what the console said, and how soon.

    python docs/tools/night_exercise.py [DIRECTORY]

A browser is open at the overview, as for a person who has just been woken, and nothing is reloaded
by hand. For each fault there is a row of a table: the seconds until a page tells of it, those until
it tells what to type, both counted from the fault, and the seconds from that to a well cluster.
Pictures of what was shown go to the directory. Needs root, for a disk per node, and Chromium. The
helpers of the tests must be importable.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from console_nodes import browser, console, small_disk, three_brokers, traffic, why_no_browser
from ray_nodes import Nodes

DISK_BYTES: Final = 300_000_000
"""Of broker 2, whose disk is filled."""
LOOK_S: Final = 0.1
"""Between two looks at a page, which refreshes itself every two seconds."""
PATIENCE_S: Final = 120
OVERVIEW: Final = "/"
ALL_IS_WELL: Final = "nothing is wrong"


@dataclass(frozen=True, slots=True)
class Look:
    """What is looked for, on a page that a click leads to; the first is open already."""

    path: str
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault: the looks of who finds it, and what he then gives to end it."""

    name: str
    looks: tuple[Look, ...]
    begin: Callable[[], object]
    given: str
    end: Callable[[], object]
    well: Look = Look(OVERVIEW, ALL_IS_WELL)


def main() -> int:
    """Go through the faults; print a table in Markdown."""
    if reason := why_no_browser():
        sys.stderr.write(f"night exercise: {reason}\n")
        return 1
    directory = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    with (
        tempfile.TemporaryDirectory() as root,
        small_disk(Path(root) / "two", DISK_BYTES),
        three_brokers(Path(root)) as nodes,
        traffic(nodes, "asked") as program,
        console(nodes, "--title", "flights, three brokers") as address,
        browser(width=1_180, height=860) as driver,
    ):
        page = Page(driver, address, directory)
        for what in ("producer", "consumer"):
            ask(program, f"begin {what}")
        print_row("fault", "a page tells of it", "what it tells", "given", "then well after")
        print_row(*["---"] * 5)
        for number, fault in enumerate(faults(nodes, program, Path(root))):
            print_row(*tried(page, fault, f"night-{number + 1}"))
    return 0


def print_row(*cells: str) -> None:
    """One row of the table."""
    sys.stdout.write(f"| {' | '.join(cells)} |\n")
    sys.stdout.flush()


def faults(nodes: Nodes, program: subprocess.Popen[str], root: Path) -> Iterator[Fault]:
    """In the order in which they are tried; each is over before the next."""
    yield Fault(
        name="A program leaves its transaction open, so readers wait",
        looks=(
            Look(OVERVIEW, "flights-0"),
            Look("/topics/flights", "left-open"),
            Look("/transaction?id=left-open", "oncelog transactions abort left-open"),
        ),
        begin=lambda: ask(program, "leave open"),
        given="`oncelog transactions abort left-open`",
        end=lambda: run(nodes, "oncelog transactions abort left-open"),
        well=Look("/transaction?id=left-open", "CompleteAbort"),
    )
    yield Fault(
        name="A broker's node is gone (kill -9)",
        looks=(Look(OVERVIEW, "broker away"), Look(OVERVIEW, "start its node again")),
        begin=lambda: nodes.kill_raylet_of("three"),
        given="`ray start` on that node",
        end=lambda: nodes.start_node("three", "127.0.0.3", labels="broker=3,rack=c"),
    )
    stopped: list[int] = []
    yield Fault(
        name="A process that holds partitions hangs (SIGSTOP)",
        looks=(Look(OVERVIEW, "does not answer"), Look(OVERVIEW, "end the process")),
        begin=lambda: stopped.append(stop_holder(nodes)),
        given="`kill -9` of the process that `ray list actors` names",
        end=lambda: os.kill(stopped[0], signal.SIGKILL),
    )
    filler = root / "two" / "filler"
    yield Fault(
        name="A disk is full",
        looks=(Look(OVERVIEW, "disk refuses"), Look(OVERVIEW, "make room on its disk")),
        begin=lambda: fill(filler),
        given="`rm` of what does not belong there",
        end=filler.unlink,
    )
    yield Fault(
        name="The consumers of a group have ended",
        looks=(Look("/groups", "Empty"), Look("/group?id=billing", "oncelog groups describe")),
        begin=lambda: ask(program, "end consumer"),
        given="the program started again",
        end=lambda: ask(program, "begin consumer"),
        well=Look("/group?id=billing", "Stable"),
    )


class Page:
    """The page that is open."""

    def __init__(self, driver: Any, address: str, directory: Path | None) -> None:
        self._driver = driver
        self._address = address
        self._directory = directory

    def go_to(self, path: str) -> None:
        """Open it, unless it is open."""
        if self._driver.current_url != self._address + path:
            self._driver.get(self._address + path)

    def wait_for(self, words: str) -> str:
        """The line that has ``words``, once there is one."""
        script = "return document.querySelector('main')?.innerText ?? ''"
        until_s = time.monotonic() + PATIENCE_S
        shown = ""
        while time.monotonic() < until_s:
            shown = str(self._driver.execute_script(script))
            for line in shown.splitlines():
                if words in line:
                    return line.strip()
            time.sleep(LOOK_S)
        raise TimeoutError(f"{words!r} is not on the page after {PATIENCE_S} s:\n{shown}")

    def save(self, name: str) -> None:
        """Keep a picture of it."""
        if self._directory is not None:
            self._driver.save_screenshot(str(self._directory / f"{name}.png"))


def tried(page: Page, fault: Fault, picture: str) -> tuple[str, ...]:
    """Inject a fault, find it, end it; the row of the table."""
    page.go_to(fault.looks[0].path)
    fault.begin()
    begun_s = time.monotonic()
    took_s, lines = [], []
    for look in fault.looks:
        page.go_to(look.path)
        line = page.wait_for(look.words)
        took_s.append(time.monotonic() - begun_s)
        lines.append(line.replace("\t", " · "))
    page.save(picture)
    fault.end()
    ended_s = time.monotonic()
    page.go_to(fault.well.path)
    page.wait_for(fault.well.words)
    well_s = time.monotonic() - ended_s
    told = f"{took_s[0]:.1f} s; what to type: {took_s[-1]:.1f} s"
    return fault.name, told, " → ".join(dict.fromkeys(lines)), fault.given, f"{well_s:.1f} s"


def ask(program: subprocess.Popen[str], what: str) -> None:
    """Have the program of the traffic do something; it has done so on return."""
    assert program.stdin is not None
    assert program.stdout is not None
    program.stdin.write(what + "\n")
    program.stdin.flush()
    # Ray prints there too what it has to say of its nodes.
    for line in program.stdout:
        if line == f"{what}\n":
            return
    raise EOFError(what)


def stop_holder(nodes: Nodes) -> int:
    """Stop a process of broker 2 that holds partitions; its number."""
    actors = nodes.status()["actors"]
    process_id = next(
        int(one["process_id"])
        for one in actors
        if one["name"].startswith("partition:flights-") and one["name"].endswith("@2")
    )
    os.kill(process_id, signal.SIGSTOP)
    return process_id


def run(nodes: Nodes, command: str) -> None:
    """What the person at night types."""
    done = nodes.run(*shlex.split(command)[1:])
    assert done.returncode == 0, done.stderr


def fill(filler: Path) -> None:
    """Fill the disk to its last block."""
    for piece_bytes in (1_048_576, 4_096):
        with contextlib.suppress(OSError), filler.open("ab", buffering=0) as file:
            while True:
                file.write(bytes(piece_bytes))


if __name__ == "__main__":
    sys.exit(main())
