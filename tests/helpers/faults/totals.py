"""A campaign in numbers: operations, transactions, faults and how long their effects lasted."""

from __future__ import annotations

import bisect
import statistics
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from faults.history import History, Json, Operation

RECORDS_AT_LEAST = 2
"""With fewer values than this there are no quantiles."""


@dataclass(slots=True)
class Tally:
    """Counts of lines, gathered from growing files: for the running line."""

    operations: int = 0
    committed: int = 0
    aborted: int = 0
    ignored: str = "uncommitted"
    """How the names of files begin that are another history's."""
    _read: dict[Path, int] = field(default_factory=dict)

    def update(self, directory: Path) -> None:
        """Count the lines that are new."""
        for path in directory.glob("*.jsonl"):
            if path.name.startswith(self.ignored):
                continue
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                text = file.read()
            text = text[: text.rfind(b"\n") + 1]
            self._read[path] = self._read.get(path, 0) + len(text)
            self.operations += text.count(b'"type":"invoke"')
            for line in text.splitlines():
                if b'"f":"txn"' in line and b'"send"' in line:
                    self.committed += line.startswith(b'{"type":"ok"')
                    self.aborted += line.startswith(b'{"type":"fail"')


def recovery_times_s(history: History) -> dict[str, list[float]]:
    """Seconds from the end of each fault to the first success of an operation that needed its
    victim and began after the fault had struck; by kind and role. Faults without one are left out.
    """
    ok = [operation for operation in history.operations if operation.outcome == "ok"]
    starts = [operation.start for operation in ok]
    healed = {line["fault"]: line["time"] for line in history.faults if line["f"] == "resume"}
    answered = {line["fault"]: line["time"] for line in history.faults if line["f"] == "answered"}
    times: dict[str, list[float]] = {}
    for fault in carried_out(history):
        first = answered.get(fault["fault"])
        if fault["role"] != "controller":
            first = _first_success(fault, ok, bisect.bisect_left(starts, fault["time"]))
        if first is not None:
            end = healed.get(fault["fault"], fault["time"])
            label = f"{fault['f']} {fault['role']}"
            times.setdefault(label, []).append(max(0.0, (first - end) / 1e9))
    return times


def _first_success(fault: Json, ok: list[Operation], index: int) -> float | None:
    first: float | None = None
    needed = set(fault["serves"])
    for operation in ok[index:]:
        if first is not None and operation.start > first:
            break
        if _concerned(operation) & needed and (first is None or operation.end < first):
            first = operation.end
    return first


def _concerned(operation: Operation) -> set[str]:
    names = {send.key for send in operation.sends}
    if operation.function in ("poll", "txn", "send"):
        names.add(operation.process.rpartition(".")[0])
    names.update(key for poll in operation.polls for key in poll)
    if operation.transactional_id is not None and (operation.sends or operation.function == "init"):
        names.add(operation.transactional_id)
    if operation.group is not None:
        names.add(operation.group)
    return names


def carried_out(history: History) -> list[Json]:
    """The faults that struck."""
    missed = {line["fault"] for line in history.faults if line["f"] == "missed"}
    return [
        line
        for line in history.faults
        if line["f"] in ("kill", "pause") and line["fault"] not in missed
    ]


def report_lines(history: History) -> Iterator[str]:
    """The totals of a campaign, one fact per line."""
    operations = history.operations
    records = sum(len(operation.sends) for operation in operations)
    reads = sum(len(records) for op in operations for poll in op.polls for records in poll.values())
    functions = Counter(operation.function for operation in operations)
    shown = ", ".join(f"{count} {name}" for name, count in functions.most_common())
    yield f"operations    {len(operations)} ({shown})"
    transactions = Counter(
        operation.outcome
        for operation in operations
        if operation.function == "txn" and operation.sends
    )
    yield (
        f"transactions  {transactions['ok']} committed, {transactions['fail']} aborted, "
        f"{transactions['info']} unknown"
    )
    yield f"records       {records} sent, {reads} read"
    faults = carried_out(history)
    aimed = sum(fault["aimed"] for fault in faults)
    yield f"faults        {len(faults)}, {aimed} of them aimed at a commit under way"
    counts = Counter(f"{fault['f']} {fault['role']}" for fault in faults)
    times = recovery_times_s(history)
    for label, count in sorted(counts.items()):
        felt = quantiles(times.get(label, []))
        yield f"  {label:<30} {count:>4}   first success after it {felt}"
    every = [seconds for found in times.values() for seconds in found]
    yield f"recovery      {quantiles(every)}"


def quantiles(values: list[float]) -> str:
    """Median, 99th percentile and maximum of seconds, as text."""
    if len(values) < RECORDS_AT_LEAST:
        return f"{values[0]:.2f} s" if values else "not seen"
    percentiles = statistics.quantiles(values, n=100, method="inclusive")
    return f"p50 {percentiles[49]:.2f} s, p99 {percentiles[98]:.2f} s, max {max(values):.2f} s"
