"""Reads a log through in the background, to find damage before a reader does.

A piece of ``PIECE_BYTES`` every ``SCRUB_PIECE_INTERVAL_MS``, from the log start to the high
watermark; then it rests for a day. What it finds is in ``status`` and in the metrics.
"""

from __future__ import annotations

import asyncio
from typing import Final

from oncelog.actors.replica.replica import Replica
from oncelog.storage.disk.errors import is_unreadable
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import CorruptRecordError

SCRUB_PIECE_INTERVAL_MS: Final = 10_000
PIECE_BYTES: Final = 2_097_152
SLICE_BYTES: Final = 262_144
"""Read and checked in one turn of the event loop: as much as a small fetch."""

REST_PIECES: Final = 8_640
"""Pieces left out between two rounds: a day."""


class LogScrub:
    """One walk after the other over the log of one replica."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._offset = 0
        self._pieces_to_rest = 0

    async def piece(self) -> None:
        """Check the next piece. OSError: no file can be opened; it goes on where it was."""
        if self._pieces_to_rest:
            self._pieces_to_rest -= 1
            return
        left = PIECE_BYTES
        while left > 0 and self._replica.availability() is ErrorCode.NONE:
            size = self._slice()
            if not size:
                self._offset, self._pieces_to_rest = 0, REST_PIECES
                return
            left -= size
            await asyncio.sleep(0)

    def _slice(self) -> int:
        """Check one slice; the bytes that were read, 0 at the end."""
        replica = self._replica
        log, end = replica.log, replica.machine.high_watermark
        offset = max(self._offset, log.log_start_offset)
        if offset >= end:
            return 0
        try:
            found = log.fetch(offset, max_bytes=SLICE_BYTES, upper_offset=end, is_checked=True)
        except CorruptRecordError as damage:
            return self._pass_over(damage)
        except OSError as refusal:
            if not is_unreadable(refusal):
                raise
            # Nothing is known of the file: readers retry, and operators see that it is damaged.
            end = min(log.segment_end(offset), end)
            lost = CorruptRecordError(str(refusal), offset=offset, next_offset=end)
            return self._pass_over(lost)
        self._offset = found.next_offset
        return len(found.records)

    def _pass_over(self, damage: CorruptRecordError) -> int:
        """Note it and go on behind it; it counts as one slice."""
        self._replica.damage.note(damage)
        self._offset = damage.next_offset
        return SLICE_BYTES
