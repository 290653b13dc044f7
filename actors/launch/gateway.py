"""A broker's gateway: the process that clients of Kafka connect to.

It waits until it knows who may do what, and then opens its port. It has no state that a restart
must keep: after one it opens the same port, and clients connect again by themselves.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from oncelog.actors.config import GatewayConfig
from oncelog.actors.coordination.cluster_view import ClusterView
from oncelog.actors.gateway.calls import Cluster
from oncelog.actors.gateway.door import KafkaDoor, handlers_of
from oncelog.actors.gateway.listener import LOOPBACK, KafkaListener
from oncelog.actors.interfaces import CONTROLLER_ACTOR, gateway_actor
from oncelog.actors.launch.assembly import Environment
from oncelog.actors.process.background import OwnTasks
from oncelog.actors.process.metrics import GATEWAY_CONNECTION_COUNT, GATEWAY_NOT_SERVING
from oncelog.actors.protocol.messages.brokers import (
    FindKafkaListenerReply,
    FindKafkaListenerRequest,
    PingReply,
    PingRequest,
)
from oncelog.actors.protocol.messages.cluster import (
    AllocateProducerIdsRequest,
    MetadataReply,
    MetadataRequest,
)
from oncelog.actors.rpc.call_meter import NO_REPORTS, CallReports
from oncelog.actors.rpc.certificates import Certificates
from oncelog.actors.rpc.dispatch import NO_AUDIT
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import InvalidSettingError

_logger = logging.getLogger(__name__)

READY_RETRY_S: Final = 0.1
"""Interval of looking whether it knows the rules, and the controller."""

OPEN_RETRY_S: Final = 10.0
"""Interval of trying to open a port again; the cause may be repaired."""


class Gateway:
    """Serves clients of Kafka at ``host`` and on loopback; ``problem`` says why it does not."""

    def __init__(
        self,
        config: GatewayConfig,
        environment: Environment,
        *,
        host: str,
        reports: CallReports = NO_REPORTS,
    ) -> None:
        self.config = config
        self.environment = environment
        self.problem = "it is starting"
        self._host = host
        self._tasks = OwnTasks(environment.die)
        self._view = ClusterView(self._ask_controller, self._tasks.spawn)
        cluster = Cluster(
            transport=environment.transport,
            door=environment.door,
            view=self._view,
            clock=environment.clock,
            random=environment.random,
            broker_id=config.broker_id,
            cluster_id=config.cluster_id,
            audit=environment.audit or NO_AUDIT,
        )
        self._order = cluster.order
        handlers = handlers_of(cluster, config.cluster, self.address, environment.die)
        self._certificates = Certificates(environment.clock)
        self.listener = KafkaListener(
            KafkaDoor(cluster, handlers, on_bug=environment.die, reports=reports),
            certificates=self._certificates,
            clock=environment.clock,
        )

    def __repr__(self) -> str:
        return f"Gateway({gateway_actor(self.config.number, self.config.broker_id)})"

    def begin(self) -> None:
        """Open the port, in a task of its own."""
        self._tasks.spawn(self._serve())
        self._tasks.spawn(self._report_metrics())

    def address(self) -> tuple[str, int]:
        """Where clients connect to; port 0 as long as they cannot."""
        return self._host, self.listener.port

    async def close(self) -> None:
        """Close the port and all connections."""
        self._tasks.cancel()
        await self.listener.close()

    # --- requests -------------------------------------------------------------------------

    async def ping(self, request: PingRequest) -> PingReply:
        """Answer that this process is alive."""
        await asyncio.sleep(request.hold_ms / 1000)
        return PingReply()

    async def find_kafka_listener(
        self, request: FindKafkaListenerRequest
    ) -> FindKafkaListenerReply:
        """Tell where clients of Kafka connect to."""
        host, port = self.address()
        if not port:
            return request.failed(ErrorCode.BROKER_NOT_AVAILABLE, self.problem)
        return FindKafkaListenerReply(host=host, port=port)

    # --- the port -------------------------------------------------------------------------

    async def _serve(self) -> None:
        while not await self._is_ready():
            self.problem = "the controller does not answer"
            await asyncio.sleep(READY_RETRY_S)
        hosts = tuple(dict.fromkeys((self._host, LOOPBACK)))
        while True:
            try:
                is_plain = self._certificates.context(is_caller=False) is None
                port = await self.listener.open(hosts, self.config.cluster.kafka_port)
            except (OSError, InvalidSettingError) as error:
                self.problem = f"no port can be opened: {error}"
                _logger.error(
                    "%r serves no clients of Kafka: %s — free a port, or repair what it names; it "
                    "is tried again",
                    *(self, error),
                )
                await asyncio.sleep(OPEN_RETRY_S)
                continue
            self.problem = ""
            _logger.info("%r serves clients of Kafka at %s:%d", self, self._host, port)
            rules = self.environment.door.rules
            if is_plain and rules is not None and not rules.is_on:
                _logger.warning(
                    "%r: whoever reaches %s:%d may do everything, as no rules are on — see that "
                    "only who may can reach the port, or switch authorization on "
                    "(`oncelog acls on`)",
                    *(self, self._host, port),
                )
            return

    async def _report_metrics(self) -> None:
        """Report whether clients can connect, and how many have."""
        tags = {"broker": str(self.config.broker_id)}
        sink = self.environment.metrics
        while True:
            sink.set(GATEWAY_NOT_SERVING, int(bool(self.problem)), tags)
            sink.set(GATEWAY_CONNECTION_COUNT, len(self.listener.connections), tags)
            await asyncio.sleep(self.config.cluster.metrics_interval_ms / 1_000)

    async def _is_ready(self) -> bool:
        """Whether it knows who may do what, which brokers there are, and its incarnation."""
        reply = await self._view.ask(frozenset())
        if reply.error is not ErrorCode.NONE or self.environment.door.rules is None:
            return False
        if not self._order.incarnation:
            self._order.incarnation = await self._new_incarnation()
        return self._order.incarnation > 0

    async def _new_incarnation(self) -> int:
        """A number above that of each gateway which has started so far; 0 if nobody gives one.

        A block of producer ids has it: the controller hands them out in rising order.
        """
        reply = await self.environment.transport.call(
            CONTROLLER_ACTOR,
            AllocateProducerIdsRequest(broker_id=self.config.broker_id),
            timeout_ms=self.config.cluster.internal_call_timeout_ms,
        )
        return reply.first_producer_id + 1 if reply.error is ErrorCode.NONE else 0

    async def _ask_controller(self, request: MetadataRequest) -> MetadataReply:
        timeout_ms = self.config.cluster.internal_call_timeout_ms
        return await self.environment.transport.call(
            CONTROLLER_ACTOR, request, timeout_ms=timeout_ms
        )
