"""One replica alone on a disk, and the environment of a process that holds some."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from virtual_time import ManualClock

from oncelog.actors.config import ReplicaConfig
from oncelog.actors.interfaces import Clock, Transport
from oncelog.actors.launch.assembly import Environment
from oncelog.actors.process.background import ThreadBackground
from oncelog.actors.protocol.messages.cluster import BecomeLeaderReply
from oncelog.actors.protocol.messages.replication import ReplicateReply, ReplicateRequest
from oncelog.actors.replica.events import ReplicaEvents
from oncelog.actors.replica.replica import Replica
from oncelog.storage.disk.file_system import RealFileSystem
from oncelog.storage.model import TopicPartition

TOPIC_ID = "a" * 32
FLIGHTS = TopicPartition("flights", 0)
EpochSource = Callable[[int], Awaitable[BecomeLeaderReply]]


class RecordedEvents(ReplicaEvents):
    """What a replica has asked of the process around it."""

    def __init__(self) -> None:
        self.key_requests = 0
        self.settings_requests = 0
        self.restarts: list[str] = []
        self.losses: list[str] = []
        self.bugs: list[BaseException] = []
        self.are_bugs_expected = False
        """Unless set, a bug is raised where it is found."""
        self.follows = asyncio.Event()
        self.push = super().send_push

    async def send_push(self, broker_id: int, request: ReplicateRequest) -> ReplicateReply:
        return await self.push(broker_id, request)

    def refresh_keys_soon(self) -> None:
        self.key_requests += 1

    def refresh_settings_soon(self) -> None:
        self.settings_requests += 1

    def start_upkeep(self) -> None:
        self.follows.set()

    def restart_later(self, reason: str) -> None:
        self.restarts.append(reason)

    def end_for_another(self, reason: str) -> None:
        self.losses.append(reason)

    def on_bug(self, bug: BaseException) -> None:
        if not self.are_bugs_expected:
            raise bug
        self.bugs.append(bug)


def leading(topic_id: str = TOPIC_ID, **fields: Any) -> EpochSource:
    """What a controller says to each start: lead, in the next epoch."""

    async def next_epoch(last_epoch: int) -> BecomeLeaderReply:
        return BecomeLeaderReply(leader_epoch=last_epoch + 1, topic_id=topic_id, **fields)

    return next_epoch


def replica_of(
    tp: TopicPartition,
    data_dir: Path | str,
    epoch_source: EpochSource,
    *,
    kind: type[Replica] = Replica,
    environment: dict[str, Any] | None = None,
    **config: Any,
) -> Any:
    """A replica, of broker 1 unless ``config`` says another, on a real disk that threads sync.

    ``environment`` are what else its constructor is to be given.
    """
    whole: dict[str, Any] = {"broker_id": 1, "data_dir": str(data_dir), **config}
    given: dict[str, Any] = {"filesystem": RealFileSystem(), "clock": ManualClock()}
    given |= environment or {}
    given.setdefault("events", RecordedEvents())
    if "background" not in given:
        given["background"] = ThreadBackground()
    return kind(
        config=ReplicaConfig(topic=tp.topic, partition=tp.partition, **whole),
        epoch_source=epoch_source,
        **given,
    )


def surroundings_of(
    transport: Transport, clock: Clock, die: Callable[[BaseException], None], **fields: Any
) -> Environment:
    """Those of a process on a real disk."""
    given: dict[str, Any] = {
        "filesystem": RealFileSystem(),
        "new_background": ThreadBackground,
        "drivers": None,
        "random": random.Random(1),
        "incarnation": "i",
        "process_id": 1,
        **fields,
    }
    return Environment(transport=transport, clock=clock, die=die, **given)
