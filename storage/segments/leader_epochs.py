"""Sorted (leader epoch, inclusive start offset) pairs, and how to cut them at either end.

Both rise strictly from pair to pair. Source: KIP-101, KIP-279.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from operator import itemgetter
from typing import Final, TypeAlias

from oncelog.storage.model import INT64_MAX, NO_LEADER_EPOCH, NO_OFFSET

LeaderEpochPairs: TypeAlias = Sequence[tuple[int, int]]

_EPOCH = itemgetter(0)
_START = itemgetter(1)

OFFSET_MAX: Final = INT64_MAX

UNDEFINED_END: Final = (NO_LEADER_EPOCH, NO_OFFSET)
"""The answer for an epoch that the log does not know."""


def end_of_epoch(
    epochs: LeaderEpochPairs, leader_epoch: int, *, log_end_offset: int
) -> tuple[int, int]:
    """Where ``leader_epoch`` ends in this log: (largest known epoch not above it, exclusive end).

    The latest epoch ends at the log end. An epoch above it, or any for an empty list, is undefined.
    One below the first ends where the first begins.
    """
    if not epochs or not 0 <= leader_epoch <= epochs[-1][0]:
        return UNDEFINED_END
    if leader_epoch == epochs[-1][0]:
        return leader_epoch, log_end_offset
    after = bisect_right(epochs, leader_epoch, key=_EPOCH)
    if after == 0:
        return leader_epoch, epochs[0][1]
    return epochs[after - 1][0], epochs[after][1]


def epoch_span(epochs: LeaderEpochPairs, offset: int) -> tuple[int | None, int]:
    """The epoch that wrote at ``offset``, None if unknown, and where it ends (exclusive)."""
    after = bisect_right(epochs, offset, key=_START)
    end = epochs[after][1] if after < len(epochs) else OFFSET_MAX
    return epochs[after - 1][0] if after else None, end


def record_epoch(epochs: list[tuple[int, int]], epoch: int, base_offset: int) -> None:
    """A batch of ``epoch`` is at ``base_offset``: if the epoch is higher, it begins there."""
    if epoch > (epochs[-1][0] if epochs else NO_LEADER_EPOCH):
        epochs.append((epoch, base_offset))


def without_end(epochs: LeaderEpochPairs, offset: int) -> list[tuple[int, int]]:
    """The epochs of a log cut at ``offset``: those that began at or after it are gone."""
    return list(epochs[: bisect_left(epochs, offset, key=_START)])


def without_start(epochs: LeaderEpochPairs, offset: int) -> list[tuple[int, int]]:
    """The epochs of a log that begins at ``offset``: there its first epoch now begins."""
    below = bisect_right(epochs, offset, key=_START)
    if not below:
        return list(epochs)
    return [(epochs[below - 1][0], offset), *epochs[below:]]


def packed_epochs(epochs: LeaderEpochPairs) -> array[int]:
    """The pairs as the kernel takes them: epochs and start offsets in turn."""
    return array("q", [number for pair in epochs for number in pair])


def with_leader_epoch(
    epochs: Sequence[tuple[int, int]], epoch: int, start_offset: int
) -> list[tuple[int, int]]:
    """Add ``epoch``, which begins at ``start_offset``, and drop the pairs that conflict with it.

    An epoch that is already there keeps its earlier start. Source: KIP-101.
    """
    if epochs and epochs[-1][0] == epoch and epochs[-1][1] <= start_offset:
        return list(epochs)
    kept = [(known, start) for known, start in epochs if known < epoch and start < start_offset]
    return [*kept, (epoch, start_offset)]
