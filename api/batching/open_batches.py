"""The open batches, and the fast path of a record into one of them.

``OpenBatches.add`` is the whole cost of a ``send`` whose partition has a batch with room: no
coroutine, no wake-up. In any other case (unknown topic, new batch, full buffer, invalid record) it
returns ``None``, and the accumulator takes the slow path.

``_open_batches.pyx`` is the same in C, where the interpreter's own lock makes ``add`` atomic; here
``lock`` does. The accumulator holds ``lock`` for every change. It takes a batch out of
``TopicBatches`` before it looks inside: from then on no record can be added to it.
"""

from __future__ import annotations

from typing import Final

from oncelog.api.batching import _open_batches
from oncelog.api.batching._open_batches import OpenBatch, OpenBatches, TopicBatches, murmur2
from oncelog.storage.records import compiled

__all__ = ["RECORD_OVERHEAD_BYTES", "OpenBatch", "OpenBatches", "TopicBatches", "murmur2"]

RECORD_OVERHEAD_BYTES: Final = 21
"""Upper bound of a record's fixed fields in a batch, header count included."""

_INTERFACE: Final = 6
"""Must equal the constant in the compiled module; change both together."""

compiled.require(_open_batches, _INTERFACE)
