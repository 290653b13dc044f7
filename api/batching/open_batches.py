"""The batches that records are being added to, and the fast path of a record into one of them.

``OpenBatches.add`` is what a ``send`` costs when its partition has a batch with room: no
coroutine, no wake-up, no encoding. Anything else (an unknown topic, a new batch, a full buffer, a
refusal) makes it return ``None``, and the accumulator takes the slow path.

The classes are compiled (``_open_batches.pyx``), and the interpreter's own lock makes ``add``
atomic. The accumulator holds ``lock`` whenever it changes anything, and takes a batch out of
``TopicBatches`` before it looks at what is in it: from then on nothing is added to it.
"""

from __future__ import annotations

from typing import Final

from oncelog.api.batching import _open_batches
from oncelog.api.batching._open_batches import OpenBatch, OpenBatches, TopicBatches, murmur2
from oncelog.storage.records import compiled

__all__ = ["RECORD_OVERHEAD_BYTES", "OpenBatch", "OpenBatches", "TopicBatches", "murmur2"]

RECORD_OVERHEAD_BYTES: Final = 21
"""The most that a record's fixed fields take in a batch, header count included."""

_INTERFACE: Final = 5
"""Must equal the compiled module's; change both together."""

compiled.require(_open_batches, _INTERFACE)
