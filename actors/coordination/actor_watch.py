"""Which actors of a node answer nobody any more, or have replicas that cannot do their work."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final, NamedTuple

from oncelog.actors.interfaces import Transport
from oncelog.actors.process.loop_time import loop_ms
from oncelog.actors.protocol.messages.brokers import OfflineReplica, PingReply, PingRequest
from oncelog.storage.errors import ErrorCode

PING_TIMEOUT_MS: Final = 1_000


class Sight(NamedTuple):
    """What a look has found: actors that are silent, and what others say of their replicas."""

    silent_actors: tuple[str, ...] = ()
    offline_replicas: tuple[OfflineReplica, ...] = ()
    refusing_replicas: tuple[OfflineReplica, ...] = ()


class ActorWatch:
    """Calls actors; those that have not answered for ``silent_after_ms`` are *silent*.

    An actor that is new here counts as heard when it is first watched.
    """

    def __init__(self, transport: Transport, *, silent_after_ms: int) -> None:
        self._transport = transport
        self._silent_after_ms = silent_after_ms
        self._heard_ms: dict[str, int] = {}
        self._looked_ms = 0

    async def look(self, actors: Iterable[str]) -> Sight:
        """Call all of ``actors``, those watched from now on; return what they are like."""
        now_ms = loop_ms()
        if now_ms - self._looked_ms > self._silent_after_ms:
            # This process stood still, and heard nobody: that says nothing of them.
            self._heard_ms = {}
        self._looked_ms = now_ms
        self._heard_ms = {name: self._heard_ms.get(name, now_ms) for name in actors}
        answers = await asyncio.gather(*map(self._ping, list(self._heard_ms)))
        oldest_ms = loop_ms() - self._silent_after_ms
        return Sight(
            tuple(name for name, heard_ms in self._heard_ms.items() if heard_ms < oldest_ms),
            tuple(one for answer in answers for one in answer.offline_replicas),
            tuple(one for answer in answers for one in answer.refusing_replicas),
        )

    async def _ping(self, name: str) -> PingReply:
        reply = await self._transport.call(name, PingRequest(), timeout_ms=PING_TIMEOUT_MS)
        if reply.error is ErrorCode.NONE and name in self._heard_ms:
            self._heard_ms[name] = loop_ms()
        return reply if reply.error is ErrorCode.NONE else PingReply(error=reply.error)
