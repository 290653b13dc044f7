"""Records of the metadata log: old ones still decode, new ones come back equal."""

from __future__ import annotations

import msgpack
import pytest

from oncelog.actors.protocol.cluster.cluster_records import (
    BrokerChanged,
    BrokerRegistered,
    ClusterFounded,
    ClusterKeyRotated,
    ClusterRecord,
    ClusterSnapshot,
    ControllerElected,
    IsrChanged,
    LeaderElected,
    PartitionsCreated,
    ReplicasChanged,
    SnapshotPart,
    TopicCreated,
    TopicSnapshot,
    VotersChanged,
    decode_cluster_record,
    encode_cluster_record,
)
from oncelog.actors.protocol.tickets import ClusterKeys
from oncelog.storage.exceptions import CorruptDataError

OLD = [
    (
        {"kind": "broker_registered", "broker_id": 1, "data_dir": "/d"},
        BrokerRegistered(broker_id=1, data_dir="/d", directory_id="", rack="", is_fenced=False),
    ),
    (
        {
            "kind": "leader_elected",
            "topic_id": "a",
            "partition": 0,
            "leader": 1,
            "leader_epoch": 3,
            "isr": [1],
            "incarnation": "i",
        },
        LeaderElected(
            topic_id="a", partition=0, leader=1, leader_epoch=3, isr=(1,), incarnation="i"
        ),
    ),
    (
        {
            "kind": "topic_created",
            "name": "t",
            "topic_id": "a",
            "replicas": [[1]],
            "settings": [["a", "b"]],
        },
        TopicCreated(name="t", topic_id="a", replicas=((1,),), settings=(("a", "b"),)),
    ),
    (
        {"kind": "partitions_created", "topic_id": "a", "first_partition": 1, "replicas": [[1]]},
        PartitionsCreated(topic_id="a", first_partition=1, replicas=((1,),)),
    ),
]
"""As written before there were several brokers."""

NEW: list[ClusterRecord] = [
    BrokerRegistered(
        broker_id=2, data_dir="/d", directory_id="x", rack="r", broker_epoch=7, is_fenced=True
    ),
    BrokerChanged(broker_id=2, broker_epoch=7, is_fenced=False, is_draining=True),
    IsrChanged(topic_id="a", partition=0, partition_version=4, isr=(1, 2)),
    ReplicasChanged(
        topic_id="a",
        partition=0,
        partition_version=5,
        replicas=(2, 3, 1),
        hosts=(0, 1, 0),
        isr=(1, 2),
        adding=(3,),
        removing=(1,),
    ),
    LeaderElected(topic_id="a", partition=0, leader=-1, leader_epoch=9, isr=(2,), incarnation=""),
    ControllerElected(broker_id=2, epoch=7),
    VotersChanged(voters=(1, 3, 2)),
    TopicSnapshot(
        name="t",
        topic_id="a",
        settings=(("a", "b"),),
        settings_version=2,
        fields=("replicas", "leader"),
        partitions=(((1, 2), 1), ((2,), -1)),
    ),
    ClusterSnapshot(
        key_version=1,
        cluster_key=b"new",
        previous_key=b"old",
        rotated_ms=5,
        election_count=7,
        deleted_topic_ids=("b", "c"),
    ),
    SnapshotPart(part=1, is_last=True, records=(b"x", b"y")),
]


@pytest.mark.parametrize(("fields", "record"), OLD, ids=[fields["kind"] for fields, _ in OLD])
def test_a_record_of_an_earlier_release_decodes(fields: dict, record: ClusterRecord) -> None:
    assert decode_cluster_record(msgpack.packb({"version": 1, **fields})) == record


@pytest.mark.parametrize("record", NEW, ids=[type(record).__name__ for record in NEW])
def test_a_record_comes_back_equal(record: ClusterRecord) -> None:
    assert decode_cluster_record(encode_cluster_record(record).value or b"") == record


def test_a_field_that_is_not_known_is_refused() -> None:
    fields = {"kind": "isr_changed", "version": 1, "topic_id": "a", "term": 3}
    with pytest.raises(CorruptDataError):
        decode_cluster_record(msgpack.packb(fields))


@pytest.mark.parametrize(
    "record",
    [
        ClusterFounded(
            cluster_id="c",
            cluster_key=b"planted",
            transaction_state_partitions=1,
            offsets_partitions=1,
        ),
        ClusterKeyRotated(key_version=1, cluster_key=b"planted", rotated_ms=5),
        SnapshotPart(part=0, is_last=True, records=(b"planted",)),
        ClusterKeys(version=1, current=b"planted", previous=b"planted"),
    ],
)
def test_what_may_be_logged_shows_no_key(record) -> None:
    assert "planted" not in repr(record)
    assert type(record).__name__ in repr(record)
