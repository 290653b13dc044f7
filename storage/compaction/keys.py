"""Key -> latest offset, for as many keys as fit in a bounded amount of memory.

A long key is represented by 128 bits of BLAKE2b: two colliding keys would lose a record, and
at that width none collide. A key shorter than the digest represents itself; the two kinds cannot
be confused because they differ in length.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

KEYS_PER_ROUND_MAX: Final = 262_144
"""Keys per round, about 50 MB. A dirty part with more is cleaned in several rounds."""

_DIGEST_BYTES: Final = 16


class KeyOffsets:
    """The latest offset of each key of the dirty part that has been read."""

    __slots__ = ("_keys_max", "_offsets")

    def __init__(self, keys_max: int = KEYS_PER_ROUND_MAX) -> None:
        self._keys_max = keys_max
        self._offsets: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._offsets)

    def has_room_for(self, record_count: int) -> bool:
        """Whether a batch of that many records fits, whatever its keys are.

        An empty map takes any batch, so every round makes progress.
        """
        return not self._offsets or len(self._offsets) + record_count <= self._keys_max

    def put(self, key: bytes, offset: int) -> None:
        """Note a record; offsets must rise from call to call."""
        self._offsets[_short(key)] = offset

    def is_latest(self, key: bytes, offset: int) -> bool:
        """Whether no later record with the key has been noted."""
        return self._offsets.get(_short(key), -1) <= offset


def _short(key: bytes) -> bytes:
    return key if len(key) < _DIGEST_BYTES else blake2b(key, digest_size=_DIGEST_BYTES).digest()
