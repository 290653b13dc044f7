"""What ``_open_batches.pyx`` offers; ``open_batches`` says what it is for."""

from collections.abc import Callable
from threading import Lock

from oncelog.actors.protocol.messages.cluster import TopicMetadata
from oncelog.api.batching.delivery import BatchDelivery, RecordFuture
from oncelog.api.batching.rows import BlockRows
from oncelog.storage.records.rows import RecordInput

INTERFACE: int
"""Of these classes; ``open_batches`` accepts only the one that it was written for."""

class OpenBatch:
    """The batch that a partition's next record goes to; ``size_bytes`` is an upper estimate."""

    @property
    def size_bytes(self) -> int: ...
    @property
    def created_s(self) -> float: ...
    @property
    def delivery(self) -> BatchDelivery: ...
    def takes_time(self, timestamp_ms: int) -> bool:
        """Whether a record of that time fits: 64 bits count from the time of the first."""

    def put(self, record: RecordInput, size_bytes: int) -> int:
        """Add one record; its place in the batch."""

    def rows(self) -> BlockRows:
        """All records; nothing can be added afterwards."""

class TopicBatches:
    """The open batch of each partition of one topic, as ``metadata`` counts them.

    ``sticky`` is the one that records without a key go to; it is one of ``batches``, or ``None``.
    """

    metadata: TopicMetadata
    sticky: OpenBatch | None
    @property
    def batches(self) -> list[OpenBatch | None]: ...

class OpenBatches:
    """The open batches of one producer, by topic.

    ``is_accepting`` is false while every record must take the slow path. ``known_topics`` is read
    and ``now_ms`` gives the time, both from any thread. With ``is_system_time`` that is the
    machine's clock, which is read without asking ``now_ms``. ``is_crc32`` and ``is_by_function``
    are as in ``Partitioner``; a function is asked on the slow path only.
    """

    is_accepting: bool
    def __init__(
        self,
        *,
        known_topics: dict[str, TopicMetadata],
        now_ms: Callable[[], int],
        batch_bytes: int,
        record_bytes_max: int,
        buffer_bytes_max: int,
        is_system_time: bool = False,
        is_crc32: bool = False,
        is_by_function: bool = False,
    ) -> None: ...
    @property
    def topics(self) -> dict[str, TopicBatches]: ...
    @property
    def buffered_bytes(self) -> int: ...
    @property
    def lock(self) -> Lock: ...
    def send(
        self,
        topic: object,
        value: object = None,
        key: object = None,
        *,
        headers: object = (),
        timestamp_ms: object = None,
        partition: object = None,
        on_delivery: object = None,
    ) -> RecordFuture:
        """What ``sender`` gives."""

    def sender(self, otherwise: Callable[..., RecordFuture]) -> Callable[..., RecordFuture]:
        """``send`` with its keywords: ``add``, or ``otherwise`` with the same seven arguments.

        A record with ``on_delivery`` goes to ``otherwise``.
        """

    def add(
        self,
        topic: object,
        value: object,
        key: object,
        headers: object,
        timestamp_ms: object,
        partition: object,
    ) -> RecordFuture | None:
        """Add one record, if that needs nothing but a batch with room; else ``None``."""

    def put(self, batch: OpenBatch, record: RecordInput, size_bytes: int) -> RecordFuture:
        """Add one record to ``batch``, under ``lock``."""

    def new_batch(self, delivery: BatchDelivery, created_s: float) -> OpenBatch:
        """An empty batch, not among ``topics`` yet."""

    def new_topic(self, metadata: TopicMetadata, partition_count: int) -> TopicBatches:
        """A topic without open batches, not among ``topics`` yet."""

    def hold(self, size_bytes: int) -> None:
        """Add to the byte count (a negative number subtracts), under ``lock``."""

def murmur2(key: bytes) -> int:
    """Kafka's 32-bit murmur2 hash of ``key``, unsigned."""
