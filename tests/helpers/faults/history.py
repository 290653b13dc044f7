"""What clients did and saw during a fault campaign: written as JSON lines, read back as operations.

A process is one sequential client. A line is flushed before the call it describes leaves the
client, and another when the answer is known, so what a killed client leaves is still true:
an operation without a last line has an unknown outcome.

    {"type": "invoke", "process": "t0.1", "f": "txn", "time": 7, "value": [["send", "a-0", "v1"]]}
    {"type": "commit", "process": "t0.1", "time": 8}
    {"type": "ok", "process": "t0.1", "f": "txn", "time": 9, "value": [["send", "a-0", "v1", 41]]}

Times are nanoseconds of one monotonic clock that all processes of the host share.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

NEMESIS: Final = "nemesis"
OUTCOMES: Final = ("ok", "fail", "info")

Json = dict[str, Any]


class HistoryWriter:
    """The history file of one process."""

    def __init__(self, directory: Path, process: str) -> None:
        self.process = process
        self._function = ""
        self._file = (directory / f"{process}.jsonl").open("a", encoding="utf-8")

    def invoke(self, function: str, value: object = None, **fields: object) -> None:
        """An operation begins; nothing of it has left the client yet."""
        self._function = function
        self._line(
            {"type": "invoke", "process": self.process, "f": function}
            | {"time": time.monotonic_ns(), "value": value}
            | fields
        )

    def more(self, value: object, **fields: object) -> None:
        """Results so far, and what will be sent next, of the operation that is under way."""
        self._line(
            {"type": "more", "process": self.process, "time": time.monotonic_ns(), "value": value}
            | fields
        )

    def commit(self, commits: object = None) -> None:
        """The commit request is about to leave."""
        line: Json = {"type": "commit", "process": self.process, "time": time.monotonic_ns()}
        self._line(line | ({"commits": commits} if commits else {}))

    def complete(self, outcome: str, value: object = None, **fields: object) -> None:
        """The operation ended: ``ok``, ``fail`` (never takes effect) or ``info`` (unknown)."""
        assert outcome in OUTCOMES, outcome
        self._line(
            {"type": outcome, "process": self.process, "f": self._function}
            | {"time": time.monotonic_ns(), "value": value}
            | fields
        )

    def event(self, function: str, value: object = None, **fields: object) -> None:
        """An operation that cannot fail: both lines at once."""
        self.invoke(function, value, **fields)
        self.complete("ok", value)

    def note(self, function: str, **fields: object) -> None:
        """Something that is no operation of a client, such as a fault."""
        self._line(
            {"type": "info", "process": self.process, "f": function, "time": time.monotonic_ns()}
            | fields
        )

    def _line(self, line: Json) -> None:
        self._file.write(json.dumps(line, separators=(",", ":")) + "\n")
        self._file.flush()

    def close(self) -> None:
        """No more lines follow."""
        self._file.close()


def write_meta(directory: Path) -> None:
    """Say what any checker has to know of the history: which promises its clients keep."""
    meta = {
        "type": "meta",
        "isolation": "read_committed",
        "rollback": True,
        "rebalance_log": False,
        "commit_marks": True,
        "shared_clock": True,
    }
    (directory / "meta.jsonl").write_text(json.dumps(meta) + "\n", encoding="utf-8")


@dataclass(slots=True)
class Send:
    """One record that was sent; ``source`` is the (key, value) it was derived from."""

    key: str
    value: str
    offset: int | None = None
    source: tuple[str, str] | None = None


@dataclass(slots=True)
class Operation:
    """One operation of a client.

    ``end`` is infinite if its outcome is unknown, as it may still take effect; ``last_seen`` is
    the time of its last line, by which it had polled all that it tells of.
    """

    process: str
    function: str
    start: float
    end: float = math.inf
    last_seen: float = 0.0
    outcome: str = "info"
    sends: list[Send] = field(default_factory=list)
    polls: list[dict[str, list[tuple[int, str]]]] = field(default_factory=list)
    value: Any = None
    is_transaction: bool = False
    transactional_id: str | None = None
    commit_start: float | None = None
    group: str | None = None
    offsets: dict[str, int] = field(default_factory=dict)
    rebalanced: frozenset[str] = frozenset()
    seeks_to_beginning: bool = False

    @property
    def may_commit(self) -> bool:
        """Whether what it sent may be visible: not failed, and asked to commit if it had to."""
        return self.outcome != "fail" and (not self.is_transaction or self.commit_start is not None)

    def reads(self) -> Iterator[tuple[str, int, str]]:
        """(key, offset, value) of all that it polled, in order."""
        for poll in self.polls:
            for key, records in poll.items():
                for offset, value in records:
                    yield key, offset, value

    def __str__(self) -> str:
        end = "?" if math.isinf(self.end) else f"{self.end / 1e9:.3f}"
        return (
            f"{self.function} {self.outcome} of {self.process} [{self.start / 1e9:.3f} s, {end} s]"
        )


@dataclass(slots=True)
class History:
    """All operations, in the order of their beginning, and what was done to the system."""

    isolation: str = "read_committed"
    operations: list[Operation] = field(default_factory=list)
    faults: list[Json] = field(default_factory=list)

    def of_processes(self) -> dict[str, list[Operation]]:
        """The operations of each process, in order."""
        processes: dict[str, list[Operation]] = {}
        for operation in self.operations:
            processes.setdefault(operation.process, []).append(operation)
        return processes


def read_history(paths: Iterable[Path]) -> History:
    """Read history files. A last line that a killed client left torn is not there."""
    lines: list[Json] = []
    for path in paths:
        *texts, _ = path.read_text(encoding="utf-8").split("\n")
        lines += [json.loads(text) for text in texts]
    return build_history(lines)


def build_history(lines: Iterable[Json]) -> History:
    """Make operations of lines; only the order within a process matters."""
    history = History()
    open_operations: dict[str, Operation] = {}
    for line in lines:
        kind = line["type"]
        if kind == "meta":
            history.isolation = line.get("isolation", history.isolation)
        elif line["process"] == NEMESIS:
            history.faults.append(line)
        elif kind == "invoke":
            operation = _begin(line)
            open_operations[operation.process] = operation
            history.operations.append(operation)
        else:
            _continue(open_operations[line["process"]], line)
    history.operations.sort(key=lambda operation: operation.start)
    return history


def _begin(line: Json) -> Operation:
    operation = Operation(
        process=str(line["process"]),
        function=line["f"],
        start=line["time"],
        is_transaction=line["f"] in ("txn", "send", "poll") and line.get("txn", True),
        seeks_to_beginning=line.get("seek_to_beginning", False),
    )
    _take(operation, line)
    return operation


def _continue(operation: Operation, line: Json) -> None:
    if line["type"] in OUTCOMES:
        operation.outcome = line["type"]
        if line["type"] != "info":
            operation.end = line["time"]
    elif line["type"] == "commit" and operation.commit_start is None:
        operation.commit_start = line["time"]
    _take(operation, line)


def _take(operation: Operation, line: Json) -> None:
    """Take over what a line tells; a later line repeats what earlier ones told, and more."""
    operation.last_seen = line["time"]
    operation.transactional_id = line.get("txn_id", operation.transactional_id)
    operation.commit_start = line.get("commit_start", operation.commit_start)
    operation.rebalanced |= frozenset(line.get("rebalance", ()))
    operation.group = line.get("group", operation.group)
    commits = line.get("commits")
    if commits:
        operation.group = commits["group"]
        operation.offsets = dict(commits["offsets"])
    if operation.function in ("txn", "send", "poll") and line.get("value") is not None:
        operation.sends = [_send(step) for step in line["value"] if step[0] == "send"]
        polls = [step[1] for step in line["value"] if step[0] == "poll" and len(step) > 1]
        operation.polls = [
            {key: [(offset, value) for offset, value in records] for key, records in poll.items()}
            for poll in polls
        ]
    elif line["type"] != "commit":
        operation.value = line.get("value", operation.value)


def _send(step: list[Any]) -> Send:
    offset = step[3] if len(step) > 3 and step[3] is not None and step[3] >= 0 else None
    source = (step[4][0], step[4][1]) if len(step) > 4 else None
    return Send(step[1], step[2], offset, source)
