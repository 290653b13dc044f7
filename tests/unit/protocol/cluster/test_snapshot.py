"""A snapshot of the cluster's state: its parts, who loads them and who passes over them."""

from __future__ import annotations

import copy
import dataclasses

import pytest
from cluster_worlds import TOPIC_ID, ClusterWorld, state_of
from msgspec import structs

from oncelog.actors.protocol.cluster import cluster_records
from oncelog.actors.protocol.cluster.cluster_machine import DELETED_TOPICS_MAX, ClusterMachine
from oncelog.actors.protocol.cluster.cluster_records import (
    BrokerChanged,
    BrokerRegistered,
    ClusterKeyRotated,
    LeaderElected,
    ProducerIdsAllocated,
    ReplicasChanged,
    SnapshotPart,
    TopicConfigured,
    TopicCreated,
    TopicDeleted,
    TopicSnapshot,
    VotersChanged,
    decode_cluster_record,
    encode_cluster_record,
    snapshot_parts,
)
from oncelog.actors.protocol.cluster.cluster_state import topic_in
from oncelog.actors.protocol.cluster.elections import elect
from oncelog.actors.protocol.cluster.quorum import electorate_in
from oncelog.actors.protocol.effects import LogRecord
from oncelog.actors.protocol.messages.cluster import CreateTopicRequest
from oncelog.storage.errors import ErrorCode, InvariantViolation
from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.model import TopicPartition


@pytest.fixture
def world() -> ClusterWorld:
    """A cluster in which everything is other than by default."""
    world = ClusterWorld()
    world.register(1, 2, 3, racks="abc")
    world.change(2, fenced=True, draining=True)
    world.create((1, 2), (3,))
    world.lead(1, (1,))
    world.create((2, 3), name="gone", topic_id="b" * 32)
    world.apply(
        [
            LeaderElected(
                topic_id=TOPIC_ID,
                partition=0,
                leader=1,
                leader_epoch=4,
                isr=(1,),
                incarnation="i",
            ),
            ReplicasChanged(
                topic_id=TOPIC_ID,
                partition=0,
                partition_version=3,
                replicas=(1, 2, 3),
                hosts=(0, 1, 2),
                isr=(1,),
                adding=(3,),
                removing=(2,),
                replication_factor=3,
            ),
            BrokerChanged(
                broker_id=2, broker_epoch=2, is_fenced=True, is_draining=True, disk_epoch=7
            ),
            TopicConfigured(topic_id=TOPIC_ID, settings=(("a", "1"),)),
            TopicDeleted(topic_id="b" * 32),
            ClusterKeyRotated(key_version=1, cluster_key=b"n" * 32, rotated_ms=9),
            ProducerIdsAllocated(next_producer_id=1_000),
            VotersChanged(voters=(1, 3)),
        ]
    )
    return world


def add_more(world: ClusterWorld) -> None:
    """A broker's boot, and an eligible replica: broker 1 has left an ISR of two for one of one."""
    world.apply([BrokerRegistered(broker_id=4, data_dir="/d4", boot_id="boot")])
    world.create((1, 2, 3), name="e", topic_id="e" * 32)
    for broker_id in (1, 3):
        world.start_replica(broker_id, TopicPartition("e", 0))
    leader = elect(world.machine.topics["e"], 0, 3, (3,))
    world.apply([leader])
    assert world.machine.topics["e"].partitions[0].elr == (1,)


def parts_of(world: ClusterWorld) -> list[SnapshotPart]:
    decoded = [decode_cluster_record(one.value or b"") for one in snapshot_parts_of(world)]
    return [part for part in decoded if isinstance(part, SnapshotPart)]


def snapshot_parts_of(world: ClusterWorld) -> list[LogRecord]:
    return snapshot_parts(world.machine.snapshot())


def loaded(*parts: SnapshotPart) -> ClusterMachine:
    machine = ClusterMachine()
    for part in parts:
        machine.apply(encode_cluster_record(part))
    return machine


def test_a_snapshot_gives_the_state(world: ClusterWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    assert state_of(loaded(*parts_of(world))) == state_of(world.machine)
    monkeypatch.setattr(cluster_records, "SNAPSHOT_PART_BYTES", 1)
    assert len(parts_of(world)) == 1 + 1 + 2 * 3 + 1 + 1 + 1
    add_more(world)
    assert state_of(loaded(*parts_of(world))) == state_of(world.machine)


def test_no_field_is_forgotten(world: ClusterWorld) -> None:
    """Each of them is other than by default somewhere in what the test above compares."""
    add_more(world)
    brokers = list(world.machine.broker_states.values())
    partitions = [one for topic in world.machine.topics.values() for one in topic.partitions]
    for states, unrecorded in ((brokers, {"is_refusing"}), (partitions, set())):
        for field in dataclasses.fields(states[0]):
            values = {getattr(state, field.name) for state in states}
            assert values - {field.default} or field.name in unrecorded, field.name


def test_parts_are_not_longer_than_they_must_be(world: ClusterWorld) -> None:
    for number in range(2_000):
        world.create((1, 2), name=f"t{number}", topic_id=f"{number:032x}")
    sizes = [sum(map(len, part.records)) for part in parts_of(world)]
    assert len(sizes) > 3
    assert max(sizes) <= cluster_records.SNAPSHOT_PART_BYTES
    assert min(sizes[:-1]) > cluster_records.SNAPSHOT_PART_BYTES - 1_000


def test_who_has_read_what_is_before_passes_over_a_snapshot(world: ClusterWorld) -> None:
    """Also over one that ends early: its controller was followed by another."""
    state, parts = copy.deepcopy(state_of(world.machine)), snapshot_parts_of(world)
    world.change(3, fenced=True)
    for part in parts:
        world.machine.apply(part)
    assert state_of(world.machine) != state
    assert state_of(world.machine) == state_of(world.replayed())


@pytest.mark.parametrize("missing", [0, 1, -1])
def test_half_a_snapshot_is_refused(
    world: ClusterWorld, missing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_records, "SNAPSHOT_PART_BYTES", 1)
    parts = parts_of(world)
    del parts[missing]
    after = BrokerChanged(broker_id=1, broker_epoch=1, is_fenced=True, is_draining=False)
    with pytest.raises(InvariantViolation, match="has no part"):
        loaded(*parts).apply(encode_cluster_record(after))


def test_a_log_that_has_lost_where_it_begins_is_read_from_its_snapshot(
    world: ClusterWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file that says so was damaged: the segment begins with records that were dropped."""
    monkeypatch.setattr(cluster_records, "SNAPSHOT_PART_BYTES", 1)
    dropped = [
        encode_cluster_record(ProducerIdsAllocated(next_producer_id=1_000)),
        parts_of_older := snapshot_parts_of(world)[-1],
        encode_cluster_record(ProducerIdsAllocated(next_producer_id=2_000)),
    ]
    assert decode_cluster_record(parts_of_older.value).part > 0
    machine = ClusterMachine()
    for record in (*dropped, *snapshot_parts_of(world)):
        machine.apply(record)
    assert state_of(machine) == state_of(world.machine)
    unfounded = ClusterMachine()
    for record in dropped:
        unfounded.apply(record)
    assert unfounded.founded is None


def test_the_voters_are_in_its_first_part(
    world: ClusterWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has only that one, as the copy came no further, knows them all the same."""
    monkeypatch.setattr(cluster_records, "SNAPSHOT_PART_BYTES", 1)
    assert electorate_in([snapshot_parts_of(world)[0].value]).voters == (1, 3)


def test_fields_that_a_snapshot_does_not_have_are_as_by_default() -> None:
    """It was written by a release that did not know them."""
    record = TopicSnapshot(
        name="t",
        topic_id="a",
        settings=(),
        settings_version=0,
        fields=("replicas", "leader"),
        partitions=(((1,), 1),),
    )
    (partition,) = topic_in(record).partitions
    assert (partition.replicas, partition.leader, partition.version) == ((1,), 1, 0)
    with pytest.raises(CorruptDataError, match="not all fields"):
        topic_in(structs.replace(record, fields=("replicas", "term")))


def test_a_deleted_topic_is_not_created_again_by_a_late_call(world: ClusterWorld) -> None:
    late = CreateTopicRequest(name="gone", topic_id="b" * 32, partitions=1)
    for machine in (world.machine, loaded(*parts_of(world))):
        assert machine.decide_create_topic(late).reply.error is ErrorCode.INVALID_REQUEST


def test_so_many_deleted_topics_are_known(world: ClusterWorld) -> None:
    for number in range(DELETED_TOPICS_MAX):
        topic_id = f"{number:032x}"
        created = TopicCreated(name="x", topic_id=topic_id, replicas=((1,),), settings=())
        world.machine.apply(encode_cluster_record(created))
        world.machine.apply(encode_cluster_record(TopicDeleted(topic_id=topic_id)))
    (rest,) = [
        one for one in world.machine.snapshot() if isinstance(one, cluster_records.ClusterSnapshot)
    ]
    assert len(rest.deleted_topic_ids) == DELETED_TOPICS_MAX
    assert rest.deleted_topic_ids[0] == f"{0:032x}"


GOLDEN = bytes.fromhex(
    """
    85a46b696e64ad736e617073686f745f70617274a776657273696f6e01a47061727400a769735f6c617374c3
    a77265636f7264739bc42883a46b696e64ae766f746572735f6368616e676564a776657273696f6e01a6766f
    74657273920103c4ac86a46b696e64af636c75737465725f666f756e646564a776657273696f6e01aa636c75
    737465725f6964d9206363636363636363636363636363636363636363636363636363636363636363ab636c
    75737465725f6b6579c4206b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6bbc
    7472616e73616374696f6e5f73746174655f706172746974696f6e7302b26f6666736574735f706172746974
    696f6e7303c47e89a46b696e64b162726f6b65725f72656769737465726564a776657273696f6e01a962726f
    6b65725f696401a8646174615f646972a32f6431ac6469726563746f72795f6964ab6469726563746f727920
    31a47261636ba161ac62726f6b65725f65706f636801a969735f66656e636564c2aa6469736b5f65706f6368
    ffc45b87a46b696e64ae62726f6b65725f6368616e676564a776657273696f6e01a962726f6b65725f696401
    ac62726f6b65725f65706f636801a969735f66656e636564c2ab69735f647261696e696e67c2aa6469736b5f
    65706f6368ffc47e89a46b696e64b162726f6b65725f72656769737465726564a776657273696f6e01a96272
    6f6b65725f696402a8646174615f646972a32f6432ac6469726563746f72795f6964ab6469726563746f7279
    2032a47261636ba162ac62726f6b65725f65706f636802a969735f66656e636564c3aa6469736b5f65706f63
    6807c45b87a46b696e64ae62726f6b65725f6368616e676564a776657273696f6e01a962726f6b65725f6964
    02ac62726f6b65725f65706f636802a969735f66656e636564c3ab69735f647261696e696e67c3aa6469736b
    5f65706f6368ffc47e89a46b696e64b162726f6b65725f72656769737465726564a776657273696f6e01a962
    726f6b65725f696403a8646174615f646972a32f6433ac6469726563746f72795f6964ab6469726563746f72
    792033a47261636ba163ac62726f6b65725f65706f636803a969735f66656e636564c2aa6469736b5f65706f
    6368ffc45b87a46b696e64ae62726f6b65725f6368616e676564a776657273696f6e01a962726f6b65725f69
    6403ac62726f6b65725f65706f636803a969735f66656e636564c2ab69735f647261696e696e67c2aa646973
    6b5f65706f6368ffc43a83a46b696e64b670726f64756365725f6964735f616c6c6f6361746564a776657273
    696f6e01b06e6578745f70726f64756365725f6964cd03e8c4db88a46b696e64b0636c75737465725f736e61
    7073686f74a776657273696f6e01ab6b65795f76657273696f6e01ab636c75737465725f6b6579c4206e6e6e
    6e6e6e6e6e6e6e6e6e6e6e6e6e6e6e6e6e6e6e6e6e6e6e6e6e6e6e6e6eac70726576696f75735f6b6579c420
    6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6baa726f74617465645f6d7309
    ae656c656374696f6e5f636f756e7402b164656c657465645f746f7069635f69647391d92062626262626262
    62626262626262626262626262626262626262626262626262c5011388a46b696e64ae746f7069635f736e61
    7073686f74a776657273696f6e01a46e616d65a174a8746f7069635f6964d920616161616161616161616161
    6161616161616161616161616161616161616161a873657474696e67739192a161a131b073657474696e6773
    5f76657273696f6e01a66669656c64739ba87265706c69636173a5686f737473a66c6561646572ac6c656164
    65725f65706f6368a3697372ab696e6361726e6174696f6ea776657273696f6ea6616464696e67a872656d6f
    76696e67a9756e73746172746564b27265706c69636174696f6e5f666163746f72aa706172746974696f6e73
    929b930102039300010201049101a169039103910290039b91039100ffff9103a0009090910301
    """
)


def test_a_snapshot_of_this_release_stays_readable(world: ClusterWorld) -> None:
    """Bytes as they were written once: what is in a log must be read for good."""
    assert state_of(loaded_bytes(GOLDEN)) == state_of(world.machine)


def loaded_bytes(value: bytes) -> ClusterMachine:
    machine = ClusterMachine()
    machine.apply(LogRecord(None, value))
    return machine
