"""The interface of ``_open_batches.pyx``: the classes of ``open_batches``, and its hash."""

INTERFACE: int
"""The version of these classes; ``open_batches`` uses only the one it was written for."""

def murmur2(key: bytes) -> int:
    """Kafka's 32-bit murmur2 hash of ``key``, unsigned."""
