"""Settings as keywords, for editors and type checkers: made from ``config.py``.

Written by ``./run python tests/helpers/written_settings.py``; change the declarations instead.
"""

from __future__ import annotations

from typing import Literal, TypedDict

from oncelog.actors.config import CallTransport, CleanupPolicy, FlushPolicy, TimestampType
from oncelog.actors.protocol.cluster.hosts import ReplicasPerActor


class TopicOptions(TypedDict, total=False):
    """``TopicConfig`` as keywords; ``None`` stands for the default."""

    max_message_bytes: int | None
    segment_bytes: int | None
    segment_ms: int | None
    index_interval_bytes: int | None
    flush: FlushPolicy | None
    message_timestamp_type: TimestampType | None
    message_timestamp_before_max_ms: int | None
    message_timestamp_after_max_ms: int | None
    cleanup_policy: CleanupPolicy | None
    retention_ms: int | None
    retention_bytes: int | None
    min_compaction_lag_ms: int | None
    max_compaction_lag_ms: int | None
    min_cleanable_dirty_ratio: float | None
    delete_retention_ms: int | None
    replicas_per_actor: ReplicasPerActor | Literal["cluster"] | None
    min_insync_replicas: int | Literal["auto"] | None


class ClusterOptions(TypedDict, total=False):
    """``ClusterConfig`` as keywords."""

    transaction_state_partitions: int
    offsets_partitions: int
    transaction_max_timeout_ms: int
    distributed_write_max_ms: int
    transaction_visibility_wait_ms: int
    transaction_abort_scan_ms: int
    transactional_id_expiration_ms: int
    producer_id_expiration_ms: int
    group_min_session_timeout_ms: int
    group_max_session_timeout_ms: int
    group_initial_rebalance_delay_ms: int
    group_share_session_timeout_ms: int
    out_of_order_wait_ms: int
    log_retention_check_interval_ms: int
    log_checkpoint_interval_ms: int
    log_cleaner_backoff_ms: int
    producer_id_expiration_check_interval_ms: int
    transactional_id_expiration_check_interval_ms: int
    metrics_interval_ms: int
    internal_call_timeout_ms: int
    broker_heartbeat_interval_ms: int
    broker_session_timeout_ms: int
    controller_session_timeout_ms: int
    replica_lag_time_max_ms: int
    disk_refusal_time_max_ms: int
    leader_imbalance_check_interval_ms: int
    transaction_state_log_segment_bytes: int
    offsets_topic_segment_bytes: int
    metadata_log_segment_bytes: int
    metadata_log_max_record_count_between_snapshots: int
    calls: CallTransport
    replicas_per_actor: ReplicasPerActor
    audit_allowed: bool
    certificate_name_rules: str
    token_keys: str | None
    token_issuer: str | None
    token_audience: str | None
    token_name_claim: str
    transaction_two_phase_commit_enable: bool
    kafka_port: int
    kafka_num_partitions: int
    kafka_auto_create_topics: bool
