"""The verdict on a history: valid, invalid, or unknown if too little happened to say.

Every check is a separate function of the facts, and knows nothing about the product. Together
they take O((records + operations) log operations).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from faults.facts import Anomaly, Facts, index
from faults.group_checks import (
    check_consumed,
    check_fencing,
    check_fetched_offsets,
    check_sources,
)
from faults.history import History
from faults.order_checks import check_causes, check_poll_order, check_send_order
from faults.record_checks import check_atomicity, check_losses, check_places, check_readers

CHECKS: Final[tuple[Callable[[Facts], Iterator[Anomaly]], ...]] = (
    check_readers,
    check_places,
    check_losses,
    check_atomicity,
    check_poll_order,
    check_send_order,
    check_causes,
    check_sources,
    check_consumed,
    check_fetched_offsets,
    check_fencing,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Demands:
    """What must have happened for a clean history to mean anything."""

    faults: int = 0
    committed: int = 1
    aborted: int = 0
    outputs: int = 0


@dataclass(slots=True)
class Verdict:
    """``missing`` says why a history without anomalies proves nothing."""

    anomalies: list[Anomaly] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """``valid``, ``invalid`` or ``unknown``."""
        if self.anomalies:
            return "invalid"
        return "unknown" if self.missing else "valid"


def check(history: History, demands: Demands | None = None) -> Verdict:
    """Judge a history."""
    facts = index(history)
    anomalies = [anomaly for check_one in CHECKS for anomaly in check_one(facts)]
    return Verdict(anomalies, _missing(facts, demands or Demands()))


def _missing(facts: Facts, demands: Demands) -> list[str]:
    operations = facts.history.operations
    outcomes = Counter(
        operation.outcome
        for operation in operations
        if operation.is_transaction and operation.sends
    )
    outputs = sum(
        send.source is not None and facts.is_visible(record)
        for record, (_, send) in facts.writers.items()
    )
    missing = []
    if facts.repeated_sends:
        missing.append(f"values sent twice, such as {facts.repeated_sends[0]}")
    if not facts.readers:
        missing.append("nothing was read")
    undrained = {key for key, _ in facts.writers} - facts.drained.keys()
    if undrained:
        missing.append(f"not read to the end: {', '.join(sorted(undrained))}")
    faults = sum(line["f"] in ("kill", "pause") for line in facts.history.faults)
    for name, count, demanded in (
        ("faults", faults, demands.faults),
        ("transactions committed", outcomes["ok"], demands.committed),
        ("transactions aborted", outcomes["fail"], demands.aborted),
        ("outputs of copiers", outputs, demands.outputs),
    ):
        if count < demanded:
            missing.append(f"{name}: {count} of {demanded} demanded")
    return missing
