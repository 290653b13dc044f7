"""What a history says, indexed once for all checks."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from faults.history import History, Operation, Send


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One way in which the log broke its word."""

    kind: str
    detail: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}"


Record = tuple[str, str]
"""(key, value): names one record, as no value is sent to a key twice."""


@dataclass(slots=True)
class Facts:
    """Who wrote and who read each record, and where it was seen. Costs O(records)."""

    history: History
    writers: dict[Record, tuple[Operation, Send]] = field(default_factory=dict)
    repeated_sends: list[Record] = field(default_factory=list)
    readers: dict[Record, list[Operation]] = field(default_factory=dict)
    values_at: dict[tuple[str, int], set[str]] = field(default_factory=dict)
    offsets_of: dict[Record, set[int]] = field(default_factory=dict)
    visible: dict[str, list[int]] = field(default_factory=dict)
    drained: dict[str, set[str]] = field(default_factory=dict)
    """Every value of a key that the complete read at the end delivered."""

    @property
    def is_committed_only(self) -> bool:
        """Whether the readers asked for committed data only."""
        return self.history.isolation == "read_committed"

    def is_visible(self, record: Record) -> bool:
        """Whether someone read the record, in the complete read if there was one."""
        key, value = record
        return value in self.drained[key] if key in self.drained else record in self.readers


def index(history: History) -> Facts:
    """Gather the facts of a history."""
    facts = Facts(history)
    polled_at: dict[str, set[int]] = defaultdict(set)
    for operation in history.operations:
        for send in operation.sends:
            record = (send.key, send.value)
            if record in facts.writers:
                facts.repeated_sends.append(record)
            facts.writers[record] = (operation, send)
        for key, offset, value in operation.reads():
            facts.readers.setdefault((key, value), []).append(operation)
            facts.values_at.setdefault((key, offset), set()).add(value)
            facts.offsets_of.setdefault((key, value), set()).add(offset)
            polled_at[key].add(offset)
    facts.visible = {key: sorted(offsets) for key, offsets in polled_at.items()}
    _find_drained(facts)
    return facts


def _find_drained(facts: Facts) -> None:
    for operations in facts.history.of_processes().values():
        seen: dict[str, set[str]] = defaultdict(set)
        for operation in operations:
            if operation.function in ("assign", "subscribe"):
                seen = defaultdict(set)
            for key, _, value in operation.reads():
                seen[key].add(value)
            if operation.function == "drained" and operation.outcome == "ok":
                for key in operation.value:
                    facts.drained[key] = set(seen[key])
