"""The leader epochs of one log and the file that keeps them.

Source: KIP-101, KIP-279.
"""

from __future__ import annotations

from pathlib import Path

from oncelog.storage.disk.file_system import FileSystem
from oncelog.storage.log.checkpoint import write_leader_epochs
from oncelog.storage.model import NO_LEADER_EPOCH
from oncelog.storage.segments.leader_epochs import (
    end_of_epoch,
    with_leader_epoch,
    without_end,
    without_start,
)


class LeaderEpochFile:
    """(leader epoch, its first offset) pairs, ascending. OSError: nothing has changed."""

    __slots__ = ("_directory", "_filesystem", "latest_epoch", "pairs")

    def __init__(
        self, filesystem: FileSystem, directory: Path, pairs: list[tuple[int, int]]
    ) -> None:
        self._filesystem = filesystem
        self._directory = directory
        self._take(pairs)

    def assign(self, epoch: int, start_offset: int) -> None:
        """``epoch`` leads from ``start_offset`` (inclusive); durable on return."""
        self._replace(with_leader_epoch(self.pairs, epoch, start_offset))

    def cut_end(self, offset: int) -> None:
        """The log now ends at ``offset`` (exclusive); durable on return."""
        self._replace(without_end(self.pairs, offset))

    def cut_start(self, offset: int) -> None:
        """The log now begins at ``offset``.

        The file keeps the old epochs until the next one is written; a load drops them again.
        """
        self._take(without_start(self.pairs, offset))

    def common_end(
        self, leader_epoch: int, end_offset: int, *, log_end_offset: int
    ) -> tuple[int, bool]:
        """Up to where (exclusive) this log may agree with a leader's, and whether it does.

        The leader's log leaves ``leader_epoch`` at ``end_offset``. False: this log knows older
        epochs only, and where the last of them ends is to be compared next.
        """
        own_epoch, own_end = end_of_epoch(self.pairs, leader_epoch, log_end_offset=log_end_offset)
        is_settled = own_epoch in (leader_epoch, NO_LEADER_EPOCH)
        if own_epoch == leader_epoch:
            own_end = min(own_end, end_offset)
        elif is_settled:
            own_end = end_offset
        return own_end, is_settled

    def _replace(self, pairs: list[tuple[int, int]]) -> None:
        if pairs != self.pairs:
            write_leader_epochs(self._filesystem, self._directory, pairs)
            self._take(pairs)

    def _take(self, pairs: list[tuple[int, int]]) -> None:
        self.pairs = pairs
        self.latest_epoch = pairs[-1][0] if pairs else NO_LEADER_EPOCH
        """The highest epoch; -1 if none is known."""
