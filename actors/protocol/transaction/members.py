"""The members of a distributed write: many producers in one transaction.

Rules. A transactional id keeps a pool of *member producer ids*. Each task attempt that enlists gets
one of them, with an unused epoch; a member whose reply was lost simply never wins. The PREPARE
record gives every member its outcome: the winners commit, the others abort. Each epoch rises by
one, so an attempt that keeps writing is rejected everywhere. When the transaction is complete all
members return to the pool, so the pool only grows to the widest write. A producer id whose epochs
are used up leaves the pool.

| member | enlist | add_partitions (its epoch) | end of the run | complete |
|---|---|---|---|---|
| FREE | → ENLISTED | PRODUCER_FENCED | - | - |
| ENLISTED | - | enrolled | → COMMITTED or ABORTED, epoch + 1 | - |
| LEFT | - | PRODUCER_FENCED | → ABORTED, epoch + 1 | - |
| COMMITTED, ABORTED | - | PRODUCER_FENCED | - | → FREE |

An ENLISTED member becomes LEFT when it reports that it has failed.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from msgspec import structs

from oncelog.actors.protocol.messages.transaction import Winner
from oncelog.actors.protocol.transaction.checks import Refusal
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import PRODUCER_EPOCH_EXHAUSTED, TopicPartition

MEMBERS_MAX: Final = 4_096
"""Maximum members of one transaction; every failed or repeated task attempt counts."""


class MemberStatus(enum.Enum):
    """The state of a pooled producer id; the values are those of the log."""

    FREE = 0
    ENLISTED = 1
    COMMITTED = 2
    ABORTED = 3
    LEFT = 4


class RunMember(msgspec.Struct, frozen=True, kw_only=True):
    """One producer id of the pool. ``producer_epoch`` is that of its open or next transaction."""

    producer_id: int
    producer_epoch: int = 0
    status: MemberStatus = MemberStatus.FREE
    partitions: frozenset[TopicPartition] = frozenset()


Members = Mapping[int, RunMember]
"""Members by producer id. Never changed in place."""


class HeldRecords(msgspec.Struct, frozen=True, kw_only=True):
    """Record counts of open transactions, as answered by the partition leaders.

    ``counts`` is by (producer id, producer epoch, partition). A missing entry is 0 for a partition
    in ``answered`` and unknown for any other.
    """

    answered: frozenset[TopicPartition] = frozenset()
    counts: Mapping[tuple[int, int, TopicPartition], int] = msgspec.field(default_factory=dict)


def free_member(members: Members) -> RunMember | None:
    """The free member with the lowest producer id, or ``None`` when all are in use."""
    free = [member for member in members.values() if member.status is MemberStatus.FREE]
    return min(free, key=lambda member: member.producer_id, default=None)


def active_count(members: Members) -> int:
    """Number of members of the current transaction."""
    return sum(member.status is not MemberStatus.FREE for member in members.values())


def has_enlisted(members: Members) -> bool:
    """Whether some member may still win."""
    return any(member.status is MemberStatus.ENLISTED for member in members.values())


def with_member(members: Members, member: RunMember) -> Members:
    """``members`` with one of them added or replaced."""
    return {**members, member.producer_id: member}


def with_outcomes(members: Members, winners: frozenset[int]) -> Members:
    """Give each member its outcome, and the epoch of its next transaction."""
    return {
        producer_id: structs.replace(
            member,
            producer_epoch=member.producer_epoch + 1,
            status=MemberStatus.COMMITTED if producer_id in winners else MemberStatus.ABORTED,
        )
        if member.status in (MemberStatus.ENLISTED, MemberStatus.LEFT)
        else member
        for producer_id, member in members.items()
    }


def released(members: Members) -> Members:
    """Return every member to the pool; those whose epochs are used up leave it."""
    return {
        producer_id: RunMember(producer_id=producer_id, producer_epoch=member.producer_epoch)
        for producer_id, member in members.items()
        if member.producer_epoch <= PRODUCER_EPOCH_EXHAUSTED
    }


def enrolled_partitions(members: Members) -> frozenset[TopicPartition]:
    """Every partition that some member enrolled."""
    return frozenset[TopicPartition]().union(*(member.partitions for member in members.values()))


def check_winners(members: Members, winners: Sequence[Winner], held: HeldRecords) -> Refusal | None:
    """Whether ``winners`` may commit: each is enlisted and has as many records as it says.

    ``INVALID_TXN_STATE`` if not; ``CONCURRENT_TRANSACTIONS`` if a leader has not yet been asked
    about a partition that a winner enrolled meanwhile. The text says which one and why.
    """
    seen: set[int] = set()
    for winner in winners:
        member = members.get(winner.producer_id)
        if member is None or member.status is not MemberStatus.ENLISTED:
            return ErrorCode.INVALID_TXN_STATE, f"producer {winner.producer_id} is not enlisted"
        if winner.producer_id in seen:
            return ErrorCode.INVALID_TXN_STATE, f"producer {winner.producer_id} is named twice"
        seen.add(winner.producer_id)
        if not member.partitions <= held.answered:
            return ErrorCode.CONCURRENT_TRANSACTIONS, "partitions were added meanwhile"
        held_count = sum(
            held.counts.get((member.producer_id, member.producer_epoch, tp), 0)
            for tp in member.partitions
        )
        if held_count != winner.record_count:
            return ErrorCode.INVALID_TXN_STATE, (
                f"producer {winner.producer_id} says {winner.record_count} records, "
                f"its partitions hold {held_count}"
            )
    return None
