"""What a run has shown: its figures, and which of them are failures."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from fuzz_attacks import Field
from fuzz_caller import Calls
from fuzz_target import Counts

GROWTH_MAX_MIB: Final = 64.0
LATENCY_FACTOR_MAX: Final = 3.0
LATENCY_SLACK_MS: Final = 5.0
PHASES: Final = ("before", "during", "after")
LISTENERS: Final = ("plain", "tls")


@dataclass(slots=True)
class Report:
    """``calls`` has the honest ones of each phase by listener, ``memory`` the target's MiB by s."""

    calls: dict[str, dict[str, Calls]] = field(
        default_factory=lambda: {phase: {name: Calls() for name in LISTENERS} for phase in PHASES}
    )
    memory: dict[str, list[tuple[float, float]]] = field(
        default_factory=lambda: {name: [] for name in PHASES}
    )
    answers: Counter[str] = field(default_factory=Counter)
    rounds: Counter[str] = field(default_factory=Counter)
    inputs: int = 0
    proved: int = 0
    proved_servers: int = 0
    counts: Counts = field(default_factory=Counts)
    crashes: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    @property
    def growth_mib(self) -> float:
        """Resident memory after the attacks, less that before."""
        ends = [[mib for _, mib in self.memory[phase]] for phase in ("before", "after")]
        return statistics.median(ends[1]) - statistics.median(ends[0]) if all(ends) else 0.0

    def add(self, name: str, to: Field) -> None:
        """What a round of the attack ``name`` saw."""
        self.rounds[name] += 1
        self.answers += to.answers
        self.inputs += len(to.inputs)
        self.proved += to.proved
        self.proved_servers += to.proved_servers
        self.wrong += to.wrong

    def failures(self, *, checks_latency: bool) -> list[str]:
        """What may not be, in sentences."""
        found = [*self.crashes, *self.wrong]
        counts = self.counts
        if counts.error_count:
            found.append(f"{counts.error_count} errors in the target: {counts.errors[0]}")
        if counts.early:
            found.append(f"{counts.early} requests began on connections without a proof")
        if counts.decoded > counts.begun:
            found.append(f"{counts.decoded} requests were decoded, but {counts.begun} had begun")
        if counts.is_fooled(self.proved, self.proved_servers):
            found.append(
                f"{counts.trusted} strangers were trusted, {counts.trusted_servers} as servers; "
                f"{self.proved} and {self.proved_servers} had sent a proof"
            )
        if counts.left:
            found.append(f"{counts.left} connections or requests of strangers are left at the end")
        if self.answers["failed"] or self.answers["unknown"]:
            found.append("a call met a method that raised, or an answer is none")
        if self.growth_mib > GROWTH_MAX_MIB:
            found.append(f"memory grew by {self.growth_mib:.0f} MiB, over {GROWTH_MAX_MIB:.0f}")
        for phase, name, calls in self._all_calls():
            if not calls.took and not self.crashes:
                found.append(f"no honest call ({name}) was answered {phase} the attacks")
            if calls.failed:
                found.append(
                    f"{len(calls.failed)} honest calls ({name}) failed {phase} the attacks: "
                    f"{calls.failed[0]}"
                )
        if checks_latency and not found:
            found += self._late()
        return found

    def _late(self) -> list[str]:
        found = []
        for name in LISTENERS:
            before, during = (percentile(self.calls[phase][name].took, 50) for phase in PHASES[:2])
            bound = LATENCY_FACTOR_MAX * before + LATENCY_SLACK_MS
            if during > bound:
                found.append(
                    f"honest calls ({name}) took {during:.1f} ms in the median, over {bound:.1f} ms"
                )
        return found

    def _all_calls(self) -> Iterator[tuple[str, str, Calls]]:
        for phase, of_listeners in self.calls.items():
            for name, calls in of_listeners.items():
                yield phase, name, calls

    def lines(self) -> list[str]:
        """The figures, for people."""
        lines = []
        for phase, name, calls in self._all_calls():
            took, large = (
                f"p50 {percentile(some, 50):.1f} ms, p99 {percentile(some, 99):.1f} ms"
                for some in (calls.took, calls.large_took)
            )
            lines.append(
                f"{phase}, {name}: {len(calls.took)} honest calls, {took}; "
                f"{len(calls.large_took)} large ones, {large}; "
                f"{calls.new_connections} new connections in {calls.connect_attempts} attempts"
            )
        seen = [mib for samples in self.memory.values() for _, mib in samples]
        if seen:
            first, last = (
                statistics.median([mib for _, mib in self.memory[phase]] or [0.0])
                for phase in ("before", "after")
            )
            lines.append(
                f"resident memory: {first:.1f} MiB before, {last:.1f} after, at most "
                f"{max(seen):.1f}; slope {slope(self.memory['during']):+.2f} MiB a minute"
            )
        lines.append(f"rounds: {_listed(self.rounds)}")
        lines.append(f"{self.inputs} inputs; what came back: {_listed(self.answers)}")
        counts = self.counts
        lines.append(
            f"target: {counts.trusted} strangers trusted by their proof, "
            f"{counts.begun} requests begun, "
            f"{counts.decoded} decoded, {counts.early} before a proof; "
            f"{counts.error_count} errors, {len(self.crashes)} crashes"
        )
        return lines


def _listed(counted: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counted.items()))


def percentile(values: Sequence[float], percent: int) -> float:
    """The value that ``percent`` of all do not exceed; 0.0 without any."""
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) * percent // 100] if ordered else 0.0


def slope(samples: Sequence[tuple[float, float]]) -> float:
    """How much the samples (s, MiB) rise a minute, by least squares."""
    if len(samples) < 2:
        return 0.0
    times, sizes = zip(*samples, strict=True)
    return 60 * statistics.linear_regression(times, sizes).slope
