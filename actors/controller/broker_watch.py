"""Which brokers' nodes are alive, and the actors by which new ones join."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from msgspec import structs

from oncelog.actors.process.clock import loop_ms
from oncelog.actors.protocol.cluster.brokers import BrokerSessions
from oncelog.actors.protocol.cluster.state import BrokerState
from oncelog.actors.protocol.messages.cluster import BrokerMetadata

_logger = logging.getLogger(__name__)

BROKER_LOOK_MS: Final = 500
ALONE_LOOK_MS: Final = 2_000
"""How often the controller looks for nodes that came or went; alone, it only waits for others."""

SESSION_CHECK_MS: Final = 500
"""How often it looks for brokers that are not heard."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerNode:
    """A living node that is labelled as a broker's."""

    broker_id: int
    rack: str = ""


class BrokerLauncher(Protocol):
    """Sees nodes, and starts the actors by which brokers join."""

    async def nodes(self) -> Sequence[BrokerNode]:
        """The living nodes that are labelled with a broker's number, and the controller's own."""
        ...

    async def start_brokers(self, nodes: Sequence[BrokerNode]) -> None:
        """Ensure that each of these brokers has its actor. Idempotent."""
        ...


class BrokerWatch:
    """Knows which brokers live, and has those fenced that do not.

    ``own`` is the controller's broker, which is alive as it is, and ``note_own`` is given its rack
    whenever its node is seen; it has an actor as well once it ``is_a_voter`` among others, to vote
    when the controller is gone, and to follow it; ``fence`` is called for a broker that is not
    fenced and whose node has died, or that was not heard for a session's time.
    """

    def __init__(
        self,
        *,
        launcher: BrokerLauncher,
        own: int,
        brokers: Callable[[], Mapping[int, BrokerState]],
        fence: Callable[[int], Awaitable[None]],
        note_own: Callable[[str], Awaitable[None]],
        is_a_voter: Callable[[], bool],
        session_ms: int,
    ) -> None:
        self.live = {own}
        self.gone: set[int] = set()
        """Brokers whose nodes were seen, and are no longer."""
        self.problems: dict[int, str] = {}
        """Why a broker does not take part, by its number."""
        self._launcher = launcher
        self._own = own
        self._brokers = brokers
        self._fence = fence
        self._note_own = note_own
        self._is_a_voter = is_a_voter
        self._session_ms = session_ms
        self._sessions = BrokerSessions({}, session_ms=session_ms, now_ms=0)
        self._doubles: dict[int, int] = {}
        self._has_looked = False

    async def watch(self) -> None:
        """Look again and again; a task of its own."""
        while True:
            try:
                await self.look()
            except Exception as error:
                # Ray cannot say: what was seen last holds until it can.
                _logger.warning("the nodes cannot be seen now: %r", error)
            is_alone = len(self._brokers()) <= 1
            await asyncio.sleep((ALONE_LOOK_MS if is_alone else BROKER_LOOK_MS) / 1000)

    async def watch_sessions(self) -> None:
        """Fence brokers that are not heard; a task of its own, since looking may hang."""
        self._sessions = self._new_sessions()
        before_ms = loop_ms()
        while True:
            await asyncio.sleep(SESSION_CHECK_MS / 1000)
            now_ms = loop_ms()
            if now_ms - before_ms > SESSION_CHECK_MS + self._session_ms // 2:
                # This process stood still: what it was sent meanwhile is still to be read.
                self._sessions = self._new_sessions()
            before_ms = now_ms
            self._sessions.heard(self._own, now_ms)
            for broker_id in self._sessions.expired(self._brokers(), now_ms):
                _logger.warning("broker %d is fenced: it has not been heard", broker_id)
                await self._fence(broker_id)

    def _new_sessions(self) -> BrokerSessions:
        return BrokerSessions(self._brokers(), session_ms=self._session_ms, now_ms=loop_ms())

    def unheard(self) -> tuple[int, ...]:
        """The brokers that miss heartbeats, and are not fenced."""
        return self._sessions.unheard(self._brokers(), loop_ms())

    def heard(self, broker_id: int, ago_ms: int = 0) -> None:
        """A broker has registered or sent a heartbeat of its epoch, or its actors serve.

        ``ago_ms``: how long before now that counts from.
        """
        self._sessions.heard(broker_id, loop_ms() - ago_ms)

    async def look(self) -> None:
        """See who is alive now, have new ones join, and those fenced whose node has died."""
        nodes = await self._launcher.nodes()
        counts = Counter(node.broker_id for node in nodes)
        doubles = {broker_id: count for broker_id, count in counts.items() if count > 1}
        for broker_id in doubles.keys() - self._doubles.keys():
            _logger.error("%s", _double(broker_id, counts[broker_id]))
        self._doubles = doubles
        single = [node for node in nodes if counts[node.broker_id] == 1]
        if not self._has_looked:
            # A controller that follows one whose node has died: others lead what was there at once.
            self._has_looked = True
            self.live |= {one for one, broker in self._brokers().items() if not broker.is_fenced}
        gone = self.live - counts.keys() - {self._own}
        self.live = {self._own} | {node.broker_id for node in single}
        self.problems = {one: what for one, what in self.problems.items() if one in self.live}
        for node in single:
            if node.broker_id == self._own:
                await self._note_own(node.rack)
        is_own_wanted = self._is_a_voter()
        joining = [node for node in single if node.broker_id != self._own or is_own_wanted]
        if joining:
            await self._launcher.start_brokers(joining)
        self.gone = (self.gone | gone) - counts.keys()
        for broker_id in sorted(gone):
            _logger.warning("broker %d is fenced: its node is gone", broker_id)
            await self._fence(broker_id)

    def note(self, broker_id: int, problem: str) -> None:
        """A broker has told why it does not take part, or "" that it does."""
        if problem and broker_id in self.live:
            self.problems[broker_id] = problem
        else:
            self.problems.pop(broker_id, None)

    def described(self) -> tuple[BrokerMetadata, ...]:
        """Every broker that is registered, or alive and not able to take part."""
        known = {
            broker_id: BrokerMetadata(
                broker_id=broker_id,
                data_dir=broker.data_dir,
                rack=broker.rack,
                is_live=broker_id in self.live and not broker.is_fenced,
                is_draining=broker.is_draining,
                is_fenced=broker.is_fenced,
                is_refusing=broker.is_refusing,
            )
            for broker_id, broker in self._brokers().items()
        }
        problems = self.problems | {
            one: _double(one, count) for one, count in self._doubles.items()
        }
        for broker_id in problems.keys() - known.keys():
            known[broker_id] = BrokerMetadata(
                broker_id=broker_id, data_dir="", is_live=broker_id in self.live
            )
        return tuple(
            structs.replace(broker, problem=problems.get(broker_id, ""))
            for broker_id, broker in sorted(known.items())
        )


def _double(broker_id: int, count: int) -> str:
    return f"{count} living nodes are labelled broker={broker_id}: each broker has its own number"
