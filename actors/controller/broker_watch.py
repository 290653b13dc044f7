"""Which brokers' nodes are alive, and the actors by which new ones join."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from msgspec import structs

from oncelog.actors.protocol.messages.cluster import BrokerMetadata

_logger = logging.getLogger(__name__)

BROKER_LOOK_MS: Final = 2_000
"""How often the controller looks for nodes that came or went."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerNode:
    """A living node that is labelled as a broker's."""

    broker_id: int
    rack: str = ""


class BrokerLauncher(Protocol):
    """Sees nodes, and starts the actors by which brokers join."""

    async def nodes(self) -> Sequence[BrokerNode]:
        """The living nodes that are labelled with a broker's number."""
        ...

    async def start_brokers(self, nodes: Sequence[BrokerNode]) -> None:
        """Ensure that each of these brokers has its actor. Idempotent."""
        ...


class BrokerWatch:
    """Keeps ``live`` up to date. ``own`` is the controller's broker, which is alive as it is."""

    def __init__(
        self,
        *,
        launcher: BrokerLauncher,
        own: int,
        registered: Callable[[], Sequence[BrokerMetadata]],
    ) -> None:
        self.live = {own}
        self.problems: dict[int, str] = {}
        """Why a broker does not take part, by its number."""
        self._launcher = launcher
        self._own = own
        self._registered = registered
        self._doubles: dict[int, int] = {}

    async def watch(self) -> None:
        """Look again and again; a task of its own."""
        while True:
            try:
                await self.look()
            except Exception as error:
                # Ray cannot say: what was seen last holds until it can.
                _logger.warning("the nodes cannot be seen now: %r", error)
            await asyncio.sleep(BROKER_LOOK_MS / 1000)

    async def look(self) -> None:
        """See who is alive now, and have new ones join."""
        nodes = await self._launcher.nodes()
        counts = Counter(node.broker_id for node in nodes)
        doubles = {broker_id: count for broker_id, count in counts.items() if count > 1}
        for broker_id in doubles.keys() - self._doubles.keys():
            _logger.error("%s", _double(broker_id, counts[broker_id]))
        self._doubles = doubles
        single = [node for node in nodes if counts[node.broker_id] == 1]
        self.live = {self._own} | {node.broker_id for node in single}
        self.problems = {one: what for one, what in self.problems.items() if one in self.live}
        joining = [node for node in single if node.broker_id != self._own]
        if joining:
            await self._launcher.start_brokers(joining)

    def note(self, broker_id: int, problem: str) -> None:
        """A broker has told why it does not take part, or "" that it does."""
        if problem and broker_id in self.live:
            self.problems[broker_id] = problem
        else:
            self.problems.pop(broker_id, None)

    def described(self) -> tuple[BrokerMetadata, ...]:
        """Every broker that is registered, or alive and not able to take part."""
        known = {broker.broker_id: broker for broker in self._registered()}
        problems = self.problems | {
            one: _double(one, count) for one, count in self._doubles.items()
        }
        for broker_id in problems.keys() - known.keys():
            known[broker_id] = BrokerMetadata(broker_id=broker_id, data_dir="")
        return tuple(
            structs.replace(
                broker,
                is_live=broker_id in self.live,
                problem=problems.get(broker_id, ""),
            )
            for broker_id, broker in sorted(known.items())
        )


def _double(broker_id: int, count: int) -> str:
    return f"{count} living nodes are labelled broker={broker_id}: each broker has its own number"
