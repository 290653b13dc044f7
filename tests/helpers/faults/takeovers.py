"""How long it took to replace the controller after its node was struck, by what its log says.

A controller serves some milliseconds after the record of its election was appended, and a leader
after that of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from faults.availability import longest_gap_s
from faults.fault_plan import CUT_ROLES, NODE_ROLES
from faults.history import History, Json
from faults.replicas import LoggedChange
from faults.totals import carried_out, quantiles

from oncelog.actors.protocol.cluster.cluster_records import ControllerElected, LeaderElected


@dataclass(frozen=True, slots=True)
class Takeover:
    """What followed one fault, in seconds after it. ``led_s``: all that was led on the node has a
    leader again; 0 if nothing was. ``silent_s``: the longest time without a commit meanwhile.
    """

    label: str
    elected_s: float
    led_s: float
    silent_s: float


def takeovers(
    history: History, changes: Sequence[LoggedChange], *, founder: int
) -> Iterator[Takeover]:
    """Those of the faults that struck the controller's node, and after which another broker has
    become the controller before the node was back; at first it is on that of ``founder``.
    """
    ends = {line["fault"]: line["time"] for line in history.faults if line["f"] == "whole"}
    for fault in carried_out(history):
        if fault["role"] in NODE_ROLES and (fault["is_whole"] or fault["role"] not in CUT_ROLES):
            end = ends.get(fault["fault"])
            if end is not None:
                yield from _takeover(history, fault, end, changes, founder)


def _takeover(
    history: History, fault: Json, end: int, changes: Sequence[LoggedChange], controller: int
) -> Iterator[Takeover]:
    struck_ms = fault["wall_ms"]
    end_ms = struck_ms + (end - fault["time"]) / 1e6
    leaders: dict[tuple[str, int], int] = {}
    waiting: set[tuple[str, int]] | None = None
    elected_ms: int | None = None
    led_ms = struck_ms
    for at_ms, change in changes:
        if at_ms > end_ms:
            break
        if at_ms > struck_ms and waiting is None:
            if [controller] != fault["brokers"]:
                return
            waiting = {place for place, leader in leaders.items() if leader == controller}
        if isinstance(change, ControllerElected):
            if waiting is not None and elected_ms is None and change.broker_id != controller:
                elected_ms = at_ms
            controller = change.broker_id
        elif isinstance(change, LeaderElected):
            place = (change.topic_id, change.partition)
            leaders[place] = change.leader
            if waiting and place in waiting and change.leader >= 0:
                waiting.discard(place)
                led_ms = at_ms
    if elected_ms is not None:
        yield Takeover(
            label=f"{fault['f']} {fault['role']}{' (whole)' if fault['is_whole'] else ''}",
            elected_s=(elected_ms - struck_ms) / 1e3,
            led_s=(led_ms - struck_ms) / 1e3,
            silent_s=longest_gap_s(history, fault["time"] / 1e9, end / 1e9),
        )


def takeover_lines(found: Sequence[Takeover]) -> Iterator[str]:
    """One line for each kind of fault."""
    yield f"takeovers     {len(found)} of the controller by another broker, its node being struck"
    for label in sorted({one.label for one in found}):
        its = [one for one in found if one.label == label]
        yield (
            f"  {label:<30} {len(its):>4}   controller after "
            f"{quantiles([one.elected_s for one in its])}; all led after "
            f"{quantiles([one.led_s for one in its])}; no commit for "
            f"{quantiles([one.silent_s for one in its])}"
        )
