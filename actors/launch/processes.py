"""The Ray actor classes: each gives its server the surroundings of production, and is watched.

A broken invariant ends the process: Ray starts it again and it recovers from its log.
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
import random
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import ray

from oncelog.actors.config import ReplicaConfig
from oncelog.actors.launch.assembly import (
    GroupCoordinatorServer,
    PartitionServer,
    ReplicaServer,
    Surroundings,
    TransactionCoordinatorServer,
)
from oncelog.actors.process.background import ThreadBackground
from oncelog.actors.process.clock import SystemClock
from oncelog.actors.process.process_table import ProcessTable
from oncelog.actors.process.ray_metrics import RayMetrics
from oncelog.actors.rpc.actor_transport import ActorTransport
from oncelog.actors.rpc.listener import TOKEN_BYTES, Listener, ListenerAddress
from oncelog.actors.rpc.message_codec import decode_request, encode
from oncelog.actors.rpc.ray_transport import RayTransport
from oncelog.storage.disk.file_system import RealFileSystem
from oncelog.storage.errors import ErrorCode, InvariantViolation

_logger = logging.getLogger(__name__)
_ClassT = TypeVar("_ClassT", bound=type)

EXIT_STATUS_OF_BUG: Final = 70
"""Exit status of a process that met a bug of ours (EX_SOFTWARE of sysexits)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """What a process says of itself, even while its data path is busy.

    ``answered_calls`` counts those of the data path since the process began.
    """

    process_id: int
    is_serving: bool
    detail: str
    answered_calls: int


def _answers_calls(method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """``method`` for requests, also encoded ones and their replies; bugs end the process."""
    name = method.__name__

    @functools.wraps(method)
    async def guarded(server: Any, *arguments: Any, **keywords: Any) -> Any:
        is_encoded = len(arguments) == 1 and isinstance(arguments[0], bytes)
        try:
            if is_encoded:
                server.listener.answered_calls += 1
                return encode(await method(server, decode_request(name, arguments[0])))
            return await method(server, *arguments, **keywords)
        except InvariantViolation as error:
            die_of_bug(error)

    return guarded


def die_of_bug(error: BaseException) -> None:
    """End the process at once; Ray starts it again, and it recovers from its log."""
    _logger.critical("this process ends: %r", error, exc_info=error)
    logging.shutdown()
    os._exit(EXIT_STATUS_OF_BUG)


def actor_class(kind: _ClassT) -> _ClassT:
    """Class decorator: what a process answers; a broken invariant ends it."""
    for name, method in inspect.getmembers(kind, inspect.iscoroutinefunction):
        if not name.startswith("_") and name != "health":
            setattr(kind, name, _answers_calls(method))
    return kind


def make_listener(server: object) -> Listener:
    """What takes the calls of ``server`` over connections, on the address Ray has of this node.

    Give it the server as ``super()`` of the process: its methods without what Ray and
    ``actor_class`` have wrapped around them, which every call would have to pass.
    """
    return Listener(
        server,
        host=ray.util.get_node_ip_address(),
        token=secrets.token_bytes(TOKEN_BYTES),
        on_bug=die_of_bug,
    )


def production(config: ReplicaConfig) -> Surroundings:
    """The surroundings of a Ray actor; also sets up its log of messages and its machine."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    return Surroundings(
        filesystem=RealFileSystem(),
        clock=SystemClock(),
        background=ThreadBackground(),
        transport=ActorTransport(RayTransport()),
        drivers=ProcessTable(ray.util.get_node_ip_address()),
        random=random.Random(secrets.randbits(64)),
        incarnation=secrets.token_hex(8),
        process_id=os.getpid(),
        metrics=RayMetrics(),
        die=die_of_bug,
    )


class ReplicaProcess(ReplicaServer):
    """What every actor that holds a log has besides its server."""

    listener: Listener

    async def listener_address(self) -> ListenerAddress:
        """Where this process takes calls over connections; see ``listener.py``."""
        return await self.listener.address()

    @ray.method(concurrency_group="health")
    async def health(self) -> Health:
        """Tell whether this process serves; answered beside the data path."""
        return Health(
            process_id=os.getpid(),
            is_serving=self.replica.availability() is ErrorCode.NONE,
            detail=self.failure or self.replica.failure or "",
            answered_calls=self.listener.answered_calls,
        )


@actor_class
class PartitionProcess(PartitionServer, ReplicaProcess):
    """The process of one partition replica."""

    def __init__(self, config: ReplicaConfig) -> None:
        super().__init__(config, production(config))
        self.listener = make_listener(super())


@actor_class
class TransactionCoordinatorProcess(TransactionCoordinatorServer, ReplicaProcess):
    """The process of one shard of transactional ids."""

    def __init__(self, config: ReplicaConfig) -> None:
        super().__init__(config, production(config))
        self.listener = make_listener(super())


@actor_class
class GroupCoordinatorProcess(GroupCoordinatorServer, ReplicaProcess):
    """The process of one shard of consumer groups."""

    def __init__(self, config: ReplicaConfig) -> None:
        super().__init__(config, production(config))
        self.listener = make_listener(super())
