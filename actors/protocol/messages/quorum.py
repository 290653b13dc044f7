"""How a controller is elected, and what a voter tells people. See ``base`` for the rules."""

from __future__ import annotations

from oncelog.actors.protocol.messages.base import Reply, Request
from oncelog.actors.protocol.messages.brokers import NO_DISK, Disk
from oncelog.storage.model import NO_LEADER_EPOCH, NO_OFFSET


class VoteReply(Reply, frozen=True, kw_only=True):
    """``is_granted``: the voter follows the candidate in that epoch, durably, and nobody before it.

    ``leader_epoch`` is the newest that the voter knows. ``is_behind``: not granted because the
    voter's log is newer than the candidate's, which cannot win against it in any epoch; or it
    knows a newer disk of the candidate.
    """

    is_granted: bool = False
    leader_epoch: int = NO_LEADER_EPOCH
    is_behind: bool = False
    disk: Disk = NO_DISK
    """The voter's."""


class VoteRequest(Request[VoteReply], frozen=True, kw_only=True):
    """A broker wants to lead the metadata log in ``leader_epoch``. Safe to repeat.

    ``log_end_offset`` (exclusive) and ``log_epoch`` are those of its last batch. ``is_trial``: it
    asks what the answer would be, before it gives up its copy; nothing is promised.
    Source: raft's RequestVote, and its PreVote.
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
    """What a broker's copy of the metadata log knows; ``voters`` is empty if it has no copy.

    ``problem``: why the copy cannot be used, or why the broker takes no part; "" if nothing is
    wrong. ``log_end_offset`` is exclusive.
    """

    broker_id: int = -1
    voters: tuple[int, ...] = ()
    leader_epoch: int = NO_LEADER_EPOCH
    log_end_offset: int = NO_OFFSET
    problem: str = ""


class DescribeVoterRequest(Request[DescribeVoterReply], frozen=True, kw_only=True):
    """Tell people what a voter knows while no controller answers. Source: KIP-836, KIP-853."""

    method = "describe_voter"
    reply_type = DescribeVoterReply
