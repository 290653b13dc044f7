"""How long nothing was committed although a majority of the brokers lived.

A broker does not count as living from the moment a fault strikes a process of it until that is
over: a kill lasts until the process serves again, of a node until every replica is in sync again.
While two of three brokers do not live, or something does not that is there once only, clients may
have to wait, and that time is left out. The controller is there once only where one broker has its
log.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from faults.fault_plan import CLIENT, GATEWAY, NODE_ROLES
from faults.history import History, Json
from faults.totals import carried_out, quantiles

AFTER_S: Final = 2.0
"""What still counts as just after a fault."""

RESTART_S: Final = 5.0
"""How long a killed process is away of which nothing more was heard."""

STALL_MAX_S: Final = 10.0
"""The longest that nothing may be committed while a majority lives."""


@dataclass(frozen=True, slots=True)
class Stall:
    """A time without a commit: its beginning, by the clock of the history, and its length."""

    begin_s: float = 0.0
    length_s: float = 0.0

    def __str__(self) -> str:
        return f"{self.length_s:.2f} s from {self.begin_s:.3f} s on"


def longest_stall(history: History, *, lives_always: bool = False) -> Stall:
    """The longest time without a committed transaction, between the first and the last fault,
    while a majority lived; with ``lives_always`` of all such times.
    """
    faults = carried_out(history)
    if not faults:
        return Stall()
    begin = faults[0]["time"] / 1e9
    end = max(_ends_s(history, fault) for fault in faults)
    commits = [begin, *sorted(_commits_s(history, begin, end)), end]
    outages = [] if lives_always else outages_s(history)
    longest = Stall()
    for left, right in itertools.pairwise(commits):
        for at, until in _without(left, right, outages):
            if until - at > longest.length_s:
                longest = Stall(at, until - at)
    return longest


def longest_gap_s(history: History, begin: float, end: float) -> float:
    """The longest time without a committed transaction in a span of the history's clock."""
    commits = [begin, *sorted(_commits_s(history, begin, end)), end]
    return max(right - left for left, right in itertools.pairwise(commits))


def longest_wait(history: History) -> Stall:
    """The longest time without an acknowledged send beside transactions, from the first on."""
    ended = sorted(
        operation.end / 1e9
        for operation in history.operations
        if operation.function == "send" and operation.outcome == "ok"
    )
    pairs = [(right - left, left) for left, right in itertools.pairwise(ended)]
    length, begin = max(pairs, default=(0.0, 0.0))
    return Stall(begin, length)


def gap_lines(history: History) -> Iterator[str]:
    """For each kind of fault, the longest times without a commit while it lasted and just after.

    Where several faults overlap a gap counts for each: what it was due to tells the history.
    """
    found: dict[str, list[float]] = {}
    for fault in carried_out(history):
        begin = fault["time"] / 1e9
        gap = longest_gap_s(history, begin, _ends_s(history, fault) + AFTER_S)
        whole = " (whole)" if fault.get("is_whole") else ""
        found.setdefault(f"{fault['f']} {fault['role']}{whole}", []).append(gap)
    yield "no commit     by kind of fault, while it lasted and just after"
    for label, gaps in sorted(found.items()):
        yield f"  {label:<45} {len(gaps):>4}   {quantiles(gaps)}"


def outages_s(history: History) -> list[tuple[float, float]]:
    """When no majority lived, or what is there once only did not, in order and apart."""
    edges: list[tuple[float, int, Json]] = []
    for fault in carried_out(history):
        # Neither is part of what our own clients, who commit, need.
        if fault["role"] not in (CLIENT, GATEWAY):
            edges.append((fault["time"] / 1e9, 1, fault))
            edges.append((_ends_s(history, fault), -1, fault))
    found: list[tuple[float, float]] = []
    struck: list[Json] = []
    since = 0.0
    for at, change, fault in sorted(edges, key=lambda edge: (edge[0], -edge[1])):
        was_out = _is_outage(struck)
        if change > 0:
            struck.append(fault)
        else:
            struck.remove(fault)
        if _is_outage(struck) and not was_out:
            since = at
        elif was_out and not _is_outage(struck) and at > since:
            found.append((since, at))
    return found


def _is_outage(struck: list[Json]) -> bool:
    brokers = {broker for fault in struck for broker in fault.get("brokers", ())}
    return len(brokers) > 1 or any(fault.get("is_sole", True) for fault in struck)


def _ends_s(history: History, fault: Json) -> float:
    """When a fault was over, as another thread may have noted before the fault itself."""
    is_of_node = fault["role"] in NODE_ROLES
    ends = "whole" if is_of_node else "resume" if fault["f"] == "pause" else "answered"
    times = [
        float(line["time"]) / 1e9
        for line in history.faults
        if line["f"] == ends and line["fault"] == fault["fault"]
    ]
    begin = float(fault["time"]) / 1e9
    return max(begin, *times) if times else begin + RESTART_S


def _commits_s(history: History, begin: float, end: float) -> list[float]:
    ended = [
        operation.end / 1e9
        for operation in history.operations
        if operation.function == "txn" and operation.outcome == "ok" and operation.sends
    ]
    return [at for at in ended if begin < at < end]


def _without(
    left: float, right: float, outages: list[tuple[float, float]]
) -> list[tuple[float, float]]:
    """What is left of a span without the outages."""
    found = []
    for begin, end in outages:
        if begin < right and end > left:
            found.append((left, begin))
            left = end
    return [(at, until) for at, until in [*found, (left, right)] if until > at]
