"""Asking for votes ends as soon as the outcome is clear, whoever is away."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from virtual_time import run_virtually

from oncelog.actors.interfaces import broker_actor
from oncelog.actors.launch.metadata_voter import ask_voters
from oncelog.actors.protocol.messages.replication import VoteReply, VoteRequest
from oncelog.storage.errors import ErrorCode

TIMEOUT_MS = 5_000


class Voters:
    """Voter 2 gives ``reply``; voter 3 is away, which takes all the time of a call."""

    def __init__(self, reply: VoteReply) -> None:
        self.reply = reply

    async def call(self, actor: str, request: Any, *, timeout_ms: int) -> Any:
        if actor == broker_actor(2):
            return self.reply
        await asyncio.sleep(timeout_ms / 1_000)
        return request.failed(ErrorCode.REQUEST_TIMED_OUT)


@pytest.mark.parametrize(
    ("reply", "is_won", "is_behind", "took_ms"),
    [
        (VoteReply(is_granted=True, leader_epoch=5), True, False, 0),
        (VoteReply(is_behind=True, leader_epoch=5), False, True, 0),
        (VoteReply(leader_epoch=5), False, False, TIMEOUT_MS),
    ],
    ids=["granted", "a newer log", "voted for another"],
)
def test_who_is_away_is_waited_for_only_if_it_matters(
    reply: VoteReply, is_won: bool, is_behind: bool, took_ms: int
) -> None:
    async def body() -> None:
        loop = asyncio.get_running_loop()
        request = VoteRequest(
            cluster_id="c" * 32, candidate=1, leader_epoch=5, log_epoch=4, log_end_offset=9
        )
        began_s = loop.time()
        found = await ask_voters(Voters(reply), request, (1, 2, 3), timeout_ms=TIMEOUT_MS)
        assert (found.is_won, found.is_behind) == (is_won, is_behind)
        assert round(1_000 * (loop.time() - began_s)) == took_ms

    run_virtually(body())
