"""Random histories of brokers, elections, ISR changes and reassignments.

After each step: one leader per epoch, from the live members of the ISR; replicas differ; the ISR is
never empty and among them. At the end a replay of the log gives the same state. Each saboteur
breaks a rule, and a walk must notice.
"""

from __future__ import annotations

import random

import pytest
from cluster_worlds import CLUSTER_ID, ClusterWorld, state_of
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from oncelog.actors.protocol.cluster import brokers, cluster_machine, elections, reassignment
from oncelog.actors.protocol.cluster.brokers import (
    decide_drain,
    decide_heartbeat,
    decide_register,
    fence,
)
from oncelog.actors.protocol.cluster.cluster_records import TopicCreated
from oncelog.actors.protocol.cluster.elections import balance, decide_alter_isr
from oncelog.actors.protocol.cluster.placement import check_replication, place_partitions
from oncelog.actors.protocol.cluster.reassignment import decide_reassign, drained
from oncelog.actors.protocol.messages.brokers import (
    BrokerHeartbeatRequest,
    DrainBrokerRequest,
    ReassignPartitionRequest,
    RegisterBrokerRequest,
)
from oncelog.actors.protocol.messages.cluster import AlterIsrRequest
from oncelog.storage.errors import ErrorCode, InvariantViolation
from oncelog.storage.model import TopicPartition

BROKERS = range(1, 6)
STEPS = 150


class Walk(ClusterWorld):
    """A cluster in which everything that can happen does."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.chance = random.Random(seed)
        self.late: list[AlterIsrRequest] = []
        for broker_id in BROKERS:
            self.start(broker_id)
            while self.machine.broker_states[broker_id].is_fenced:
                self.beat(broker_id)
        self.add_topic("t")

    # --- what can happen -------------------------------------------------------------------------

    def start(self, broker_id: int) -> None:
        request = RegisterBrokerRequest(
            broker_id=broker_id,
            directory_id=f"directory {broker_id}",
            data_dir="/d",
            rack="ab"[broker_id % 2],
            cluster_id=CLUSTER_ID,
        )
        states = self.machine.broker_states
        reply = self.run(decide_register(self.machine.topics, states, request, CLUSTER_ID))
        assert reply.error is ErrorCode.NONE

    def beat(self, broker_id: int) -> None:
        epoch = self.machine.broker_states[broker_id].broker_epoch - (self.chance.random() < 0.1)
        request = BrokerHeartbeatRequest(broker_id=broker_id, broker_epoch=epoch)
        held = [one for one in self.machine.placements() if one.broker_id == broker_id]
        silent = self.chance.sample(held, len(held) // 2) if self.chance.random() < 0.2 else []
        states = self.machine.broker_states
        self.run(decide_heartbeat(self.machine.topics, states, request, silent))

    def lose(self, broker_id: int) -> None:
        states = self.machine.broker_states
        if not states[broker_id].is_fenced:
            self.apply(fence(self.machine.topics, states, broker_id))

    def drain(self, broker_id: int) -> None:
        request = DrainBrokerRequest(broker_id=broker_id, is_draining=self.chance.random() < 0.5)
        self.run(decide_drain(self.machine.topics, self.machine.broker_states, request))

    def move_off(self) -> None:
        for move in drained(self.machine.topics, self.machine.broker_states):
            self.reassign(move.topic_partition, move.replicas)

    def add_topic(self, name: str) -> None:
        states, factor = self.machine.broker_states, self.chance.choice((1, 2, 3))
        if check_replication(factor, 1, states)[0] is ErrorCode.NONE:
            placed = place_partitions(2, factor, states, self.machine.topics.values())
            topic_id = f"{len(self.machine.topics):032x}"
            record = TopicCreated(name=name, topic_id=topic_id, replicas=placed, settings=())
            self.apply([record])
            for number, replicas in enumerate(placed):
                if self.chance.random() < 0.7:
                    self.start_replica(replicas[0], TopicPartition(name, number))

    def alter_isr(self, tp: TopicPartition) -> None:
        """A leader proposes; some requests arrive later, or twice."""
        topic = self.machine.topics[tp.topic]
        partition = topic.partitions[tp.partition]
        others = [n for n in partition.replicas if n != partition.leader]
        count = self.chance.choice((len(others), self.chance.randint(0, len(others))))
        members = self.chance.sample(others, count)
        request = AlterIsrRequest(
            topic_partition=tp,
            topic_id=topic.topic_id,
            broker_id=partition.leader,
            leader_epoch=partition.leader_epoch,
            partition_version=partition.version,
            isr=(partition.leader, *members),
        )
        if self.chance.random() < 0.3:
            self.late = [*self.late[-5:], request]
        if self.chance.random() < 0.8:
            self.propose(request)

    def propose(self, request: AlterIsrRequest) -> None:
        """Accepted only from the current leader, with the current version."""
        topic = self.machine.topics[request.topic_partition.topic]
        partition = topic.partitions[request.topic_partition.partition]
        current = (partition.leader, partition.leader_epoch, partition.version)
        named = (request.broker_id, request.leader_epoch, request.partition_version)
        reply = self.run(decide_alter_isr(self.machine.topics, self.machine.broker_states, request))
        if reply.error is ErrorCode.NONE:
            assert named == current
            assert reply.partition_version == partition.version
        if reply.error is not ErrorCode.INVALID_REQUEST:
            assert set(reply.isr) == set(partition.isr)
        self.complete(request.topic_partition)

    def complete(self, tp: TopicPartition) -> None:
        topic = self.machine.topics[tp.topic]
        before = set(topic.partitions[tp.partition].target)
        records = reassignment.complete(topic, tp.partition, self.machine.broker_states)
        if records:
            assert before <= set(topic.partitions[tp.partition].isr)
        self.apply(records)

    def reassign(self, tp: TopicPartition, replicas: tuple[int, ...]) -> None:
        request = ReassignPartitionRequest(topic_partition=tp, replicas=replicas)
        self.run(decide_reassign(self.machine.topics, self.machine.broker_states, request))

    # --- a walk ----------------------------------------------------------------------------------

    def step(self) -> None:
        draw = self.chance
        broker_id = draw.choice(BROKERS)
        partitions = [
            TopicPartition(name, number)
            for name, topic in self.machine.topics.items()
            for number in range(len(topic.partitions))
        ]
        tp = draw.choice(partitions)
        states, topics = self.machine.broker_states, self.machine.topics.values()
        kind = draw.random()
        if kind < 0.1:
            replicas = self.machine.topics[tp.topic].partitions[tp.partition].replicas
            self.start_replica(draw.choice(replicas), tp)
        elif kind < 0.16:
            self.lose(broker_id)
        elif kind < 0.18:
            self.start(broker_id)
        elif kind < 0.33:
            self.beat(broker_id)
        elif kind < 0.65:
            self.alter_isr(tp)
        elif kind < 0.72 and self.late:
            self.propose(draw.choice(self.late))
        elif kind < 0.82:
            replicas = tuple(draw.sample(list(BROKERS), draw.randint(0, 3)))
            self.reassign(tp, replicas)
        elif kind < 0.88:
            self.apply(balance(topics, states))
        elif kind < 0.91:
            self.drain(broker_id)
        elif kind < 0.95:
            self.move_off()
        elif len(self.machine.topics) < 4:
            self.add_topic(f"t{len(self.machine.topics)}")
        self.check()


def walk(seed: int) -> Walk:
    world = Walk(seed)
    for _ in range(STEPS):
        world.step()
    replayed = world.replayed()
    assert state_of(replayed) == state_of(world.machine)
    restored = world.restored(world.chance.randint(1, len(world.log)))
    assert state_of(restored) == state_of(world.machine)
    # Leaders are told of what has changed, be it before the snapshot.
    for tp in set(replayed.take_unannounced()) - set(restored.take_unannounced()):
        partition = world.machine.topics[tp.topic].partitions[tp.partition]
        assert len(partition.replicas) == 1
        assert partition.incarnation, "it has not asked for its role since"
    return world


@given(seed=st.integers(0, 2**32))
def test_elections_and_moves_keep_their_rules_and_replay_as_they_were(seed: int) -> None:
    assert len(walk(seed).log) > len(BROKERS)


def test_walks_reach_what_they_are_for() -> None:
    worlds = [walk(seed) for seed in range(30)]
    partitions = [p for w in worlds for t in w.machine.topics.values() for p in t.partitions]
    elected = [leader for world in worlds for leader in world.leaders.values()]
    assert len(elected) > 300
    assert elected.count(-1) > 20
    assert sum(partition.is_moving for partition in partitions) > 5
    assert sum(b"replicas_changed" in value for world in worlds for value in world.log) > 100
    assert sum(b"isr_changed" in value for world in worlds for value in world.log) > 300


# --- saboteurs -----------------------------------------------------------------------------------


def elects_any_replica(partition, brokers, *, without=-1):  # type: ignore[no-untyped-def]
    return tuple(n for n in partition.replicas if elections.is_live(n, brokers) and n != without)


def leads_when_back(topics, broker_id):  # type: ignore[no-untyped-def]
    return tuple(
        elections.elect(topic, number, broker_id)
        for topic, number, partition in elections._partitions(topics)
        if partition.leader == -1 and broker_id in partition.replicas
    )


def leads_when_started(topic, number, request, brokers):  # type: ignore[no-untyped-def]
    if topic.partitions[number].leader != -1:
        return None
    return REAL_ELECT(topic, number, request.broker_id)


def removes_early(topic, number, brokers):  # type: ignore[no-untyped-def]
    partition = topic.partitions[number]
    if not partition.is_moving:
        return ()
    return reassignment._reduced(topic, number, partition.target, brokers)


def forgets_the_isr(topics, broker_id, brokers):  # type: ignore[no-untyped-def]
    return ()


def accepts_any_version(partition, brokers, request):  # type: ignore[no-untyped-def]
    return ErrorCode.NONE, ""


def elects_in_the_epoch_before(topic, number, leader, isr=None):  # type: ignore[no-untyped-def]
    real = REAL_ELECT(topic, number, leader, isr)
    return type(real)(
        **{
            **{name: getattr(real, name) for name in real.__struct_fields__},
            "leader_epoch": max(real.leader_epoch - 1, 0),
        }
    )


REAL_ELECT = elections.elect


def forgets_who_moves(topic):  # type: ignore[no-untyped-def]
    snapshot = REAL_SNAPSHOT(topic)
    place = snapshot.fields.index("adding")
    rows = [(*row[:place], (), *row[place + 1 :]) for row in snapshot.partitions]
    return structs.replace(snapshot, partitions=tuple(rows))


def forgets_who_drains(broker):  # type: ignore[no-untyped-def]
    return REAL_REGISTRATIONS(broker)[:1]


REAL_SNAPSHOT = cluster_machine.snapshot_of
REAL_REGISTRATIONS = cluster_machine.registrations_of

SABOTEURS = {
    "a snapshot without the replicas that are being added": (
        cluster_machine,
        "snapshot_of",
        forgets_who_moves,
    ),
    "a snapshot without the brokers that drain": (
        cluster_machine,
        "registrations_of",
        forgets_who_drains,
    ),
    "an election outside the ISR": (elections, "candidates", elects_any_replica),
    "a broker that leads whatever nobody leads when it is back": (
        brokers,
        "after_unfencing",
        leads_when_back,
    ),
    "a replica that leads whatever nobody leads when it starts": (
        cluster_machine,
        "after_start",
        leads_when_started,
    ),
    "old replicas removed before the new ones are in sync": (
        reassignment,
        "complete",
        removes_early,
    ),
    "a fenced broker that goes on leading": (brokers, "after_fencing", forgets_the_isr),
    "a change of the ISR that names an old version": (
        elections,
        "_check_isr",
        accepts_any_version,
    ),
    "an election in the epoch before": (elections, "elect", elects_in_the_epoch_before),
}


@pytest.mark.parametrize("sabotage", SABOTEURS)
def test_a_broken_rule_is_noticed(sabotage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*SABOTEURS[sabotage])
    assert is_caught()


def is_caught() -> bool:
    for seed in range(200):
        try:
            walk(seed)
        except (AssertionError, InvariantViolation):
            return True
    return False
