"""Checks of order: what one client reads and sends, and what follows from what."""

from __future__ import annotations

import bisect
import heapq
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from faults.facts import Anomaly, Facts
from faults.history import Operation

BEFORE_ALL = -1


@dataclass(slots=True)
class Reader:
    """Where a consumer stands: the last offset it read of a key, if the history tells."""

    is_subscribed: bool = False
    last: dict[str, int] = field(default_factory=dict)

    def move(self, operation: Operation) -> None:
        """The client replaced its consumer's assignment."""
        self.is_subscribed = operation.function == "subscribe"
        self.last = {}
        if operation.seeks_to_beginning and not self.is_subscribed:
            self.last = dict.fromkeys(operation.value, BEFORE_ALL)


def check_poll_order(facts: Facts) -> Iterator[Anomaly]:
    """A consumer reads each visible record of its keys once and in order.

    After an operation that did not end well it stands where that operation began; a member of a
    group then stands at what the group has committed, which other checks follow.
    """
    for operations in facts.history.of_processes().values():
        reader = Reader()
        for operation in operations:
            if operation.function in ("assign", "subscribe"):
                reader.move(operation)
                continue
            before = dict(reader.last)
            yield from _check_polls(facts, reader, operation)
            if operation.outcome != "ok":
                reader.last = {} if reader.is_subscribed else before


def _check_polls(facts: Facts, reader: Reader, operation: Operation) -> Iterator[Anomaly]:
    inside: set[str] = set()
    for key in operation.rebalanced:
        reader.last.pop(key, None)
    for key, offset, _ in operation.reads():
        last = reader.last.get(key)
        reader.last[key] = offset
        where = "int-" if key in inside else ""
        inside.add(key)
        if last is None:
            continue
        if offset <= last:
            yield Anomaly(f"{where}nonmonotonic-poll", f"{key}: {offset} after {last}; {operation}")
            continue
        expected = _next_visible(facts, key, last)
        if expected < offset and facts.is_committed_only:
            yield Anomaly(
                f"{where}poll-skip",
                f"{key}: {offset} after {last}, without {expected}; {operation}",
            )


def _next_visible(facts: Facts, key: str, offset: int) -> int:
    visible = facts.visible[key]
    return visible[bisect.bisect_right(visible, offset)]


def check_send_order(facts: Facts) -> Iterator[Anomaly]:
    """What one producer sends to a key stands in the order in which it was sent."""
    for operations in facts.history.of_processes().values():
        last: dict[str, int] = {}
        for operation in operations:
            inside: set[str] = set()
            for send in operation.sends:
                offset = _place(facts, operation, send.key, send.value, send.offset)
                if offset is None:
                    continue
                if offset <= last.get(send.key, BEFORE_ALL):
                    where = "int-" if send.key in inside else ""
                    yield Anomaly(
                        f"{where}nonmonotonic-send",
                        f"{send.key}: {send.value} at {offset} after {last[send.key]}; {operation}",
                    )
                inside.add(send.key)
                last[send.key] = offset


def _place(
    facts: Facts, operation: Operation, key: str, value: str, offset: int | None
) -> int | None:
    """Where a record stands: as it was read, or as the sender of a success was told."""
    seen = facts.offsets_of.get((key, value))
    if seen is not None:
        return min(seen)
    return offset if operation.outcome == "ok" else None


def check_causes(facts: Facts) -> Iterator[Anomaly]:
    """No circle of "read from" and "ended before it began": a reader follows what it read.

    Kahn's algorithm; real time is not drawn as edges: an operation must wait for all that ended
    before it began, which is a prefix of the operations in the order of their ends.
    """
    if not facts.is_committed_only:
        return
    operations = facts.history.operations
    numbers = {id(operation): number for number, operation in enumerate(operations)}
    followers: dict[int, set[int]] = defaultdict(set)
    waits = [0] * len(operations)
    for record, readers in facts.readers.items():
        if record not in facts.writers:
            continue
        writer = numbers[id(facts.writers[record][0])]
        for reader in readers:
            number = numbers[id(reader)]
            if number != writer and number not in followers[writer]:
                followers[writer].add(number)
                waits[number] += 1
    stuck = _unsorted(operations, followers, waits)
    if stuck:
        yield Anomaly("circular-reads", "; ".join(str(operations[n]) for n in stuck[:4]))


def _unsorted(
    operations: list[Operation], followers: dict[int, set[int]], waits: list[int]
) -> list[int]:
    """Numbers of the operations that are on a circle or behind one."""
    by_end = sorted(range(len(operations)), key=lambda n: (operations[n].end, n))
    ends = [operations[n].end for n in by_end]
    needs = [bisect.bisect_left(ends, operation.start) for operation in operations]
    is_done = [False] * len(operations)
    ended = 0
    ready = [(needs[n], n) for n in range(len(operations)) if not waits[n]]
    heapq.heapify(ready)
    while ready and ready[0][0] <= ended:
        _, number = heapq.heappop(ready)
        is_done[number] = True
        while ended < len(by_end) and is_done[by_end[ended]]:
            ended += 1
        for follower in followers[number]:
            waits[follower] -= 1
            if not waits[follower]:
                heapq.heappush(ready, (needs[follower], follower))
    return [n for n in range(len(operations)) if not is_done[n]]
