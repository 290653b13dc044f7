"""What happens in one replica, added up: whole numbers, a few per batch and none per record.

They only grow; ``launch/figures.py`` reports by how much.
"""

from __future__ import annotations

from oncelog.actors.process.metrics import SYNC_DURATION_MS, Histogram


class ReplicaTallies:
    """Totals of one replica since its process began."""

    __slots__ = (
        "appended_bytes",
        "appended_records",
        "fetched_bytes",
        "fetched_records",
        "follower_cuts",
        "isr_expands",
        "isr_shrinks",
        "pushed_bytes",
        "replicated_bytes",
        "sync_durations",
    )

    def __init__(self) -> None:
        self.appended_bytes = 0
        self.appended_records = 0
        self.fetched_bytes = 0
        self.fetched_records = 0
        self.follower_cuts = 0
        self.isr_expands = 0
        self.isr_shrinks = 0
        self.pushed_bytes = 0
        self.replicated_bytes = 0
        self.sync_durations = Histogram(SYNC_DURATION_MS)
