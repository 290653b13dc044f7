"""What ``_open_batches.pyx`` offers: the classes of ``open_batches``, and its hash."""

from oncelog.api.open_batches import OpenBatch as OpenBatch
from oncelog.api.open_batches import OpenBatches as OpenBatches
from oncelog.api.open_batches import TopicBatches as TopicBatches

INTERFACE: int
"""Of these classes; ``open_batches`` uses only the one that it was written for."""

def murmur2(key: bytes) -> int:
    """Kafka's 32-bit murmur2 hash of ``key``, as an unsigned number."""
