"""Settings as keywords, for editors and type checkers: made from ``config.py``.

Written by ``./run python tests/helpers/written_settings.py``; change the declarations instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypedDict

from oncelog.api.batching.interceptors import ConsumerInterceptor, ProducerInterceptor
from oncelog.api.config import (
    Acks,
    AssignmentStrategies,
    CompressionType,
    DeliveryOrder,
    PartitionerName,
    PartitionFunction,
    QueueOrder,
)
from oncelog.api.serializing import SerializerFunction, SerializerName
from oncelog.storage.model import IsolationLevel


class ProducerOptions(TypedDict, total=False):
    """``ProducerSettings`` as keywords."""

    transactional_id: str | None
    transaction_timeout_ms: int
    client_id: str | None
    producer_heartbeat_interval_ms: int
    acks: Acks
    batch_size: int
    linger_ms: int
    enrol_ahead_ms: int
    max_in_flight_requests_per_connection: int
    delivery_timeout_ms: int
    request_timeout_ms: int
    max_block_ms: int
    buffer_memory: int
    max_request_size: int
    partitioner: PartitionerName | PartitionFunction
    key_serializer: SerializerName | SerializerFunction | None
    value_serializer: SerializerName | SerializerFunction | None
    compression_type: CompressionType
    compression_level: int | None
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    tracing: bool | None
    interceptors: Sequence[ProducerInterceptor]


class ConsumerOptions(TypedDict, total=False):
    """``ConsumerSettings`` as keywords; the isolation level may be text."""

    group_id: str | None
    group_instance_id: str | None
    client_id: str
    key_deserializer: SerializerName | SerializerFunction | None
    value_deserializer: SerializerName | SerializerFunction | None
    isolation_level: IsolationLevel | Literal["read_uncommitted", "read_committed"]
    auto_offset_reset: str
    enable_auto_commit: bool
    enable_auto_offset_store: bool
    auto_commit_interval_ms: int
    session_timeout_ms: int
    heartbeat_interval_ms: int
    max_poll_interval_ms: int
    metadata_max_age_ms: int
    max_poll_records: int
    partition_assignment_strategy: AssignmentStrategies
    fetch_min_bytes: int
    fetch_max_bytes: int
    max_partition_fetch_bytes: int
    fetch_max_wait_ms: int
    client_rack: str | None
    order: DeliveryOrder
    commit_order_buffer_bytes: int
    spill_directory: str | None
    spill_max_bytes: int
    check_crcs: bool
    request_timeout_ms: int
    default_api_timeout_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    tracing: bool | None
    interceptors: Sequence[ConsumerInterceptor]


class QueueOptions(TypedDict, total=False):
    """``QueueSettings`` as keywords."""

    group_id: str
    max_poll_records: int
    order: QueueOrder
    max_delivery_count: int
    dead_letter_topic: str | None
    record_lock_duration_ms: int
    max_partition_fetch_bytes: int
    fetch_max_bytes: int
    request_timeout_ms: int
    default_api_timeout_ms: int
    tracing: bool | None
