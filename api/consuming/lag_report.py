"""Tells the monitoring of the cluster how far a member of a group is behind.

As of the reply that each partition got last: nothing is asked for the sake of a figure. So the lag
of a member that has stopped polling stands still; ``oncelog groups describe`` asks the leaders.
"""

from __future__ import annotations

import asyncio

from oncelog.actors.process.metrics import CONSUMER_LAG, NO_METRICS
from oncelog.actors.rpc.call_meter import CallReports
from oncelog.api.consuming.fetcher import Fetcher
from oncelog.api.session.offsets import lag_of


class LagReport:
    """Sets the lag of each assigned partition, every interval from the first poll to the close."""

    def __init__(self, reports: CallReports, fetcher: Fetcher, group_id: str | None) -> None:
        self._reports = reports
        self._fetcher = fetcher
        self._group_id = group_id
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Report from now on, for a member of a group whose cluster is watched."""
        is_watched = self._reports.metrics is not NO_METRICS
        if self._timer is None and self._group_id is not None and is_watched:
            self._wait()

    def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._reports.interval_ms / 1_000, self._report)

    def _report(self) -> None:
        for tp, partition in self._fetcher.partitions.items():
            if partition.position is None or partition.readable_end is None:
                continue
            tags = {
                "group": self._group_id or "",
                "topic": tp.topic,
                "partition": str(tp.partition),
            }
            # What is held is read, also if it has been deleted since.
            start_offset = 0 if partition.has_pieces else partition.log_start_offset
            lag = lag_of(
                partition.position, start_offset=start_offset, end_offset=partition.readable_end
            )
            self._reports.metrics.set(CONSUMER_LAG, lag, tags)
        self._wait()

    def stop(self) -> None:
        """Report no more."""
        if self._timer is not None:
            self._timer.cancel()
