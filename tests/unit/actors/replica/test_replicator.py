"""A leader's calls to followers and controller: what is counted, and who hears of a change."""

from __future__ import annotations

import asyncio

from deadlines import DEADLINE_S

from oncelog.actors.protocol.messages.cluster import AlterIsrReply
from oncelog.actors.protocol.messages.replication import ReplicateReply, ReplicateRequest
from oncelog.actors.protocol.partition.followers import IsrProposal, Push
from oncelog.actors.protocol.partition.partition_machine import PartitionMachine
from oncelog.actors.protocol.partition.replication import (
    LeaderReplication,
    PartitionAssignment,
    ReplicationSettings,
)
from oncelog.actors.protocol.tickets import NO_KEYS
from oncelog.actors.replica.events import ReplicaEvents
from oncelog.actors.replica.observations import ReplicaCounters
from oncelog.actors.replica.replicator import Replicator
from oncelog.storage.model import TopicPartition

PARTITION = TopicPartition("t", 0)
TOPIC_ID = "a" * 32


def assigned(isr: tuple[int, ...], version: int) -> PartitionAssignment:
    return PartitionAssignment(
        leader_epoch=1, partition_version=version, replicas=(1, 2, 3), isr=isr
    )


class Leader(ReplicaEvents):
    """Broker 1, in epoch 1; its followers answer that they have nothing, as there is nothing."""

    def __init__(self, isr: tuple[int, ...], min_insync_replicas: int = 1) -> None:
        self.rises = 0
        self.risen = asyncio.Event()
        self.sent_bytes = 0
        self.counters = ReplicaCounters()
        self.proposed: list[IsrProposal] = []
        machine = PartitionMachine(PARTITION)
        machine.load(0, 0, ())
        machine.become_leader(1, TOPIC_ID, NO_KEYS)
        replication = LeaderReplication(
            machine,
            assigned(isr, 1),
            broker_id=1,
            synced_end_offset=0,
            settings=ReplicationSettings(min_insync_replicas=min_insync_replicas),
            now_ms=0,
        )
        self.replicator = Replicator(replication, log=self, events=self)

    @property
    def changes(self) -> tuple[int, int]:
        """How often the ISR has lost members, and gained some."""
        return self.counters.isr_shrinks, self.counters.isr_expands

    def request_of(self, push: Push) -> ReplicateRequest:
        return ReplicateRequest(
            topic_partition=PARTITION,
            topic_id=TOPIC_ID,
            leader=1,
            leader_epoch=1,
            epoch_start_offset=0,
            previous_end_offset=0,
            previous_leader_epoch=-1,
            high_watermark=0,
            log_start_offset=0,
            batches=b"seven b",
        )

    async def send_push(self, broker_id: int, request: ReplicateRequest) -> ReplicateReply:
        self.sent_bytes += len(request.batches)
        return ReplicateReply(log_end_offset=0)

    async def propose_isr(self, proposal: IsrProposal) -> AlterIsrReply:
        self.proposed.append(proposal)
        return AlterIsrReply(
            leader_epoch=1, partition_version=2, replicas=(1, 2, 3), isr=proposal.isr
        )

    def high_watermark_rose(self) -> None:
        self.rises += 1
        self.risen.set()

    def lose_leadership(self) -> None:
        raise AssertionError


def test_a_leader_tells_that_the_controller_has_taken_members_away() -> None:
    """Whoever waits for them is to be answered, as the high watermark will not rise."""

    async def scenario() -> None:
        leader = Leader((1, 2, 3), min_insync_replicas=2)
        leader.replicator.learn(assigned((1,), 2))
        assert leader.replicator.replication.has_too_few
        assert leader.rises == 1
        assert leader.changes == (1, 0)
        leader.replicator.learn(assigned((1,), 2))
        assert leader.rises == 1
        assert leader.changes == (1, 0)
        leader.replicator.learn(assigned((1, 2), 3))
        assert leader.changes == (1, 1)
        leader.replicator.learn(assigned((1, 3), 4))
        assert leader.changes == (2, 2)
        leader.replicator.stop()

    asyncio.run(scenario())


def test_members_that_join_as_the_leader_proposes_and_bytes_that_it_sends_are_counted() -> None:
    async def scenario() -> None:
        leader = Leader((1,))
        leader.replicator.appended()
        await asyncio.wait_for(leader.risen.wait(), DEADLINE_S)
        assert leader.replicator.isr == leader.proposed[0].isr != (1,)
        assert leader.changes == (0, 1)
        assert leader.sent_bytes > 0
        assert leader.counters.pushed_bytes == leader.sent_bytes
        leader.replicator.stop()

    asyncio.run(scenario())


def test_it_pushes_from_an_append_until_the_end_of_the_turn() -> None:
    """For that long a sync that would hold up the loop is put off."""

    async def body() -> None:
        replicator = Leader((1, 2, 3)).replicator
        assert not replicator.is_pushing
        replicator.appended()
        assert replicator.is_pushing
        await asyncio.sleep(0)
        assert not replicator.is_pushing
        replicator.stop()

    asyncio.run(body())
