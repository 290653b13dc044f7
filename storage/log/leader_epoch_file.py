"""The leader epochs of one log and the file that keeps them.

Source: KIP-101, KIP-279.
"""

from __future__ import annotations

from pathlib import Path

from oncelog.storage.disk.file_system import FileSystem
from oncelog.storage.log.checkpoint import write_leader_epochs
from oncelog.storage.model import NO_LEADER_EPOCH
from oncelog.storage.segments.leader_epochs import (
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

    def assign_copied(self, epoch: int, start_offset: int, log_end_offset: int) -> None:
        """A leader's batch of ``epoch`` is to follow the log end at ``start_offset``.

        Epochs that begin at the log end or later, and so never wrote, give way. ValueError if one
        that did write is newer.
        """
        latest_start = self.pairs[-1][1] if self.pairs else -1
        if epoch == self.latest_epoch and latest_start <= start_offset:
            return
        kept = without_end(self.pairs, log_end_offset)
        if kept and kept[-1][0] > epoch:
            raise ValueError(f"a batch of leader epoch {epoch} after one of {kept[-1][0]}")
        self._replace(with_leader_epoch(kept, epoch, start_offset))

    def restart(self) -> None:
        """The log was dropped, and the file with it."""
        self._take([])

    def cut_end(self, offset: int) -> None:
        """The log now ends at ``offset`` (exclusive); durable on return."""
        self._replace(without_end(self.pairs, offset))

    def cut_start(self, offset: int) -> None:
        """The log now begins at ``offset``.

        The file keeps the old epochs until the next one is written; a load drops them again.
        """
        self._take(without_start(self.pairs, offset))

    def _replace(self, pairs: list[tuple[int, int]]) -> None:
        if pairs != self.pairs:
            write_leader_epochs(self._filesystem, self._directory, pairs)
            self._take(pairs)

    def _take(self, pairs: list[tuple[int, int]]) -> None:
        self.pairs = pairs
        self.latest_epoch = pairs[-1][0] if pairs else NO_LEADER_EPOCH
        """The highest epoch; -1 if none is known."""
