"""A transaction coordinator on a log with two copies: its leader changes with a tail not committed.

The machine is that of production; the log is a list on each of two brokers, committed as far as all
in-sync replicas have it. The rules of the shell are few, and here: records are applied, and answers
leave, once they are committed; a new coordinator replays its log to the end, and acts once all of
that is committed (``waits``). One producer writes to P and Q and commits; its transaction may time
out at any moment. Leader 1 may start again with its log, and its host may be lost.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from functools import partial
from typing import Any

import msgspec
from explorer import OMITTED, BrokenPromiseError, ExploredWorld, Step
from msgspec.structs import replace

from oncelog.actors.protocol.effects import Decision, LogRecord
from oncelog.actors.protocol.messages.transaction import (
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
)
from oncelog.actors.protocol.transaction.producer_ids import ProducerIdBlocks
from oncelog.actors.protocol.transaction.transaction_machine import TransactionMachine
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import TopicPartition

ID = "writer"
P, Q = TopicPartition("p", 0), TopicPartition("q", 0)
LATER_MS = 10**9
"""When each transaction has timed out."""

OMITTED["Coordinator"] = frozenset({"machine"})  # It is what ``log`` and ``applied`` make it.


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """How often what may happen."""

    requests: int = 4
    restarts: int = 1
    lost_hosts: int = 1


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What is left of the scope, and what was promised."""

    left: Scope
    leader: int = 1
    isr: tuple[int, ...] = (1, 2)
    producer: tuple[int, int] = (-1, -1)
    enrolled: tuple[TopicPartition, ...] = ()
    """Whose enrolment was answered."""
    outcomes: tuple[tuple[TopicPartition, bool], ...] = ()
    """Partitions with their marker, and whether it commits."""
    is_answered: bool = False
    """That the transaction is committed."""


class Coordinator:
    """One copy of the log; on its leader the machine, as far as it has applied it."""

    def __init__(self) -> None:
        self.log: list[LogRecord] = []
        self.applied = 0
        self.is_loaded = False
        self.waiting: list[tuple[int, str]] = []
        """Answers to leave once the log is committed up to an offset (exclusive)."""
        self.machine = new_machine()

    def load(self) -> None:
        """Replay the log to its end; nothing else is known of an earlier life."""
        self.machine, self.waiting, self.is_loaded = new_machine(), [], False
        self.applied = len(self.log)
        for record in self.log:
            self.machine.ids.apply(record)


def new_machine() -> TransactionMachine:
    ids = ProducerIdBlocks()
    ids.add_block(0, 10)
    return TransactionMachine(
        producer_ids=ids, transaction_max_timeout_ms=1_000, transactional_id_expiration_ms=10**12
    )


class CoordinatorModel:
    """See the module. ``story``: steps taken before."""

    def __init__(
        self, name: str, scope: Scope, *, waits: bool = True, story: tuple[str, ...] = ()
    ) -> None:
        self.name, self.scope, self.waits, self.story = name, scope, waits, story

    def start(self) -> ExploredWorld:
        world = ExploredWorld({1: Coordinator(), 2: Coordinator()}, Facts(left=self.scope))
        leader = world.own(1)
        leader.is_loaded = True
        request = InitProducerIdRequest(transactional_id=ID, transaction_timeout_ms=1_000)
        decided = leader.machine.producers.decide_init_producer_id(request, 0)
        self._append("", decided, world)
        while len(world.see(2).log) < len(leader.log):
            self._replicate(world)
        reply = decided.reply
        world.facts = replace(world.facts, producer=(reply.producer_id, reply.producer_epoch))
        for line in self.story:
            dict(self.steps(world))[line](world)
        return world

    def key(self, world: ExploredWorld, frozen_part: Callable[[Any], Hashable]) -> Hashable:
        return (*world.keys(frozen_part), world.facts)

    def is_in_scope(self, world: ExploredWorld) -> bool:
        return True

    # --- what can happen -------------------------------------------------------------------------

    def steps(self, world: ExploredWorld) -> Iterator[Step]:
        facts = world.facts
        n, left, leader = facts.leader, facts.left, world.see(facts.leader)
        if len(facts.isr) > 1 and len(world.see(2).log) < len(leader.log):
            yield "2 has the next record", self._replicate
        if left.restarts:
            yield f"the process of {n} dies, and leads again", self._restart
        if left.lost_hosts and n == 1:
            yield "the host of 1 is lost, and 2 leads", self._lose_host
        if not leader.is_loaded:
            return
        if left.requests:
            yield "the producer enrols P", partial(self._enrol, P)
            yield "the producer enrols Q", partial(self._enrol, Q)
            if len(facts.enrolled) == 2:
                yield "the producer commits", self._end
        yield "the transaction times out", self._time_out
        known = leader.machine.ids.metadata(ID)
        if leader.machine.upkeep.is_prepared(ID):
            told = dict(facts.outcomes)
            for marker in leader.machine.upkeep.markers_due(ID):
                for tp in marker.partitions:
                    if tp not in told:
                        verdict = "COMMIT" if marker.committed else "ABORT"
                        step = partial(self._mark, tp, marker.committed)
                        yield f"{n} sends {verdict} to {tp.topic.upper()}", step
            if known is not None and set(known.partitions) <= told.keys():
                yield f"{n} completes it", self._complete

    def _append(self, answer: str, decided: Decision[Any], world: ExploredWorld) -> None:
        leader = world.own(world.facts.leader)
        leader.log += decided.records
        if decided.reply.error is ErrorCode.NONE and answer:
            leader.waiting.append((len(leader.log), answer))
        self._commit(world)

    def _replicate(self, world: ExploredWorld) -> None:
        follower, leader = world.own(2), world.see(1)
        follower.log.append(leader.log[len(follower.log)])
        self._commit(world)

    def _committed_end(self, world: ExploredWorld) -> int:
        return min(len(world.see(n).log) for n in world.facts.isr)

    def _commit(self, world: ExploredWorld) -> None:
        """Apply what all in sync have, and answer."""
        facts, leader = world.facts, world.own(world.facts.leader)
        committed = self._committed_end(world)
        for record in leader.log[leader.applied : committed]:
            leader.machine.ids.apply(record)
        leader.applied = max(leader.applied, committed)
        due = [answer for end, answer in leader.waiting if end <= committed]
        leader.waiting = [one for one in leader.waiting if one[0] > committed]
        for answer in due:
            if answer == "committed":
                facts = replace(facts, is_answered=True)
            else:
                tp = P if answer == "p" else Q
                facts = replace(facts, enrolled=tuple(sorted({*facts.enrolled, tp})))
        world.facts = facts
        if committed == len(leader.log) or not self.waits:
            leader.is_loaded = True

    def _restart(self, world: ExploredWorld) -> None:
        use(world, restarts=1)
        world.own(world.facts.leader).load()
        self._commit(world)

    def _lose_host(self, world: ExploredWorld) -> None:
        use(world, lost_hosts=1)
        world.facts = replace(world.facts, leader=2, isr=(2,))
        world.own(2).load()
        self._commit(world)

    def _enrol(self, tp: TopicPartition, world: ExploredWorld) -> None:
        use(world, requests=1)
        producer_id, epoch = world.facts.producer
        request = AddPartitionsToTxnRequest(
            transactional_id=ID, producer_id=producer_id, producer_epoch=epoch, partitions=(tp,)
        )
        leader = world.own(world.facts.leader)
        decided = leader.machine.producers.decide_add_partitions(request, 0, {"p": 1, "q": 1})
        self._append(tp.topic, decided, world)

    def _end(self, world: ExploredWorld) -> None:
        use(world, requests=1)
        producer_id, epoch = world.facts.producer
        request = EndTxnRequest(
            transactional_id=ID, committed=True, producer_id=producer_id, producer_epoch=epoch
        )
        leader = world.own(world.facts.leader)
        self._append("committed", leader.machine.decide_end_txn(request, 0), world)

    def _time_out(self, world: ExploredWorld) -> None:
        leader = world.own(world.facts.leader)
        self._append("", leader.machine.upkeep.decide_timeout(ID, LATER_MS), world)

    def _mark(self, tp: TopicPartition, is_commit: bool, world: ExploredWorld) -> None:
        outcomes = (*world.facts.outcomes, (tp, is_commit))
        world.facts = replace(world.facts, outcomes=tuple(sorted(outcomes)))

    def _complete(self, world: ExploredWorld) -> None:
        leader = world.own(world.facts.leader)
        if not leader.machine.ids.is_pending(ID):
            self._append("", leader.machine.upkeep.decide_complete(ID, LATER_MS), world)

    # --- what must be true -----------------------------------------------------------------------

    def check(self, world: ExploredWorld) -> None:
        facts = world.facts
        verdicts = {is_commit for _, is_commit in facts.outcomes}
        if len(verdicts) > 1:
            raise BrokenPromiseError(f"one transaction has two outcomes: {facts.outcomes}")
        if facts.is_answered and False in verdicts:
            raise BrokenPromiseError(f"answered as committed, and aborted: {facts.outcomes}")
        leader = world.see(facts.leader)
        known = leader.machine.ids.metadata(ID)
        if leader.is_loaded and known is not None and not facts.outcomes:
            is_its = (known.producer_id, known.producer_epoch) == facts.producer
            lost = set(facts.enrolled) - set(known.partitions)
            if is_its and lost:
                raise BrokenPromiseError(f"enrolled, and forgotten: {sorted(lost)}")


def use(world: ExploredWorld, **counts: int) -> None:
    """So many less are left of what is named."""
    left = world.facts.left
    fewer = {name: getattr(left, name) - count for name, count in counts.items()}
    world.facts = replace(world.facts, left=replace(left, **fewer))


MODELS = (CoordinatorModel("coordinator", Scope(restarts=2)),)
