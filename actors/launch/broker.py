"""How a broker joins a cluster: it tells the controller whose the data directory of its node is.

The controller starts one of these on each node that is labelled ``broker=N``, but for its own. It
takes an empty directory for the cluster, registers the broker, and serves nothing: replicas are
placed on the node once the broker is registered.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Final

from oncelog.actors.config import BrokerConfig
from oncelog.actors.coordination.own_tasks import OwnTasks
from oncelog.actors.interfaces import CONTROLLER_ACTOR, broker_actor
from oncelog.actors.launch.assembly import Surroundings
from oncelog.actors.protocol.messages.brokers import RegisterBrokerRequest
from oncelog.actors.replica.data_directory import join
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import CorruptDataError

_logger = logging.getLogger(__name__)

JOIN_RETRY_MS: Final = 500
JOIN_RETRY_MAX_MS: Final = 10_000
"""How soon a broker that may not take part tries again, at first and at most: it may be mended."""

DIRECTORY_ID_BYTES: Final = 16


class Broker:
    """Registers one broker, until that has succeeded; ``problem`` says what stands in the way."""

    def __init__(self, config: BrokerConfig, surroundings: Surroundings) -> None:
        self.config = config
        self.surroundings = surroundings
        self.is_registered = False
        self.problem = ""
        self._background = surroundings.new_background()
        self._tasks = OwnTasks(surroundings.die)

    def __repr__(self) -> str:
        return f"Broker({broker_actor(self.config.broker_id)})"

    def begin(self) -> None:
        """Register in a task of its own."""
        self._tasks.spawn(self._register())

    async def _register(self) -> None:
        delay_ms = JOIN_RETRY_MS
        while True:
            request = await self._joined()
            timeout_ms = self.config.cluster.internal_call_timeout_ms
            reply = await self.surroundings.transport.call(
                CONTROLLER_ACTOR, request, timeout_ms=timeout_ms
            )
            problem = request.problem or reply.detail
            if reply.error is ErrorCode.NONE and not problem:
                self.is_registered, self.problem = True, ""
                return
            if problem and problem != self.problem:
                _logger.error("%r does not take part: %s", self, problem)
            self.problem = problem or reply.error.name
            await asyncio.sleep(delay_ms / 1000)
            delay_ms = min(2 * delay_ms, JOIN_RETRY_MAX_MS)

    async def _joined(self) -> RegisterBrokerRequest:
        """What to tell the controller: whose the directory is, or why it cannot be used."""
        config = self.config
        new_id = self.surroundings.random.randbytes(DIRECTORY_ID_BYTES).hex()
        try:
            identity = await self._background.run(
                lambda: join(
                    self.surroundings.filesystem,
                    Path(config.data_dir),
                    cluster_id=config.cluster_id,
                    broker_id=config.broker_id,
                    new_directory_id=new_id,
                )
            )
        except (OSError, CorruptDataError) as error:
            return RegisterBrokerRequest(broker_id=config.broker_id, problem=str(error))
        return RegisterBrokerRequest(
            broker_id=config.broker_id,
            cluster_id=identity.cluster_id,
            data_dir=config.data_dir,
            directory_id=identity.directory_id,
            rack=config.rack,
        )
