"""Choose a record's partition: by a hash of its key, as Kafka's clients do.

The same key and partition count give the same partition as in Kafka, so topics can be copied
between the two. Kafka's Java client hashes with murmur2, librdkafka with CRC-32. Records that no
key places stay on one partition until its batch is sent; in transactions that follow each other
until it has ``STAY_BYTES``. Source: KIP-480, KIP-794; librdkafka, ``rdkafka_msg.c``,
``rd_kafka_msg_partitioner_consistent_random``.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from random import Random
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from oncelog.api.batching.open_batches import murmur2

STAY_BYTES: Final = 16_384
"""After so much, transactions that follow each other go to another partition.

A partition that the last transactions wrote to is enrolled without a call, and each one more costs
a marker. Kafka's ``batch.size``, after which KIP-794 goes on.
"""

_SEED: Final = 0x9747B28C
_MULTIPLIER: Final = 0x5BD1E995
_SHIFT: Final = 24
_INT32_MASK: Final = 0xFFFFFFFF
_POSITIVE_MASK: Final = 0x7FFFFFFF


def partition_for_key(key: bytes, partition_count: int) -> int:
    """The partition of ``key`` among ``partition_count``, as Kafka's Java client has it."""
    return (murmur2(key) & _POSITIVE_MASK) % partition_count


def partitions_for_keys(
    keys: pa.Array, partition_count: int, *, is_crc32: bool = False
) -> npt.NDArray[np.int64]:
    """The partition of each key in a column of binary, string or dictionary type; -1 for null.

    Each distinct key is hashed once. With ``is_crc32`` it is -1 for an empty key too.
    """
    encoded = keys if pa.types.is_dictionary(keys.type) else keys.dictionary_encode()
    dictionary = encoded.dictionary.cast(pa.binary())
    if is_crc32:
        listed = dictionary.to_pylist()
        hashes = np.array([zlib.crc32(key or b"") for key in listed], np.uint32)
        is_placed = np.array([bool(key) for key in listed], bool)
    else:
        hashes = _murmur2_column(dictionary) & np.uint32(_POSITIVE_MASK)
        # A dictionary may hold a null itself; it means a null key, as a null index does.
        is_placed = np.asarray(encoded.dictionary.is_valid())
    distinct = np.where(is_placed, hashes.astype(np.int64) % partition_count, -1)
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


class Partitioner:
    """How one producer chooses partitions; ``choice`` is what its ``partitioner`` is set to.

    ``is_function`` and ``is_crc32`` say how. A function is called in the thread that sends.
    """

    __slots__ = ("_function", "is_crc32", "is_function")

    def __init__(self, choice: str | Callable[[str, bytes | None, int], int | None]) -> None:
        self._function = choice if callable(choice) else None
        self.is_function = self._function is not None
        self.is_crc32 = choice == "consistent_random"

    def of_key(self, key: bytes | None, partition_count: int) -> int | None:
        """The partition of ``key`` by its hash; ``None`` if that does not place the record."""
        if self.is_function:
            return None
        if self.is_crc32:
            return zlib.crc32(key) % partition_count if key else None
        return None if key is None else partition_for_key(key, partition_count)

    def by_function(self, topic: str, key: bytes | None, partition_count: int) -> int | None:
        """What the function says, if there is one.

        Raises what it raises, ``TypeError`` unless that is an int or ``None``, and ``ValueError``
        for a partition that the topic does not have.
        """
        if self._function is None:
            return None
        chosen = self._function(topic, key, partition_count)
        if chosen is None:
            return None
        if not isinstance(chosen, int) or isinstance(chosen, bool):
            raise TypeError(f"{self._named(topic)} must return an int or None, not {chosen!r:.80}")
        if not 0 <= chosen < partition_count:
            raise ValueError(
                f"{self._named(topic)} returned {chosen}; give 0 to {partition_count - 1}, or None"
            )
        return chosen

    def of_column(self, topic: str, keys: pa.Array, partition_count: int) -> npt.NDArray[np.int64]:
        """The partition of each key of a column, -1 where no key places the row.

        A function is called once per row; it raises as ``by_function`` does.
        """
        if self._function is None:
            return partitions_for_keys(keys, partition_count, is_crc32=self.is_crc32)
        chosen = (self.by_function(topic, key, partition_count) for key in keys.to_pylist())
        return np.array([-1 if one is None else one for one in chosen], dtype=np.int64)

    def _named(self, topic: str) -> str:
        name = getattr(self._function, "__qualname__", None) or repr(self._function)
        return f"the partitioner {name:.200} for topic {topic!r}"


class StickyPartitions:
    """The sticky partition of each topic: where records without a key go until the next batch."""

    __slots__ = ("_current", "_filled_bytes", "_random")

    def __init__(self, random: Random) -> None:
        self._random = random
        self._current: dict[str, int] = {}
        self._filled_bytes: dict[str, int] = {}
        """What the sticky partition got since it was chosen."""

    def current(self, topic: str, partition_count: int) -> int:
        """The partition to fill now."""
        partition = self._current.get(topic, -1)
        if 0 <= partition < partition_count:
            return partition
        return self.advance(topic, partition_count)

    def filled(self, topic: str, partition: int, size_bytes: int) -> None:
        """Note that a batch of ``size_bytes`` is closed; it counts for the sticky partition."""
        if self._current.get(topic) == partition:
            self._filled_bytes[topic] += size_bytes

    def leave(self, topic: str, partition: int) -> None:
        """Note that a batch of that partition has failed: the next one does not stay there."""
        if self._current.get(topic) == partition:
            self._filled_bytes[topic] = STAY_BYTES

    def following(self, topic: str, partition_count: int, *, is_staying: bool) -> int:
        """The partition of the batch after one that was sent before it was full.

        Another one, unless ``is_staying``: then the same until it has ``STAY_BYTES``.
        """
        partition = self._current.get(topic, -1)
        is_known = 0 <= partition < partition_count
        if is_staying and is_known and self._filled_bytes[topic] < STAY_BYTES:
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
        self._filled_bytes[topic] = 0
        return partition
