"""How a controller is elected: what a candidate asks of the voters. See ``base`` for the rules."""

from __future__ import annotations

from oncelog.actors.protocol.messages.base import Reply, Request
from oncelog.storage.model import NO_LEADER_EPOCH


class VoteReply(Reply, frozen=True, kw_only=True):
    """``is_granted``: the voter follows the candidate in that epoch, durably, and nobody before it.

    ``leader_epoch`` is the newest that the voter knows. ``is_behind``: not granted because the
    voter's log is newer than the candidate's, which cannot win against it in any epoch.
    """

    is_granted: bool = False
    leader_epoch: int = NO_LEADER_EPOCH
    is_behind: bool = False


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
