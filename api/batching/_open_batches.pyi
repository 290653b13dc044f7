"""What ``_open_batches.pyx`` offers: the classes of ``open_batches``, and its hash."""

INTERFACE: int
"""Of these classes; ``open_batches`` uses only the one that it was written for."""

def murmur2(key: bytes) -> int:
    """Kafka's 32-bit murmur2 hash of ``key``, as an unsigned number."""
