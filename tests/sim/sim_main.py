"""``./run sim``: simulate seed after seed for a while, and shrink what fails.

    ./run sim --seconds 60 --seed 1             seeds 1, 2, … for 60 s
    ./run sim --seed 17 --runs 1                one seed, again
    ./run sim --fresh --runs 10000 --seconds 14400
                                                seeds never run before, as every night
    ./run sim --seed 17 --runs 1 --set kill=0 --set duration_s=5
                                                the same with parts of its scenario changed
    ./run sim --runs 5 --history DIR            also write what clients saw, as a campaign does

Exit status 0: every run was clean, and most of them said something: see ``Result.is_vacuous``.
"""

from __future__ import annotations

import argparse
import ast
import gc
import itertools
import math
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from random import Random, SystemRandom
from typing import Any

from sim_shrink import shortened
from sim_swarm import Result, drawn_scenario, run_scenario

JOBS_MAX = 2
RUNS_WITHOUT_LIMIT = 1_000_000
SHRINK_BUDGET_S = 120.0
SEED_MAX = 2**32
VACUOUS_SHARE_MAX = 0.25
"""More vacuous runs than this, by more than chance, are a failure: the simulator has gone blind."""
DEVIATIONS_MAX = 3.0
"""How many standard deviations of their number count as chance."""
PROGRESS_RUNS = 500


@dataclass(slots=True)
class Totals:
    """What all runs together did."""

    runs: int = 0
    vacuous: list[int] = field(default_factory=list)
    failed: list[int] = field(default_factory=list)
    events: int = 0
    virtual_s: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    fault_counts: Counter[str] = field(default_factory=Counter)

    @property
    def says_little(self) -> bool:
        """Whether too many runs were vacuous."""
        expected = self.runs * VACUOUS_SHARE_MAX
        by_chance = DEVIATIONS_MAX * math.sqrt(expected * (1 - VACUOUS_SHARE_MAX))
        return len(self.vacuous) > min(expected + by_chance, max(0, self.runs - 1))

    def add(self, result: Result) -> None:
        """One more run."""
        seed = result.scenario.seed
        self.runs += 1
        self.events += result.event_count
        self.virtual_s += result.virtual_s
        self.counts += result.counts
        self.fault_counts += result.fault_counts
        if result.violations:
            self.failed.append(seed)
        elif result.is_vacuous:
            self.vacuous.append(seed)


def one_run(seed: int, changes: dict[str, Any], directory: Path | None = None) -> Result:
    """What a worker process does."""
    path = None if directory is None else directory / f"seed-{seed}.jsonl"
    return run_scenario(drawn_scenario(seed).changed(changes), path)


def main(arguments: list[str]) -> int:
    """Run the command; returns its exit status."""
    options = _parsed(arguments)
    changes = dict(_change(text) for text in options.set)
    try:
        drawn_scenario(0).changed(changes)
    except ValueError as error:
        raise SystemExit(f"--set {error}") from None
    begin = f"{options.seed}" if options.fresh is None else f"draw {options.fresh}"
    say(f"seeds from {begin}; {_amount(options)}")
    totals, first_failure = Totals(), None
    started_s = time.monotonic()
    for result in _results(options, changes):
        totals.add(result)
        if totals.runs % PROGRESS_RUNS == 0:
            say(f"{totals.runs} runs after {time.monotonic() - started_s:.0f} s")
        if result.violations:
            first_failure = first_failure or result
            seed = result.scenario.seed
            say(f"seed {seed} FAILED: {_summary(result)}\n  repeat: {_command(seed, changes)}")
            if not options.keep_going:
                break
    _tell(totals, time.monotonic() - started_s)
    if first_failure is not None:
        _tell_failure(first_failure, changes, shrinks=options.shrink)
        return 1
    if totals.says_little:
        say("too little was shown: vacuous runs lack commits, aborts, readers of both levels or")
        say("three kinds of faults")
        return 1
    return 0


def _parsed(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./run sim", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    fresh = "seeds of chance; with a number, those of that draw again"
    draw = SystemRandom().randrange(SEED_MAX)
    parser.add_argument("--fresh", type=int, nargs="?", const=draw, metavar="DRAW", help=fresh)
    parser.add_argument("--seconds", type=float, help="begin no run after this many seconds")
    parser.add_argument("--runs", type=int, help="at most this many seeds")
    parser.add_argument("--jobs", type=int, default=JOBS_MAX, help=f"processes, to {JOBS_MAX}")
    parser.add_argument("--set", action="append", default=[], help="NAME=VALUE of a scenario")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at a failure")
    parser.add_argument("--no-shrink", dest="shrink", action="store_false")
    parser.add_argument("--history", type=Path, metavar="DIR", help="a directory, empty or new")
    options = parser.parse_args(arguments)
    if options.history is not None:
        options.history.mkdir(parents=True, exist_ok=True)
        if any(options.history.iterdir()):
            parser.error(f"--history {options.history}: there is something in it; name another")
    if options.seconds is None and options.runs is None:
        options.seconds = 60.0
    if not 1 <= options.jobs <= JOBS_MAX:
        parser.error(f"--jobs {options.jobs}: give 1 to {JOBS_MAX}")
    return options


def _change(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise SystemExit(f"--set {text}: give NAME=VALUE")
    return name, ast.literal_eval(value)


def _results(options: argparse.Namespace, changes: dict[str, Any]) -> Iterator[Result]:
    """Results as they come, not quite in the order of seeds."""
    deadline_s = time.monotonic() + (options.seconds or float("inf"))
    limit = RUNS_WITHOUT_LIMIT if options.runs is None else options.runs
    if options.fresh is None:
        seeds = iter(range(options.seed, options.seed + limit))
    else:
        seeds = itertools.islice(fresh_seeds(options.fresh), limit)
    running: set[Future[Result]] = set()
    # Not forked: a test session may have threads by then.
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.jobs, spawn, initializer=collect_seldom) as pool:
        try:
            while True:
                while len(running) < options.jobs and time.monotonic() < deadline_s:
                    seed = next(seeds, None)
                    if seed is None:
                        break
                    running.add(pool.submit(one_run, seed, changes, options.history))
                if not running:
                    return
                done, running = wait(running, return_when=FIRST_COMPLETED)
                yield from sorted((item.result() for item in done), key=_seed_of)
        finally:
            for future in running:
                future.cancel()


def fresh_seeds(draw: int) -> Iterator[int]:
    """Seeds without end; the same ones for the same draw."""
    random = Random(f"swarm {draw}")
    while True:
        yield random.randrange(SEED_MAX)


def collect_seldom() -> None:
    """A run leaves little that only the collector frees, and each of its passes costs."""
    gc.set_threshold(100_000, 50, 100)


def _seed_of(result: Result) -> int:
    return result.scenario.seed


# --- telling ----------------------------------------------------------------------------------


def say(text: str) -> None:
    """One paragraph for the person at the terminal."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _amount(options: argparse.Namespace) -> str:
    runs = "" if options.runs is None else f"{options.runs} runs"
    seconds = "" if options.seconds is None else f"{options.seconds:g} s"
    return " or ".join(part for part in (runs, seconds) if part)


def _command(seed: int, changes: dict[str, Any]) -> str:
    sets = "".join(f" --set '{name}={value!r}'" for name, value in changes.items())
    return f"./run sim --seed {seed} --runs 1{sets}"


def _summary(result: Result) -> str:
    return str(result.violations[0])


def _tell(totals: Totals, seconds: float) -> None:
    per_second = 1 / seconds if seconds else 0.0
    say(
        f"{totals.runs} runs in {seconds:.1f} s ({totals.runs * per_second:.2f}/s): "
        f"{totals.events} events ({totals.events * per_second:.0f}/s), "
        f"{totals.virtual_s:.0f} s of virtual time, {len(totals.failed)} failed, "
        f"{len(totals.vacuous)} vacuous{_numbers(totals.vacuous)}"
    )
    say("  done and checked: " + _listed(totals.counts))
    say("  faults: " + _listed(totals.fault_counts))


def _numbers(seeds: list[int]) -> str:
    return f" ({', '.join(map(str, seeds[:10]))})" if seeds else ""


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())) or "none"


def _tell_failure(result: Result, changes: dict[str, Any], *, shrinks: bool) -> None:
    if shrinks:
        say(f"shortening seed {result.scenario.seed}, for up to {SHRINK_BUDGET_S:.0f} s")
        more, result = shortened(result, time.monotonic, SHRINK_BUDGET_S)
        changes = changes | more
    for violation in result.violations:
        say(f"  {violation}")
    say(f"--- the end of the story, about {result.violations[0].about}")
    say(result.story)
    say(f"--- {result.checker} failed; repeat: {_command(result.scenario.seed, changes)}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
