"""The state of a segment and the files beside it when it was sealed: ``<base>.summary``.

Kafka's indexes have no checksum, and an empty aborted index may have no file, so their bytes do not
show damage or loss. The summary holds the CRC of each, and its own. A segment with a sound summary
needs no scan when the log is opened. Files that disagree with the summary, or have none, are
rebuilt from the log.

ASCII lines of fixed order: ``0``, the fields by name, ``leader_epochs epoch:start,…``, ``crc32c X``
(8 hex digits, of all lines before).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from crc32c import crc32c

from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.segments.leader_epochs import (
    LeaderEpochPairs,
    with_leader_epoch,
    without_end,
    without_start,
)

SUMMARY_SUFFIX: Final = ".summary"
_VERSION: Final = "0"
_NUMBERS: Final = (
    "next_offset",
    "log_bytes",
    "max_timestamp_ms",
    "max_timestamp_offset",
    "index_crc32c",
    "timeindex_crc32c",
    "txnindex_crc32c",
)


class SegmentSummary(NamedTuple):
    """The end of a segment, its times, and the CRC of each file beside it.

    ``next_offset`` is exclusive. ``leader_epochs``: the (epoch, start offset) pairs that reach
    into the segment; the first may have begun before it.
    """

    next_offset: int
    log_bytes: int
    max_timestamp_ms: int
    max_timestamp_offset: int
    index_crc32c: int
    timeindex_crc32c: int
    txnindex_crc32c: int
    leader_epochs: tuple[tuple[int, int], ...] = ()

    def to_bytes(self) -> bytes:
        """The file's bytes."""
        numbers = "".join(f"{name} {getattr(self, name)}\n" for name in _NUMBERS)
        epochs = ",".join(f"{epoch}:{start}" for epoch, start in self.leader_epochs)
        text = f"{_VERSION}\n{numbers}leader_epochs {epochs}\n".encode()
        return b"%bcrc32c %08x\n" % (text, crc32c(text))

    @classmethod
    def from_bytes(cls, data: bytes) -> SegmentSummary:
        """Read the file's bytes; CorruptDataError if they are torn, damaged or of another form."""
        try:
            version, *lines, epochs_line, _ = data.decode("ascii").splitlines()
            numbers = [int(line.split(" ")[1]) for line in lines]
            pairs = [pair.split(":") for pair in epochs_line.split(" ")[1].split(",") if pair]
            epochs = tuple((int(epoch), int(start)) for epoch, start in pairs)
            summary = cls(**dict(zip(_NUMBERS, numbers, strict=True)), leader_epochs=epochs)
        except (ValueError, IndexError, TypeError) as error:
            raise CorruptDataError("segment summary cannot be read") from error
        if version != _VERSION or summary.to_bytes() != data:
            raise CorruptDataError("segment summary does not match its CRC")
        return summary


def epochs_within(
    pairs: LeaderEpochPairs, base_offset: int, next_offset: int
) -> tuple[tuple[int, int], ...]:
    """The pairs that reach into [base, next), with their start offsets unchanged."""
    below = without_end(pairs, next_offset)
    return tuple(below[len(below) - len(without_start(below, base_offset)) :])


def epochs_of(
    segments: Iterable[tuple[int, int, SegmentSummary | None]],
    stored: LeaderEpochPairs,
    seen: LeaderEpochPairs,
) -> list[tuple[int, int]]:
    """The leader epochs of a log whose segments, in order, are (base, next offset, summary).

    A segment without a summary has the epochs ``seen`` when it was read, and those of the
    ``stored`` checkpoint, which knows where an epoch began whose first batches were compacted away.
    Only the checkpoint knows an epoch without batches, at the end of the log.
    """
    epochs: list[tuple[int, int]] = []
    log_end_offset = 0
    for base_offset, next_offset, summary in segments:
        log_end_offset = next_offset
        found = summary.leader_epochs if summary is not None else ()
        if not found:
            span = base_offset, next_offset
            found = (*epochs_within(stored, *span), *epochs_within(seen, *span))
        for epoch, start in sorted(found):
            if not epochs or epoch > epochs[-1][0]:
                epochs = with_leader_epoch(epochs, epoch, start)
    for epoch, start in stored:
        if start == log_end_offset and (not epochs or epoch > epochs[-1][0]):
            epochs = with_leader_epoch(epochs, epoch, start)
    return epochs
