"""A matrix of deaths on RayDP: one process of Spark is killed at each step of each kind of write.

    ./run deaths --directory DIR
    ./run deaths --directory DIR --minutes 20 --seed 3
    ./run deaths --directory DIR --only 'save/driver-java/*' --only '*/executor/rows'

A cell is KIND/VICTIM/STEP. With --minutes it ends with the first cell that is done later, in an
order that --seed chooses. The exit status is 0 if every cell that was done is right, and one was.
DIR/cells has a directory for each, DIR/drivers what each start of the program printed.
"""

from __future__ import annotations

import argparse
import os
import random
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from deaths.cells import Cell, chosen
from deaths.judging import SETTLED_WITHIN_S, judge, seconds_until_empty, unsettled
from deaths.rows import AGAIN, DONE, PARTITIONS, SOURCE_ROWS, SOURCE_TOPIC, STRUCK
from deaths.spark_processes import MARK, spark_processes

import oncelog

CELL_TIMEOUT_S: Final = 600.0
"""For one cell with the start of its session, on a machine that is busy with other things."""
GONE_WITHIN_S: Final = 30.0
"""How soon after its driver no process of a Spark is left."""
LOOK_S: Final = 0.1
NUM_CPUS: Final = 4

Say = Callable[[str], None]


class Campaign:
    """Runs cells on one cluster, judges each, and keeps what is wrong in ``wrong``."""

    def __init__(self, cluster: Any, directory: Path, say: Say) -> None:
        self._cluster = cluster
        self._directory = directory
        self._say = say
        self._starts = 0
        self.wrong: dict[str, list[str]] = {}
        self.done = 0
        admin = cluster.admin()
        admin.create_topic(SOURCE_TOPIC, PARTITIONS)
        with cluster.producer() as producer:
            for number in range(SOURCE_ROWS):
                value = f"row-{number}".encode()
                producer.send(SOURCE_TOPIC, value=value, partition=number % PARTITIONS)

    def run(self, cells: Sequence[Cell], until_s: float) -> None:
        """Run the cells that begin before ``until_s`` of the monotonic clock."""
        left = list(cells)
        while left and time.monotonic() < until_s:
            for cell in left:
                self._cluster.admin().create_topic(cell.topic, PARTITIONS, exist_ok=True)
            left = self._run_program(left, until_s)

    def _home(self, cell: Cell) -> Path:
        return self._directory / "cells" / cell.topic

    def _run_program(self, cells: list[Cell], until_s: float) -> list[Cell]:
        """Start the program; the cells that are left when it has ended, in order."""
        self._starts += 1
        log_path = self._directory / "drivers" / f"{self._starts}.log"
        log_path.parent.mkdir(exist_ok=True)
        command = [sys.executable, "-m", "deaths.job", self._cluster.address, str(self._directory)]
        left = list(cells)
        with log_path.open("wb") as log:
            program = subprocess.Popen(
                [*command, *[cell.name for cell in cells]],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONWARNINGS": "ignore"},
            )
        try:
            problem = self._follow(program, left, until_s)
        finally:
            program.kill()
            program.wait()
        ended = self._watch_the_end(left[0] if left else None)
        if time.monotonic() > until_s or not left:
            return []
        if not problem and self._is_death_of(left[0]):
            self._say(f"  {left[0].name}: its driver died; {ended}")
        else:
            self._fail(left.pop(0), f"{problem or 'the program failed'}, see {log_path}")
        return left

    def _follow(self, program: subprocess.Popen[bytes], left: list[Cell], until_s: float) -> str:
        """Judge cells as they get done, until the program ends, or why it has to be ended."""
        deadline_s = time.monotonic() + CELL_TIMEOUT_S
        has_been_seen = False
        while program.poll() is None:
            time.sleep(LOOK_S)
            has_been_seen = has_been_seen or bool(spark_processes())
            if self._take_done(left):
                deadline_s = time.monotonic() + CELL_TIMEOUT_S
                if time.monotonic() > until_s:
                    return ""
            if time.monotonic() > deadline_s:
                return f"not done in {CELL_TIMEOUT_S:.0f} s"
        self._take_done(left)
        # Else it would not be seen either when it is left behind.
        return "" if has_been_seen else "no process of its Spark was seen"

    def _is_death_of(self, cell: Cell) -> bool:
        """Whether it ended because its driver was killed, and not a second time."""
        again = self._home(cell) / AGAIN
        is_first = cell.kills_driver and (self._home(cell) / STRUCK).exists() and not again.exists()
        if is_first:
            again.touch()
        return is_first

    def _take_done(self, left: list[Cell]) -> bool:
        """Judge the cells at the head of ``left`` that are done, and drop them."""
        before = len(left)
        while left and (self._home(left[0]) / DONE).exists():
            cell = left.pop(0)
            found = judge(self._cluster, cell, self._home(cell)) + self.wrong.get(cell.name, [])
            if found:
                self.wrong[cell.name] = found
            self.done += 1
            self._say(f"{cell.name}: {'; '.join(found) or 'right'}")
        return len(left) < before

    def _fail(self, cell: Cell, what: str) -> None:
        self.wrong.setdefault(cell.name, []).append(what)
        self.done += 1
        self._say(f"{cell.name}: {what}")

    def _watch_the_end(self, cell: Cell | None) -> str:
        """After the end of a driver: nothing of its Spark is left, and nothing it wrote is open."""
        _, told = seconds_until_empty(spark_processes, GONE_WITHIN_S)
        if told and cell is not None:
            self._fail_end(cell, f"left after {GONE_WITHIN_S:.0f} s: {told}")
        elif told:
            self._say(f"  left after {GONE_WITHIN_S:.0f} s: {told}")
        if cell is None:
            return ""
        gone_s = time.time() - self._struck_s(cell)
        _, told = seconds_until_empty(
            lambda: unsettled(self._cluster, cell.topic), SETTLED_WITHIN_S
        )
        open_s = time.time() - self._struck_s(cell)
        if told:
            self._fail_end(cell, f"{SETTLED_WITHIN_S:.0f} s after the driver's death: {told}")
        return f"its Spark was gone after {gone_s:.1f} s, its transaction after {open_s:.1f} s"

    def _struck_s(self, cell: Cell) -> float:
        """When the cell's victim was killed, in seconds since 1970; now if it was not."""
        path = self._home(cell) / STRUCK
        return float(path.read_text().split()[0]) if path.exists() else time.time()

    def _fail_end(self, cell: Cell, what: str) -> None:
        self.wrong.setdefault(cell.name, []).append(what)
        self._say(f"  {cell.name}: {what}")


def main(argv: Sequence[str] | None = None) -> int:
    """Start a cluster in the directory, run the cells on it, print what came of them."""
    parser = argparse.ArgumentParser(
        prog="./run deaths",
        description=__doc__,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--directory", type=Path, required=True, help="an empty one, or none")
    parser.add_argument("--only", action="append", metavar="CELL", help="a name, or a pattern")
    parser.add_argument("--minutes", type=float, help="end after so many; default: all cells")
    parser.add_argument("--seed", type=int, help="the order of the cells, with --minutes")
    arguments = parser.parse_args(argv)
    directory: Path = arguments.directory.absolute()
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        parser.error(f"--directory {directory} is not empty: give another one")
    if arguments.minutes is not None and arguments.minutes <= 0:
        parser.error(f"--minutes {arguments.minutes}: give more than 0")
    try:
        cells = chosen(arguments.only or ["*"])
    except ValueError as error:
        parser.error(f"--only: {error}")

    def say(line: str) -> None:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    until_s = float("inf")
    if arguments.minutes is not None:
        seed = (
            arguments.seed if arguments.seed is not None else random.SystemRandom().getrandbits(32)
        )
        random.Random(seed).shuffle(cells)
        until_s = time.monotonic() + 60 * arguments.minutes
        say(f"seed {seed}")
    wrong, done = _run(directory, cells, until_s, say)
    say(f"cells         {done} of {len(cells)}")
    for name, found in wrong.items():
        say(f"WRONG         {name}: {'; '.join(found)}")
    say(f"verdict       {'wrong' if wrong or not done else 'right'}")
    return 1 if wrong or not done else 0


def _run(
    directory: Path, cells: Sequence[Cell], until_s: float, say: Say
) -> tuple[dict[str, list[str]], int]:
    """What is wrong by cell, and how many were done."""
    import ray

    # Ray's processes have it too, and so have the executors that they start.
    os.environ[MARK] = secrets.token_hex(8)
    cluster = oncelog.init(directory / "data", num_cpus=NUM_CPUS)
    try:
        campaign = Campaign(cluster, directory, say)
        campaign.run(cells, until_s)
        return campaign.wrong, campaign.done
    finally:
        cluster.shutdown()
        ray.shutdown()
