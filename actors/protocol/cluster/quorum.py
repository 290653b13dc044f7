"""Electing the controller: the voters of the metadata log, their votes, and changing voters.

Rules, as in raft. An epoch has at most one controller, elected by a majority of voters. A voter
votes for one candidate per epoch, durably before it answers, and only if the candidate's log is not
older than its own. So a controller has all that a majority ever synced. A voter that knows an epoch
obeys no older one. The voters are a record of the log, in force as soon as it is appended. They
change by one at a time: any majority before and any after have a voter in common. A voter is
identified by the disk that its broker registered in the log. Another disk under its number, or an
older copy, has lost votes and acknowledgements. Nobody votes for such a broker, and its votes and
acknowledgements do not count, until it has been removed from the voters and added again.

==========================================  =====================================================
vote for, or push of                        answer of a voter
==========================================  =====================================================
another cluster                             INVALID_REQUEST
vote, another disk than the candidate has   refused, as ``is_behind``
by the voter's log, or an older copy of it
vote, an older epoch than it knows          FENCED_LEADER_EPOCH, and which it knows
vote, a log older than its own              refused, as ``is_behind``; it knows the epoch now
vote, its epoch, in which it has voted for  refused
another
vote, its epoch, given to this candidate    granted again
vote, its epoch, given to nobody            granted, durably first
vote, a newer epoch                         granted, durably first
vote, a trial                               as above, but nothing changes
push, an older epoch than it knows          FENCED_LEADER_EPOCH
push, its epoch                             taken
push, a newer epoch                         taken, once the voter knows the epoch, durably
==========================================  =====================================================

Source: Ongaro and Ousterhout, "In Search of an Understandable Consensus Algorithm" (raft), §5.2,
§5.4 and §6; Ongaro's thesis, §4.1 (one voter at a time) and §9.6 (trials); KIP-595.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

import msgspec
from msgspec import structs

from oncelog.actors.protocol.cluster.cluster_records import (
    ELECTORATE_KINDS,
    BrokerChanged,
    BrokerRegistered,
    ClusterRecord,
    VotersChanged,
    decode_cluster_record,
    with_parts_opened,
)
from oncelog.actors.protocol.cluster.cluster_state import BrokerState
from oncelog.actors.protocol.messages.brokers import NO_DISK, Disk
from oncelog.actors.protocol.messages.replication import VoteReply, VoteRequest
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import NO_LEADER_EPOCH

VOTERS_MAX: Final = 3
"""With three voters one may be down. Two are worse than one, so two occur only in transition."""

NOBODY: Final = -1

Disks: TypeAlias = dict[int, Disk]
"""Broker → its disk, as the log has it."""

NO_DISKS: Final[Mapping[int, Disk]] = MappingProxyType({})


class VoterState(msgspec.Struct, frozen=True, kw_only=True):
    """A voter's durable state: the newest epoch it knows, and whom it voted for in it.

    ``is_copied``: its log began empty and is copied, not founded with the cluster.
    """

    epoch: int = NO_LEADER_EPOCH
    voted_for: int = NOBODY
    is_copied: bool = False


class LogPosition(NamedTuple):
    """How new a log is: compared by the epoch of its last batch, then by its end (exclusive)."""

    epoch: int
    end_offset: int


class Vote(NamedTuple):
    """The answer; a changed ``state`` must be durable before it is sent."""

    state: VoterState
    reply: VoteReply


def majority_of(voter_count: int) -> int:
    """Majority of ``voter_count``."""
    return voter_count // 2 + 1


# --- voters ----------------------------------------------------------------------------------


def decide_vote(
    state: VoterState,
    log: LogPosition,
    request: VoteRequest,
    *,
    cluster_id: str,
    disk: Disk = NO_DISK,
) -> Vote:
    """Whether to vote for a candidate; ``log`` is the voter's, ``disk`` the candidate's by it."""
    if request.cluster_id != cluster_id:
        detail = f"this is a voter of cluster {cluster_id}, not of {request.cluster_id}"
        return Vote(state, request.failed(ErrorCode.INVALID_REQUEST, detail))
    if not request.disk.may_be(disk):
        return Vote(state, _answer(state, is_behind=True))
    if request.leader_epoch < state.epoch:
        return Vote(state, _answer(state, error=ErrorCode.FENCED_LEADER_EPOCH))
    known = with_epoch(state, request.leader_epoch)
    if LogPosition(request.log_epoch, request.log_end_offset) < log:
        changed, reply = known, _answer(known, is_behind=True)
    elif known.voted_for not in (NOBODY, request.candidate):
        changed, reply = known, _answer(known)
    else:
        changed = structs.replace(known, voted_for=request.candidate)
        reply = _answer(changed, is_granted=True)
    return Vote(state, reply) if request.is_trial else Vote(changed, reply)


def with_epoch(state: VoterState, epoch: int) -> VoterState:
    """The voter's state once it knows ``epoch``; in a newer epoch it has not voted yet."""
    if epoch <= state.epoch:
        return state
    return structs.replace(state, epoch=epoch, voted_for=NOBODY)


def may_be_candidate(state: VoterState, voters: Collection[int], broker_id: int) -> bool:
    """Whether a broker whose log names ``voters`` may become a candidate.

    A partial copy may end where the founder was the only voter. A founder that lost its disk and is
    being sent a copy must not act on that.
    """
    return broker_id in voters and not (state.is_copied and len(voters) == 1)


def _answer(
    state: VoterState,
    *,
    error: ErrorCode = ErrorCode.NONE,
    is_granted: bool = False,
    is_behind: bool = False,
) -> VoteReply:
    return VoteReply(
        error=error, is_granted=is_granted, leader_epoch=state.epoch, is_behind=is_behind
    )


class Electorate(NamedTuple):
    """The voters and each broker's disk, by the last records of a log, committed or not."""

    voters: tuple[int, ...] = ()
    disks: Mapping[int, Disk] = NO_DISKS


def electorate_in(
    values: Iterable[bytes | None],
    before: Electorate = Electorate(),  # noqa: B008
) -> Electorate:
    """The voters and disks after these records; ``before`` has those before them.

    At first only the broker that founded the cluster votes.
    """
    # Decode only records that may name some: a copy receives the whole log.
    decoded = [
        record
        for value in values
        if value is not None and any(kind in value for kind in ELECTORATE_KINDS)
        for record in with_parts_opened(decode_cluster_record(value))
    ]
    if not decoded:
        return before
    voters = before.voters
    for record in decoded:
        if isinstance(record, VotersChanged):
            voters = record.voters
        elif isinstance(record, BrokerRegistered):
            voters = voters or (record.broker_id,)
    return Electorate(voters, disks_of(decoded, before.disks))


def disks_of(records: Iterable[ClusterRecord], disks: Mapping[int, Disk] = NO_DISKS) -> Disks:
    """Each broker's disk after these records; ``disks`` has those before them."""
    found = dict(disks)
    for record in records:
        if isinstance(record, BrokerRegistered):
            directory_id, epoch = record.directory_id, record.disk_epoch
            found[record.broker_id] = Disk(directory_id=directory_id, broker_epoch=epoch)
        elif isinstance(record, BrokerChanged):
            known = found.get(record.broker_id, NO_DISK)
            epoch = max(known.broker_epoch, record.disk_epoch)
            found[record.broker_id] = structs.replace(known, broker_epoch=epoch)
    return found


# --- candidates ------------------------------------------------------------------------------


class Candidacy:
    """One candidate in one epoch. It votes for itself, durably, before it asks others.

    ``disks`` are those of the voters in its log.
    """

    def __init__(
        self,
        voters: Collection[int],
        broker_id: int,
        epoch: int,
        disks: Mapping[int, Disk] = NO_DISKS,
    ) -> None:
        self.epoch = epoch
        self.newest_epoch = NO_LEADER_EPOCH
        """The newest epoch that a voter replied; the next candidacy must be above it."""
        self.is_behind = False
        """A voter has a newer log, so another broker should be the candidate."""
        self._voters = frozenset(voters)
        self._disks = disks
        self._granted = {broker_id} & self._voters

    @property
    def is_won(self) -> bool:
        """Whether a majority of the voters has voted for it."""
        return len(self._granted) >= majority_of(len(self._voters))

    def answered(self, broker_id: int, reply: VoteReply) -> None:
        """Count a voter's answer, or its failed call; a voter may answer repeatedly."""
        self.newest_epoch = max(self.newest_epoch, reply.leader_epoch)
        if not reply.disk.may_be(self._disks.get(broker_id, NO_DISK)):
            return
        self.is_behind |= reply.is_behind
        if reply.error is ErrorCode.NONE and reply.is_granted and broker_id in self._voters:
            self._granted.add(broker_id)


# --- changing voters -------------------------------------------------------------------------


def learners(voters: Sequence[int], brokers: Mapping[int, BrokerState]) -> tuple[int, ...]:
    """The brokers that become voters and get a copy first: all that are missing, or none.

    With two voters both are needed, which is worse than one, so two brokers have one voter.
    """
    lacking = VOTERS_MAX - len(voters)
    racks = {brokers[voter].rack for voter in voters if voter in brokers}
    found: list[int] = []
    usable = [
        broker_id
        for broker_id, broker in sorted(brokers.items())
        if broker_id not in voters and not broker.is_fenced and not broker.is_draining
    ]
    while usable and len(found) < lacking:
        chosen = min(usable, key=lambda one: (brokers[one].rack in racks, one))
        usable.remove(chosen)
        found.append(chosen)
        racks.add(brokers[chosen].rack)
    return tuple(found) if len(found) == lacking else ()


def next_voters(
    voters: Sequence[int], learning: Sequence[int], caught_up: Collection[int]
) -> tuple[int, ...] | None:
    """The voters plus one learner; None while none may be added."""
    if not learning or not set(learning) <= set(caught_up):
        return None
    return (*voters, learning[0])


def may_leave(voters: Collection[int], own: int, caught_up: Collection[int]) -> bool:
    """Whether the controller may stop at any moment: every other voter could succeed it at once."""
    return len(voters) == VOTERS_MAX and set(voters) - {own} <= set(caught_up)


def voters_without(voters: Sequence[int], broker_id: int) -> tuple[int, ...] | None:
    """The voters without one that has lost its disk; None if too few would be left."""
    left = tuple(voter for voter in voters if voter != broker_id)
    return left if len(left) >= majority_of(VOTERS_MAX) else None
