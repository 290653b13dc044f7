"""Pushes that reach a host together: one that is stuck holds the others up only for a while."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from actor_surroundings import InlineBackground, ManualClock

from oncelog.actors.config import HostConfig
from oncelog.actors.launch import host as hosts
from oncelog.actors.launch.assembly import Surroundings
from oncelog.actors.launch.host import Host
from oncelog.actors.process.process_table import ProcessTable
from oncelog.actors.protocol.messages.replication import (
    HeldPush,
    ReplicateManyRequest,
    ReplicateReply,
    ReplicateRequest,
)
from oncelog.storage.disk.file_system import RealFileSystem
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import TopicPartition


class Within:
    """The replicas of the host: one takes a push at once, one later, one never."""

    def __init__(self) -> None:
        self.later = asyncio.Event()

    async def call(self, actor: str, request: Any, *, timeout_ms: int) -> Any:
        assert timeout_ms > 0
        _, _, key = actor.partition("/")
        if key == "later":
            await self.later.wait()
        elif key == "never":
            await asyncio.get_running_loop().create_future()
        return ReplicateReply(log_end_offset=request.topic_partition.partition)


def host_of(within: Within) -> Host:
    surroundings = Surroundings(
        filesystem=RealFileSystem(),
        clock=ManualClock(),
        new_background=InlineBackground,
        transport=within,
        drivers=ProcessTable("here"),
        random=random.Random(1),
        incarnation="i",
        process_id=1,
        die=pytest.fail,
    )
    return Host(HostConfig(number=1, broker_id=2, data_dir="nowhere"), surroundings)


def pushes(*keys: str) -> ReplicateManyRequest:
    return ReplicateManyRequest(
        pushes=tuple(
            HeldPush(
                key=key,
                request=ReplicateRequest(
                    topic_partition=TopicPartition("t", number),
                    topic_id="a",
                    leader=1,
                    leader_epoch=1,
                    epoch_start_offset=0,
                    previous_end_offset=0,
                    previous_leader_epoch=-1,
                    high_watermark=0,
                    log_start_offset=0,
                    batches=b"",
                ),
            )
            for number, key in enumerate(keys)
        )
    )


def test_the_answer_waits_for_all_that_are_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "SYNCED_TOGETHER_MS", 60_000)

    async def body() -> None:
        within = Within()
        answer = asyncio.ensure_future(host_of(within).replicate_many(pushes("later", "at once")))
        asyncio.get_running_loop().call_later(0, within.later.set)
        assert [one.log_end_offset for one in (await answer).replies] == [0, 1]

    asyncio.run(body())


def test_one_that_is_stuck_is_answered_as_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "SYNCED_TOGETHER_MS", 1)

    async def body() -> None:
        reply = await host_of(Within()).replicate_many(pushes("never", "at once"))
        stuck, synced = reply.replies
        assert stuck.error is ErrorCode.REQUEST_TIMED_OUT
        assert (synced.error, synced.log_end_offset) == (ErrorCode.NONE, 1)

    asyncio.run(body())
