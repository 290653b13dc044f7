"""The target for Kafka's clients: two gateways with actors that are made up, in their own process.

One has certificates, those of its environment, and the other none.

    python fuzz_kafka_target.py asyncio|uvloop

It tells the same as ``fuzz_target.py``, and what is left of strangers.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict, replace
from typing import Any, Final

from fuzz_target import (
    HONEST_HOST,
    LOOPS,
    Counts,
    allow_many_files,
    certified,
    lines_of_input,
    tell,
    watched,
)
from kafka_gateway import Actors, cluster_of

from oncelog.actors.config import ClusterConfig
from oncelog.actors.gateway.administration.transactions import fits
from oncelog.actors.gateway.door import KafkaDoor, handlers_of
from oncelog.actors.gateway.listener import KafkaListener
from oncelog.actors.interfaces import CONTROLLER_ACTOR
from oncelog.actors.process.clock import SystemClock
from oncelog.actors.protocol.messages.access import Access, User
from oncelog.actors.protocol.messages.base import Request
from oncelog.actors.protocol.messages.brokers import FindKafkaListenerRequest
from oncelog.actors.protocol.messages.cluster import CreateTopicRequest, MetadataRequest
from oncelog.actors.protocol.messages.partition import FetchRequest, ProduceReply, ProduceRequest
from oncelog.actors.protocol.scram import ITERATIONS_MIN, make_credential
from oncelog.actors.rpc.certificates import OUR_FILES, Certificates
from oncelog.actors.rpc.dispatch import NO_AUDIT
from oncelog.storage.errors import ErrorCode

USER: Final = "alice"
PASSWORD: Final = "the honest caller knows it"
ACCESS: Final = Access(
    users=(User(name=USER, credential=make_credential(PASSWORD, b"s" * 16, ITERATIONS_MIN)),)
)
WAIT_MAX_S: Final = 1.0
TOPICS_MAX: Final = 100


class FuzzedActors(Actors):
    """Answers what is asked; whom there is not is as if it could not be reached."""

    async def call(self, actor: str, request: Request[Any], *, timeout_ms: int) -> Any:
        if isinstance(request, CreateTopicRequest) and len(self.topics) >= TOPICS_MAX:
            return request.failed(ErrorCode.INVALID_REQUEST)
        known = FindKafkaListenerRequest | MetadataRequest | CreateTopicRequest
        if isinstance(request, known):
            answer = await super().call(actor, request, timeout_ms=timeout_ms)
            self.asked.clear()
            return answer
        if isinstance(request, ProduceRequest):
            return ProduceReply(base_offset=request.topic_partition.partition)
        if isinstance(request, FetchRequest):
            await asyncio.sleep(min(request.max_wait_ms / 1_000, WAIT_MAX_S))
            return request.failed(ErrorCode.NONE)
        # The controller would be asked again, until 25 s are over.
        is_controller = actor == CONTROLLER_ACTOR
        return request.failed(
            ErrorCode.INVALID_REQUEST if is_controller else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        )


def gateway() -> KafkaListener:
    """A listener with all handlers of production."""

    def bug(violation: BaseException) -> None:
        raise violation

    clock = SystemClock()
    # Without the audit of tests, which keeps all that it hears.
    cluster = replace(cluster_of(FuzzedActors(), ACCESS, clock=clock), audit=NO_AUDIT)
    handlers = handlers_of(cluster, ClusterConfig(), lambda: (HONEST_HOST, 1), bug)
    door = KafkaDoor(cluster, handlers, on_bug=bug)
    return KafkaListener(door, certificates=Certificates(clock), clock=clock)


def left_of_strangers(listener: KafkaListener) -> int:
    """Connections of strangers that are open, and requests of those that are not."""
    own = [one for one in listener.connections if one.host == HONEST_HOST]
    strangers = len(listener.connections) - len(own)
    open_count = sum(one.in_progress for one in listener.connections)
    return strangers + listener.progress.count - open_count


@contextlib.asynccontextmanager
async def listening(variables: Mapping[str, str]) -> AsyncIterator[dict[str, KafkaListener]]:
    """Two listeners, ``plain`` and ``tls``."""
    listeners = {"plain": gateway(), "tls": gateway()}
    for name, listener in listeners.items():
        with certified(variables if name == "tls" else {}):
            await listener.open((HONEST_HOST,), 0)
    yield listeners
    for listener in listeners.values():
        await listener.close()


def counted(counts: Counts, listeners: Mapping[str, KafkaListener]) -> Counts:
    """The counts, with what is left of strangers."""
    counts.left = sum(map(left_of_strangers, listeners.values()))
    return counts


async def serve() -> None:
    """Listen, and tell the counts, until the input ends."""
    # The first pattern of a client loads a library of some 95 MiB, which is no growth.
    fits("loaded", ["loaded"])
    with watched() as counts:
        async with listening({name: os.environ[name] for name in OUR_FILES}) as listeners:
            tell({name: listener.port for name, listener in listeners.items()})
            asked = await lines_of_input()
            while await asked.readline():
                tell(asdict(counted(counts, listeners)))


if __name__ == "__main__":
    allow_many_files()
    LOOPS[sys.argv[1]](serve())
