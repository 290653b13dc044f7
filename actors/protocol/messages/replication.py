"""Calls of a leader to followers and of a candidate to voters, with the answers.

Also what a voter reports while no controller answers. See ``base`` for the rules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncelog.actors.protocol.messages.base import Reply, Request
from oncelog.actors.protocol.messages.brokers import NO_DISK, Disk
from oncelog.storage.model import NO_LEADER_EPOCH, NO_OFFSET, TopicPartition

if TYPE_CHECKING:
    from oncelog.storage.records.batch import Buffer as Batches
else:
    # Decoded as a view of the input, not a copy.
    Batches = memoryview


class ReplicateReply(Reply, frozen=True, kw_only=True):
    """How far the follower has copied the leader's log.

    On ``NONE`` everything below ``log_end_offset`` (exclusive) is synced at the follower and equal
    to the leader's log, unless ``diverging_end_offset`` is set. Then nothing was appended: in the
    follower's log ``diverging_epoch`` ends at that offset (KIP-101, KIP-279), and the leader probes
    further back. ``diverging_epoch`` -1: the follower knows no epochs and has cut its log to its
    high watermark. With ``FENCED_LEADER_EPOCH`` ``leader_epoch`` is the newer one. ``disk`` is the
    follower's. ``has_readers``: consumers wait there for the high watermark to rise.
    """

    log_end_offset: int = NO_OFFSET
    diverging_epoch: int = NO_LEADER_EPOCH
    diverging_end_offset: int = NO_OFFSET
    leader_epoch: int = NO_LEADER_EPOCH
    disk: Disk = NO_DISK
    has_readers: bool = False


class ReplicateRequest(Request[ReplicateReply], frozen=True, kw_only=True):
    """Whole batches for a follower, from ``previous_end_offset`` on.

    ``previous_leader_epoch`` is that of the batch that ends at ``previous_end_offset`` (exclusive),
    -1 if the leader's log begins there: the follower appends the batches only if its own log agrees
    there. ``epoch_start_offset`` is where ``leader_epoch`` began: a follower keeps no batch of
    older epochs from there on. Without batches the call asks whether the logs agree, and tells the
    high watermark and the log start. ``settings_version`` is the leader's: a follower with older
    settings of the topic asks for the new ones. Late and repeated copies are harmless.
    """

    method = "replicate"
    reply_type = ReplicateReply

    topic_partition: TopicPartition
    topic_id: str
    leader: int
    leader_epoch: int
    epoch_start_offset: int
    previous_end_offset: int
    previous_leader_epoch: int
    high_watermark: int
    log_start_offset: int
    settings_version: int = 0
    batches: Batches


# --- votes for a controller ------------------------------------------------------------------


class VoteReply(Reply, frozen=True, kw_only=True):
    """``is_granted``: the voter has voted for the candidate in that epoch, durably.

    ``leader_epoch`` is the newest that the voter knows. ``is_behind``: not granted in any epoch,
    because the voter's log is newer than the candidate's or names another or newer disk of it.
    """

    is_granted: bool = False
    leader_epoch: int = NO_LEADER_EPOCH
    is_behind: bool = False
    disk: Disk = NO_DISK
    """The voter's."""


class VoteRequest(Request[VoteReply], frozen=True, kw_only=True):
    """A broker wants to lead the metadata log in ``leader_epoch``. Safe to repeat.

    ``log_end_offset`` (exclusive) and ``log_epoch`` are those of its last batch. ``is_trial``: asks
    what the answer would be; the voter promises nothing. Source: raft's RequestVote, and its
    PreVote.
    """

    method = "vote"
    reply_type = VoteReply

    cluster_id: str
    candidate: int
    leader_epoch: int
    log_end_offset: int
    log_epoch: int
    is_trial: bool = False
    disk: Disk = NO_DISK
    """The candidate's."""


class DescribeVoterReply(Reply, frozen=True, kw_only=True):
    """The state of a broker's copy of the metadata log; ``voters`` is empty if it has no copy.

    ``problem``: why the copy cannot be used, or why the broker has not joined; "" if nothing is
    wrong. ``log_end_offset`` is exclusive.
    """

    broker_id: int = -1
    voters: tuple[int, ...] = ()
    leader_epoch: int = NO_LEADER_EPOCH
    log_end_offset: int = NO_OFFSET
    problem: str = ""


class DescribeVoterRequest(Request[DescribeVoterReply], frozen=True, kw_only=True):
    """Ask what a voter knows while no controller answers. Source: KIP-836, KIP-853."""

    method = "describe_voter"
    reply_type = DescribeVoterReply
