"""``./run fuzz``: attack a listener on this machine, beside a caller that keeps calling.

    ./run fuzz --seconds 60 --seed 1     all attacks, in an order that the seed decides
    ./run fuzz --minutes 10              also compares how long honest calls take
    ./run fuzz --only hostile_messages   some attacks
    ./run fuzz --replay HEX              one input again; @FILE reads the hex from a file

The target and the honest caller are processes of their own. Exit status 0: the target survived and
began nothing for strangers, its memory did not grow, and no honest call failed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

from fuzz_attacks import ATTACKS, Attack, Delivery, Field
from fuzz_caller import Calls
from fuzz_report import Report
from fuzz_target import LOOPS, Counts, allow_many_files

HERE: Final = Path(__file__).resolve().parent
FAILED_INPUTS: Final = HERE.parents[1] / "build" / "fuzz"
HEX_SHOWN_MAX: Final = 4_000
ANSWER_TIMEOUT_S: Final = 60.0
QUIET_SHARE: Final = 0.12
"""Share of the run before the attacks, and after them."""

LATENCY_SECONDS_MIN: Final = 600.0
SAMPLE_INTERVAL_S: Final = 0.5
PAGE_MIB: Final = os.sysconf("SC_PAGE_SIZE") / 1_048_576


class CrashedError(Exception):
    """The target has ended, or answers no more."""


@dataclass(slots=True)
class Child:
    """A process of this run. It is asked with a line, and answers with one."""

    name: str
    process: asyncio.subprocess.Process

    async def line(self) -> dict[str, Any]:
        """The next line that it prints."""
        assert self.process.stdout is not None
        try:
            line = await asyncio.wait_for(self.process.stdout.readline(), ANSWER_TIMEOUT_S)
        except asyncio.TimeoutError:
            raise CrashedError(
                f"the {self.name} tells nothing for {ANSWER_TIMEOUT_S:.0f} s"
            ) from None
        if not line:
            status = await self.process.wait()
            raise CrashedError(f"the {self.name} has ended with status {status}")
        facts: dict[str, Any] = json.loads(line)
        return facts

    async def ask(self) -> dict[str, Any]:
        """What it has counted."""
        assert self.process.stdin is not None
        with contextlib.suppress(ConnectionError):
            self.process.stdin.write(b"\n")
            await self.process.stdin.drain()
        return await self.line()

    @property
    def resident_mib(self) -> float:
        """Its resident memory; 0.0 once it has ended."""
        try:
            statm = Path(f"/proc/{self.process.pid}/statm").read_text(encoding="ascii")
        except OSError:
            return 0.0
        return int(statm.split()[1]) * PAGE_MIB


@contextlib.asynccontextmanager
async def child(name: str, *words: str) -> AsyncIterator[Child]:
    """Start a process of this folder; it ends with its input, or is killed."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(HERE / f"fuzz_{name}.py"),
        *words,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=16 * 1_048_576,
    )
    try:
        yield Child(name, process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@contextlib.asynccontextmanager
async def target(loop: str) -> AsyncIterator[tuple[Child, int]]:
    """A target that listens, and its port."""
    async with child("target", loop) as started:
        yield started, (await started.line())["port"]


class Run:
    """One run: what is quiet, what is attacked, and the report."""

    def __init__(self, attacked: Child, caller: Child, port: int, seed: int) -> None:
        self.report = Report()
        self.suspects: list[bytes] = []
        self._target = attacked
        self._caller = caller
        self._port = port
        self._seed = seed
        self._number = 0

    async def play(self, attacks: Sequence[Attack], seconds: float) -> None:
        """Quiet, attacks, quiet."""
        quiet_s = seconds * QUIET_SHARE
        # What each process does first takes longest.
        await asyncio.sleep(min(1.0, quiet_s))
        await self._caller.ask()
        await self._phase("before", asyncio.sleep(quiet_s))
        await self._phase("during", self._attack(attacks, seconds - 2 * quiet_s))
        await self._phase("after", asyncio.sleep(quiet_s))

    async def _phase(self, name: str, work: Any) -> None:
        sampling = asyncio.ensure_future(self._sample(name))
        try:
            await work
        finally:
            sampling.cancel()
        self.report.calls[name] = Calls(**await self._caller.ask())
        self.report.counts = Counts(**await self._target.ask())

    async def _sample(self, phase: str) -> None:
        loop, samples = asyncio.get_running_loop(), self.report.memory[phase]
        while True:
            samples.append((loop.time(), self._target.resident_mib))
            await asyncio.sleep(SAMPLE_INTERVAL_S)

    async def _attack(self, attacks: Sequence[Attack], seconds: float) -> None:
        loop = asyncio.get_running_loop()
        end_s = loop.time() + seconds
        lasting = [attack for attack in attacks if attack.lasts]
        beside = [asyncio.ensure_future(self._round(attack, end_s)) for attack in lasting]
        try:
            for attack in _in_turn(attacks, Random(self._seed)):
                if loop.time() >= end_s:
                    break
                await self._round(attack, end_s)
            # They end by themselves, unless the run is too short for that.
            await asyncio.wait(beside, timeout=max(0.1, end_s - loop.time())) if beside else None
            for task in beside:
                if task.done():
                    task.result()
        finally:
            for task in beside:
                task.cancel()

    async def _round(self, attack: Attack, end_s: float) -> None:
        """One attack, and what it did to the target."""
        self._number += 1
        to = Field(self._port, Random(f"{self._seed}/{self._number}"), end_s=end_s)
        try:
            await attack.do(to)
        finally:
            self.report.add(attack.name, to)
            self.suspects = to.inputs
        if attack.lasts:
            # What comes of it meanwhile is counted by the others' rounds: one asks at a time.
            return
        counts = Counts(**await self._target.ask())
        is_fooled = counts.is_fooled(self.report.proved, self.report.proved_servers)
        if is_fooled or not counts.is_clean:
            raise CrashedError(f"{attack.name} did harm")


def _in_turn(attacks: Sequence[Attack], chance: Random) -> Iterator[Attack]:
    """Those that do not last, again and again, each time in another order."""
    order = [attack for attack in attacks if not attack.lasts]
    while order:
        yield from chance.sample(order, len(order))


async def attack(attacks: Sequence[Attack], seconds: float, seed: int, loop: str) -> bool:
    """Run the attacks and say what they showed; whether all was well."""
    async with target(loop) as (attacked, port), child("caller", str(port)) as caller:
        run = Run(attacked, caller, port, seed)
        report = run.report
        try:
            await run.play(attacks, seconds)
        except CrashedError as crash:
            report.crashes.append(str(crash))
            with contextlib.suppress(CrashedError):
                report.counts = Counts(**await attacked.ask())
    for line in report.lines():
        say(line)
    failures = report.failures(checks_latency=seconds >= LATENCY_SECONDS_MIN)
    for failure in failures:
        say(f"FAILED: {failure}")
    if report.crashes:
        await _tell_culprit(run.suspects, loop)
    return not failures


async def _tell_culprit(suspects: Sequence[bytes], loop: str) -> None:
    """Find the input of the last round that does harm alone, and print it."""
    with contextlib.suppress(CrashedError):
        async with target(loop) as (attacked, port):
            to = Field(port, Random(0))
            for data in suspects:
                culprit = data
                await _harm(attacked, to, data)
            say(f"none of the {len(suspects)} inputs of the last round does harm alone")
            return
    shown = culprit.hex()
    if len(shown) > HEX_SHOWN_MAX:
        FAILED_INPUTS.mkdir(parents=True, exist_ok=True)
        (FAILED_INPUTS / "failed.hex").write_text(shown, encoding="ascii")
        shown = f"@{FAILED_INPUTS / 'failed.hex'}"
    say(f"  repeat: ./run fuzz --loop {loop} --replay {shown}")


async def _harm(attacked: Child, to: Field, data: bytes) -> None:
    """Send an input in one piece and in many; ``CrashedError`` if that does harm."""
    for delivery in Delivery:
        await to.play(data, delivery)
        counts = Counts(**await attacked.ask())
        if not counts.is_clean or counts.is_fooled(to.proved, to.proved_servers):
            raise CrashedError("\n".join(counts.errors) or f"{counts}")


async def replay(data: bytes, loop: str) -> bool:
    """Send one input, and say what came back; whether it did no harm."""
    async with target(loop) as (attacked, port):
        to = Field(port, Random(0))
        try:
            await _harm(attacked, to, data)
        except CrashedError as crash:
            say(f"FAILED: {crash}")
            return False
    say(f"no harm; what came back: {dict(to.answers)}")
    return True


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(arguments: Sequence[str]) -> int:
    """Run the command; returns its exit status."""
    options = _parsed(arguments)
    allow_many_files()
    loop = options.loop or Random(options.seed).choice(sorted(LOOPS))
    if options.replay:
        text = options.replay
        if text.startswith("@"):
            text = Path(text[1:]).read_text(encoding="ascii")
        return 0 if asyncio.run(replay(bytes.fromhex(text), loop)) else 1
    seconds = options.seconds if options.minutes is None else 60 * options.minutes
    chosen = [attack for attack in ATTACKS if not options.only or attack.name in options.only]
    say(f"seed {options.seed}: {len(chosen)} attacks for {seconds:.0f} s; the target uses {loop}")
    is_well = asyncio.run(attack(chosen, seconds, options.seed, loop))
    if not is_well:
        say(f"  repeat: ./run fuzz --seconds {seconds:.0f} --seed {options.seed} --loop {loop}")
    return 0 if is_well else 1


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="./run fuzz",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--seconds", type=float, default=60.0, help="length of the run")
    add("--minutes", type=float, help="the same in minutes; from 10 on, latency is judged too")
    add("--seed", type=int, default=1, help="decides what is sent, in which order")
    names = [attack.name for attack in ATTACKS]
    add("--only", nargs="+", choices=names, metavar="ATTACK", help=", ".join(names))
    add("--loop", choices=sorted(LOOPS), help="the target's event loop; else the seed decides")
    add("--replay", metavar="HEX", help="send one input; @FILE has the hex in a file")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
