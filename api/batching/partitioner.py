"""Choose a record's partition: by murmur2 of its key, as Kafka's clients do.

The same key and partition count give the same partition as in Kafka, so topics can be copied
between the two. Records without a key stay on one partition until its batch is sent.
Source: KIP-480.
"""

from __future__ import annotations

from random import Random
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from oncelog.api.batching.open_batches import murmur2

_SEED: Final = 0x9747B28C
_MULTIPLIER: Final = 0x5BD1E995
_SHIFT: Final = 24
_INT32_MASK: Final = 0xFFFFFFFF
_POSITIVE_MASK: Final = 0x7FFFFFFF


def partition_for_key(key: bytes, partition_count: int) -> int:
    """The partition of ``key`` among ``partition_count``."""
    return (murmur2(key) & _POSITIVE_MASK) % partition_count


def partitions_for_keys(keys: pa.Array, partition_count: int) -> npt.NDArray[np.int64]:
    """The partition of each key in a column of binary, string or dictionary type; -1 for null.

    Each distinct key is hashed once.
    """
    encoded = keys if pa.types.is_dictionary(keys.type) else keys.dictionary_encode()
    distinct = (_murmur2_column(encoded.dictionary.cast(pa.binary())) & _POSITIVE_MASK).astype(
        np.int64
    ) % partition_count
    # A dictionary may hold a null itself; it means a null key, as a null index does.
    distinct[np.asarray(encoded.dictionary.is_null())] = -1
    # One extra entry, for the null indices alone.
    places = encoded.indices.cast(pa.int64()).fill_null(len(distinct)).to_numpy()
    chosen: npt.NDArray[np.int64] = np.append(distinct, -1)[places]
    return chosen


def _murmur2_column(keys: pa.Array) -> npt.NDArray[np.uint32]:
    """``murmur2`` of every key in a binary column, one key length at a time."""
    hashes = np.zeros(len(keys), dtype=np.uint32)
    if not len(keys):
        return hashes
    _, offsets_buffer, data_buffer = keys.buffers()
    offsets = np.frombuffer(offsets_buffer, dtype=np.int32)[
        keys.offset : keys.offset + len(keys) + 1
    ].astype(np.int64)
    data = np.frombuffer(data_buffer or b"", dtype=np.uint8)
    lengths = np.diff(offsets)
    for length in np.unique(lengths).tolist():
        rows = np.flatnonzero(lengths == length)
        characters = data[offsets[rows][:, None] + np.arange(length)]
        hashes[rows] = _murmur2_matrix(characters)
    return hashes


def _murmur2_matrix(characters: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
    """``murmur2`` of each row of a byte matrix; arithmetic wraps at 32 bits, as intended."""
    count, length = characters.shape
    multiplier = np.uint32(_MULTIPLIER)
    hashed: npt.NDArray[np.uint32] = np.full(count, (_SEED ^ length) & _INT32_MASK, dtype=np.uint32)
    whole = length & ~3
    words = np.ascontiguousarray(characters[:, :whole]).view("<u4")
    for column in range(whole // 4):
        word = words[:, column] * multiplier
        word ^= word >> np.uint32(_SHIFT)
        word *= multiplier
        hashed = (hashed * multiplier) ^ word
    if length > whole:
        for position in range(whole, length):
            shift = np.uint32(8 * (position - whole))
            hashed ^= characters[:, position].astype(np.uint32) << shift
        hashed *= multiplier
    hashed ^= hashed >> np.uint32(13)
    hashed *= multiplier
    hashed ^= hashed >> np.uint32(15)
    return hashed


class StickyPartitions:
    """The sticky partition of each topic: where records without a key go until the next batch."""

    __slots__ = ("_current", "_random")

    def __init__(self, random: Random) -> None:
        self._random = random
        self._current: dict[str, int] = {}

    def current(self, topic: str, partition_count: int) -> int:
        """The partition to fill now."""
        partition = self._current.get(topic, -1)
        if 0 <= partition < partition_count:
            return partition
        return self.advance(topic, partition_count)

    def advance(self, topic: str, partition_count: int) -> int:
        """Choose another partition at random for the next batch, if there is more than one."""
        previous = self._current.get(topic, -1)
        if partition_count > 1 and 0 <= previous < partition_count:
            step = self._random.randrange(1, partition_count)
            partition = (previous + step) % partition_count
        else:
            partition = self._random.randrange(partition_count)
        self._current[topic] = partition
        return partition
