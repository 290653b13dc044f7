"""Asks the voters of the metadata log for an epoch: of what the rules are in ``cluster/quorum``."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping

from oncelog.actors.interfaces import Transport, broker_actor
from oncelog.actors.protocol.cluster.quorum import NO_DISKS, Candidacy
from oncelog.actors.protocol.messages.brokers import Disk
from oncelog.actors.protocol.messages.replication import VoteRequest


async def ask_voters(
    transport: Transport,
    request: VoteRequest,
    voters: Collection[int],
    *,
    timeout_ms: int,
    disks: Mapping[int, Disk] = NO_DISKS,
) -> Candidacy:
    """What the voters answer; as soon as the outcome is clear, or all have answered.

    ``disks`` are those of the voters, by the candidate's log.

    It is as soon as a majority is for the candidate, or a voter has a newer log: that one can stand
    at once, while those that are away would cost the whole time of a call.
    """
    candidacy = Candidacy(voters, request.candidate, request.leader_epoch, disks)

    async def ask(voter: int) -> None:
        reply = await transport.call(broker_actor(voter), request, timeout_ms=timeout_ms)
        candidacy.answered(voter, reply)

    loop = asyncio.get_running_loop()
    asked = {loop.create_task(ask(voter)) for voter in voters if voter != request.candidate}
    try:
        while asked and not (candidacy.is_won or candidacy.is_behind):
            answered, asked = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
            for task in answered:
                task.result()
    finally:
        for task in asked:
            task.cancel()
    return candidacy
