"""``./run fuzz``: attack two listeners on this machine, beside a caller that keeps calling both.

One has certificates and the other none. Strangers come to each as they should, and also without
TLS to the one that has certificates.

    ./run fuzz --seconds 60 --seed 1     all attacks, in an order that the seed decides
    ./run fuzz --minutes 10              also compares how long honest calls take
    ./run fuzz --only hostile_messages   some attacks
    ./run fuzz --ways tls bare           those on the listener with certificates
    ./run fuzz --replay HEX --ways tls   one input again; @FILE reads the hex from a file
    ./run fuzz --door kafka --seconds 60 the port for Kafka's clients, with attacks of its own

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
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final, TypeAlias

import uvloop
from fuzz_attacks import ATTACKS, Attack, Delivery, Field, Files, Listeners, Way
from fuzz_caller import Calls
from fuzz_kafka_attacks import KAFKA_ATTACKS, KafkaField
from fuzz_report import Report
from fuzz_target import LOOPS, Counts, allow_many_files

HERE: Final = Path(__file__).resolve().parent
HELPERS: Final = HERE.parent / "helpers"
FAILED_INPUTS: Final = HERE.parents[1] / "build" / "fuzz"
HEX_SHOWN_MAX: Final = 4_000
ANSWER_TIMEOUT_S: Final = 60.0
QUIET_SHARE: Final = 0.12
"""Share of the run before the attacks, and after them."""

LATENCY_SECONDS_MIN: Final = 600.0
SAMPLE_INTERVAL_S: Final = 0.5
PAGE_MIB: Final = os.sysconf("SC_PAGE_SIZE") / 1_048_576


Round: TypeAlias = "tuple[Attack, Way]"

SCALES: Final = {Way.PLAIN: 0.5, Way.TLS: 0.15, Way.BARE: 0.3}
"""In a minute, so that each attack comes; in more up to 1. TLS computes for a ms a connection."""


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


@dataclass(frozen=True, slots=True)
class Door:
    """What is attacked: the attacks, and how the files of its target and its caller begin."""

    attacks: tuple[Attack, ...]
    field: type[Field]
    prefix: str = ""


DOORS: Final = {
    "actors": Door(ATTACKS, Field),
    "kafka": Door(KAFKA_ATTACKS, KafkaField, "kafka_"),
}


@contextlib.asynccontextmanager
async def child(name: str, files: Files, *words: str) -> AsyncIterator[Child]:
    """Start a process of this folder; it ends with its input, or is killed."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(HERE / f"fuzz_{name}.py"),
        *words,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, **files.known, "PYTHONPATH": str(HELPERS)},
        limit=16 * 1_048_576,
    )
    try:
        yield Child(name, process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@contextlib.asynccontextmanager
async def target(loop: str, files: Files, door: Door) -> AsyncIterator[tuple[Child, Listeners]]:
    """A target that listens."""
    async with child(f"{door.prefix}target", files, loop) as started:
        yield started, Listeners.at(await started.line(), files)


class Run:
    """One run: what is quiet, what is attacked, and the report."""

    def __init__(
        self, attacked: Child, caller: Child, listeners: Listeners, seed: int, field: type[Field]
    ) -> None:
        self._field = field
        self.report = Report()
        self.suspects: tuple[Way, list[bytes]] = (Way.PLAIN, [])
        self._target = attacked
        self._caller = caller
        self._listeners = listeners
        self._seed = seed
        self._number = 0
        self._scales = SCALES

    async def play(self, rounds: Sequence[Round], seconds: float) -> None:
        """Quiet, attacks, quiet."""
        longer = max(1.0, seconds / 60)
        self._scales = {way: min(1.0, scale * longer) for way, scale in SCALES.items()}
        quiet_s = seconds * QUIET_SHARE
        # What each process does first takes longest.
        await asyncio.sleep(min(1.0, quiet_s))
        await self._caller.ask()
        await self._phase("before", asyncio.sleep(quiet_s))
        await self._phase("during", self._attack(rounds, seconds - 2 * quiet_s))
        await self._phase("after", asyncio.sleep(quiet_s))

    async def _phase(self, name: str, work: Any) -> None:
        sampling = asyncio.ensure_future(self._sample(name))
        try:
            await work
        finally:
            sampling.cancel()
        told = await self._caller.ask()
        self.report.calls[name] = {of: Calls(**facts) for of, facts in told.items()}
        self.report.counts = Counts(**await self._target.ask())

    async def _sample(self, phase: str) -> None:
        loop, samples = asyncio.get_running_loop(), self.report.memory[phase]
        while True:
            samples.append((loop.time(), self._target.resident_mib))
            await asyncio.sleep(SAMPLE_INTERVAL_S)

    async def _attack(self, rounds: Sequence[Round], seconds: float) -> None:
        loop = asyncio.get_running_loop()
        end_s = loop.time() + seconds
        lasting = [(attack, way) for attack, way in rounds if attack.lasts]
        beside = [asyncio.ensure_future(self._round(*one, end_s)) for one in lasting]
        try:
            for attack, way in _in_turn(rounds, Random(self._seed)):
                if loop.time() >= end_s:
                    break
                await self._round(attack, way, end_s)
            # They end by themselves, unless the run is too short for that.
            await asyncio.wait(beside, timeout=max(0.1, end_s - loop.time())) if beside else None
            for task in beside:
                if task.done():
                    task.result()
        finally:
            for task in beside:
                task.cancel()

    async def _round(self, attack: Attack, way: Way, end_s: float) -> None:
        """One attack, and what it did to the target."""
        self._number += 1
        chance = Random(f"{self._seed}/{self._number}")
        to = self._field(self._listeners, way, chance, self._scales[way], end_s=end_s)
        try:
            await attack.do(to)
        finally:
            self.report.add(f"{attack.name}/{way.value}", to)
            self.suspects = way, to.inputs
        if attack.lasts:
            # What comes of it meanwhile is counted by the others' rounds: one asks at a time.
            return
        counts = Counts(**await self._target.ask())
        is_fooled = counts.is_fooled(self.report.proved, self.report.proved_servers)
        if is_fooled or not counts.is_clean:
            raise CrashedError(f"{attack.name} ({way.value}) did harm")


def _in_turn(rounds: Sequence[Round], chance: Random) -> Iterator[Round]:
    """Those that do not last, again and again, each time in another order."""
    order = [(attack, way) for attack, way in rounds if not attack.lasts]
    while order:
        yield from chance.sample(order, len(order))


async def attack(
    rounds: Sequence[Round], seconds: float, seed: int, loop: str, files: Files, door: Door
) -> bool:
    """Run the attacks and say what they showed; whether all was well."""
    async with contextlib.AsyncExitStack() as stack:
        attacked, listeners = await stack.enter_async_context(target(loop, files, door))
        ports = map(str, (listeners.plain_port, listeners.tls_port))
        caller = await stack.enter_async_context(child(f"{door.prefix}caller", files, *ports))
        run = Run(attacked, caller, listeners, seed, door.field)
        report = run.report
        try:
            await run.play(rounds, seconds)
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
        await _tell_culprit(*run.suspects, loop, files, door)
    return not failures


async def _tell_culprit(
    way: Way, suspects: Sequence[bytes], loop: str, files: Files, door: Door
) -> None:
    """Find the input of the last round that does harm alone, and print it."""
    with contextlib.suppress(CrashedError):
        async with target(loop, files, door) as (attacked, listeners):
            to = door.field(listeners, way, Random(0))
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
    say(f"  repeat: ./run fuzz{_named(door)} --loop {loop} --ways {way.value} --replay {shown}")


async def _harm(attacked: Child, to: Field, data: bytes) -> None:
    """Send an input in one piece and in many; ``CrashedError`` if that does harm."""
    for delivery in Delivery:
        await to.play(data, delivery)
        counts = Counts(**await attacked.ask())
        if not counts.is_clean or counts.is_fooled(to.proved, to.proved_servers):
            raise CrashedError("\n".join(counts.errors) or f"{counts}")


async def replay(data: bytes, ways: Sequence[Way], loop: str, files: Files, door: Door) -> bool:
    """Send one input each of these ways, and say what came back; whether it did no harm."""
    async with target(loop, files, door) as (attacked, listeners):
        for way in ways:
            to = door.field(listeners, way, Random(0))
            try:
                await _harm(attacked, to, data)
            except CrashedError as crash:
                say(f"FAILED ({way.value}): {crash}")
                return False
            say(f"no harm ({way.value}); what came back: {dict(to.answers)}")
    return True


def _named(door: Door) -> str:
    return next(f" --door {name}" for name, one in DOORS.items() if one is door)


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(arguments: Sequence[str]) -> int:
    """Run the command; returns its exit status."""
    options = _parsed(arguments)
    allow_many_files()
    door = DOORS[options.door]
    ways = [Way(name) for name in options.ways]
    loop = options.loop or Random(options.seed).choice(sorted(LOOPS))
    if loop == "asyncio" and not ways and not options.replay:
        # Ray's actors have uvloop. Asyncio's own keeps 256 KiB for each connection by TLS that has
        # ended, until its garbage is collected: a flood of them fills hundreds of MiB.
        ways = [Way.PLAIN]
    if options.replay:
        text = options.replay
        if text.startswith("@"):
            text = Path(text[1:]).read_text(encoding="ascii")
        data = bytes.fromhex(text)
        with _issued() as files:
            return 0 if uvloop.run(replay(data, ways or [Way.PLAIN], loop, files, door)) else 1
    seconds = options.seconds if options.minutes is None else 60 * options.minutes
    chosen = [attack for attack in door.attacks if not options.only or attack.name in options.only]
    rounds = [(one, way) for one in chosen for way in one.ways if not ways or way in ways]
    say(f"seed {options.seed}: {len(rounds)} attacks for {seconds:.0f} s; the target uses {loop}")
    with _issued() as files:
        # A connection by TLS costs asyncio's own loop 256 KiB, and this process has thousands.
        is_well = uvloop.run(attack(rounds, seconds, options.seed, loop, files, door))
    if not is_well:
        run = f"./run fuzz{_named(door)} --seconds {seconds:.0f} --seed {options.seed}"
        say(f"  repeat: {run} --loop {loop}")
    return 0 if is_well else 1


@contextlib.contextmanager
def _issued() -> Iterator[Files]:
    with tempfile.TemporaryDirectory() as directory:
        yield Files.issue(Path(directory))


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
    add("--door", choices=sorted(DOORS), default="actors", help="which port is attacked")
    names = sorted({attack.name for door in DOORS.values() for attack in door.attacks})
    add("--only", nargs="+", choices=names, metavar="ATTACK", help=", ".join(names))
    add("--ways", nargs="+", default=[], choices=[way.value for way in Way], help="only these")
    add(
        "--loop",
        choices=sorted(LOOPS),
        help="the target's event loop; else the seed decides: asyncio without TLS",
    )
    add("--replay", metavar="HEX", help="send one input; @FILE has the hex in a file")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
