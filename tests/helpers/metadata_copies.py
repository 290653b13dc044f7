"""What candidates and controllers send to a broker's copy of the metadata log."""

from __future__ import annotations

from typing import Any

from oncelog.actors.protocol.cluster.cluster_records import ClusterRecord, encode_cluster_record
from oncelog.actors.protocol.cluster.quorum import LogPosition
from oncelog.actors.protocol.messages.replication import ReplicateRequest, VoteRequest
from oncelog.storage.model import CLUSTER_METADATA_TOPIC, TopicPartition
from oncelog.storage.records.batch import parse_header
from oncelog.storage.records.codec import encode_records

OTHER = LogPosition(9, 1_000)


def asked(epoch: int, candidate: int, log: LogPosition = OTHER, **fields: Any) -> VoteRequest:
    return VoteRequest(
        cluster_id="",
        candidate=candidate,
        leader_epoch=epoch,
        log_epoch=log.epoch,
        log_end_offset=log.end_offset,
        **fields,
    )


def pushed(
    epoch: int, *records: ClusterRecord, leader: int = 1, at: int = 0, previous: int = -1
) -> ReplicateRequest:
    """A push of the records as one batch, which is the first of its epoch."""
    batch = b""
    if records:
        encoded = [encode_cluster_record(record) for record in records]
        sealed = bytearray(
            encode_records(
                [(one.key, one.value, 0, ()) for one in encoded],
                producer_id=-1,
                producer_epoch=-1,
                base_sequence=-1,
                is_transactional=False,
            )
        )
        header = parse_header(sealed).with_offset(at, epoch)
        sealed[0:8] = header.base_offset.to_bytes(8, "big")
        sealed[12:16] = header.leader_epoch.to_bytes(4, "big")
        batch = bytes(sealed)
    return ReplicateRequest(
        topic_partition=TopicPartition(CLUSTER_METADATA_TOPIC, 0),
        topic_id="",
        leader=leader,
        leader_epoch=epoch,
        epoch_start_offset=at,
        previous_end_offset=at,
        previous_leader_epoch=previous,
        high_watermark=0,
        log_start_offset=0,
        batches=batch,
    )
