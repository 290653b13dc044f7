"""What clients ask first: which nodes and topics there are, and who leads or coordinates.

Each broker is a node of Kafka, at the address of its gateway. Gateways ask each other for theirs.
Every gateway serves every partition, so where the leader's does not answer this one is named
instead, and no partition is out of reach because of a port.

The controller is asked for all clients together: answers are shared for ``SHARED_MS``, but not with
those who ask after a client of this gateway was told that topics have changed. Whether a client may
see a topic is judged for each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from msgspec import structs

from oncelog.actors.config import ClusterConfig
from oncelog.actors.gateway.calls import Call, Cluster
from oncelog.actors.gateway.errors import UnansweredError, kafkas
from oncelog.actors.gateway.messages.apis import ApiKey
from oncelog.actors.gateway.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from oncelog.actors.gateway.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from oncelog.actors.gateway.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from oncelog.actors.gateway.rights import mask, may
from oncelog.actors.interfaces import CONTROLLER_ACTOR, gateway_actor
from oncelog.actors.process.background import OwnTasks
from oncelog.actors.process.clock import loop_ms
from oncelog.actors.protocol.access import Verdict
from oncelog.actors.protocol.messages.access import CLUSTER_NAME, Operation, Resource
from oncelog.actors.protocol.messages.brokers import FindKafkaListenerRequest
from oncelog.actors.protocol.messages.cluster import (
    BrokerMetadata,
    CreateTopicRequest,
    MetadataReply,
    PartitionMetadata,
    TopicMetadata,
)
from oncelog.actors.protocol.messages.cluster import MetadataRequest as AskController
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import (
    CONSUMER_OFFSETS_TOPIC,
    INTERNAL_TOPICS,
    TRANSACTION_STATE_TOPIC,
    is_valid_topic_name,
    shard_of,
)

SHARED_MS: Final = 200
"""How long what the controller said is told to other clients, too."""

NODE_FRESH_MS: Final = 5_000
"""How long another gateway is not asked again where it listens."""

NODE_TIMEOUT_MS: Final = 1_000
"""How long it may take to answer."""

CREATIONS_MAX: Final = 16
"""Topics that one request may have created; the client asks again for further ones."""

LEADER_NOT_AVAILABLE: Final = 5
MISMATCHED_ENDPOINT_TYPE: Final = 114
UNSUPPORTED_ENDPOINT_TYPE: Final = 115
"""Kafka's codes; no actor of ours gives them."""

NO_NODE: Final = -1
_ANY_TOPIC_VERSION: Final = 1
"""From this version of Metadata on, a list without topics asks for none; before, for all."""
_TOPIC_ID_VERSION: Final = 12
_CLUSTER_RIGHTS_VERSIONS: Final = range(8, 11)

_BATCH_VERSION: Final = 4
"""From this version of FindCoordinator on there are several keys."""

_FIND_COORDINATOR: Final = "find_coordinator"

_COORDINATORS: Final = {
    0: (CONSUMER_OFFSETS_TOPIC, Resource.GROUP, ErrorCode.GROUP_AUTHORIZATION_FAILED),
    1: (
        TRANSACTION_STATE_TOPIC,
        Resource.TRANSACTIONAL_ID,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ),
}
"""Key type in FindCoordinator → the topic of the shards, and who may ask."""

_BROKERS: Final = 1
_CONTROLLERS: Final = 2
"""Types of endpoints in DescribeCluster."""


# --- nodes ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A broker as clients of Kafka see it."""

    broker_id: int
    host: str
    port: int
    rack: str | None = None
    is_fenced: bool = False


class Nodes:
    """Where the gateways listen. What it knows is bounded by the brokers there are.

    A gateway that was never asked is waited for. Of any other the last answer counts, while it is
    asked again.
    """

    def __init__(
        self,
        cluster: Cluster,
        own_address: Callable[[], tuple[str, int]],
        on_bug: Callable[[BaseException], None],
    ) -> None:
        self._cluster = cluster
        self._own_address = own_address
        self._tasks = OwnTasks(on_bug)
        self._told: dict[int, tuple[str, int] | None] = {}
        self._asked_ms: dict[int, int] = {}
        self._asking: dict[int, asyncio.Task[None]] = {}

    async def of(self, brokers: Sequence[BrokerMetadata]) -> dict[int, Node]:
        """The nodes of those brokers whose gateway answers, this one always among them."""
        own = self._cluster.broker_id
        known = {broker.broker_id: broker for broker in brokers}
        for gone in self._told.keys() - known.keys():
            del self._told[gone], self._asked_ms[gone]
        others = [one.broker_id for one in brokers if one.broker_id != own and one.is_live]
        now_ms = loop_ms()
        for broker_id in others:
            is_due = now_ms - self._asked_ms.get(broker_id, -NODE_FRESH_MS) >= NODE_FRESH_MS
            if is_due and broker_id not in self._asking:
                self._asking[broker_id] = self._tasks.spawn(self._ask(broker_id))
        new = {self._asking[one] for one in others if one in self._asking and one not in self._told}
        if new:
            await asyncio.wait(new)
        addresses = {own: self._own_address()} | {
            one: told for one in others if (told := self._told.get(one)) is not None
        }
        return {
            broker_id: self._node(broker_id, *address, known.get(broker_id))
            for broker_id, address in sorted(addresses.items())
        }

    def _node(self, broker_id: int, host: str, port: int, known: BrokerMetadata | None) -> Node:
        rack = known.rack or None if known is not None else None
        is_fenced = known is not None and known.is_fenced
        return Node(broker_id=broker_id, host=host, port=port, rack=rack, is_fenced=is_fenced)

    async def _ask(self, broker_id: int) -> None:
        reply = await self._cluster.transport.call(
            gateway_actor(0, broker_id), FindKafkaListenerRequest(), timeout_ms=NODE_TIMEOUT_MS
        )
        is_there = reply.error is ErrorCode.NONE
        self._told[broker_id] = (reply.host, reply.port) if is_there else None
        self._asked_ms[broker_id] = loop_ms()
        del self._asking[broker_id]


# --- the handlers -----------------------------------------------------------------------------


class MetadataHandlers:
    """Answers Metadata, FindCoordinator and DescribeCluster for one gateway.

    ``own_address`` is where it listens. ``on_bug`` gets the exception of a task that fails.
    """

    def __init__(
        self,
        cluster: Cluster,
        config: ClusterConfig,
        own_address: Callable[[], tuple[str, int]],
        on_bug: Callable[[BaseException], None],
    ) -> None:
        self._cluster = cluster
        self._config = config
        self._nodes = Nodes(cluster, own_address, on_bug)
        self._tasks = OwnTasks(on_bug)
        self._all: MetadataReply | None = None
        """The newest answer about all topics."""
        self._asking_all: asyncio.Task[MetadataReply] | None = None
        self._asked_all_ms = 0

    @property
    def handlers(self) -> Mapping[ApiKey, Callable[[Call, Any], Awaitable[Any]]]:
        """By API."""
        return {
            ApiKey.METADATA: self.metadata,
            ApiKey.FIND_COORDINATOR: self.find_coordinator,
            ApiKey.DESCRIBE_CLUSTER: self.describe_cluster,
        }

    async def metadata(self, call: Call, request: MetadataRequest) -> MetadataResponse:
        """Describe nodes and topics; create missing topics, if that is switched on."""
        is_for_all = request.topics is None or (
            call.version < _ANY_TOPIC_VERSION and not request.topics
        )
        lacking: list[MetadataResponseTopic] = []
        if is_for_all or request.topics is None:
            seen = await self._seen(call, None)
            found: Sequence[TopicMetadata] = seen.topics
        else:
            seen, found, lacking = await self._named(call, request, request.topics)
        nodes = await self._nodes.of(seen.brokers)
        live = {broker.broker_id for broker in seen.brokers if broker.is_live}
        topics = [self._topic(topic, nodes, live) for topic in found]
        if request.include_topic_authorized_operations:
            for topic in topics:
                name = topic.name or ""
                topic.topic_authorized_operations = mask(call, Resource.TOPIC, name)
        response = MetadataResponse(
            brokers=[
                MetadataResponseBroker(one.broker_id, one.host, one.port, one.rack)
                for one in nodes.values()
            ],
            cluster_id=self._cluster_id(seen) or None,
            controller_id=self._controller(seen, nodes),
            topics=[*topics, *lacking],
        )
        has_rights = call.version in _CLUSTER_RIGHTS_VERSIONS
        if has_rights and request.include_cluster_authorized_operations:
            response.cluster_authorized_operations = mask(call, Resource.CLUSTER, CLUSTER_NAME)
        return response

    async def _named(
        self, call: Call, request: MetadataRequest, topics: Sequence[MetadataRequestTopic]
    ) -> tuple[MetadataReply, list[TopicMetadata], list[MetadataResponseTopic]]:
        """The topics that were asked for by name or id, and what is wrong with the others."""
        by_id = call.version >= _TOPIC_ID_VERSION
        ids = {one.topic_id for one in topics if by_id and one.name is None}
        given = dict.fromkeys(one.name for one in topics if one.name is not None)
        names = [name for name in given if is_valid_topic_name(name)]
        lacking = [
            MetadataResponseTopic(ErrorCode.INVALID_TOPIC_EXCEPTION, name)
            for name in given
            if not is_valid_topic_name(name)
        ]
        seen = await self._seen(call, tuple(names))
        if request.allow_auto_topic_creation and self._config.kafka_auto_create_topics:
            seen = await self._created(call, names, seen)
        found = {topic.name: topic for topic in seen.topics}
        refused = set(seen.refused)
        missing = (
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if seen.error is ErrorCode.NONE
            # The controller does not answer: nobody may take the topic for deleted.
            else LEADER_NOT_AVAILABLE
        )
        for name in names:
            if name in refused:
                lacking.append(MetadataResponseTopic(ErrorCode.TOPIC_AUTHORIZATION_FAILED, name))
            elif name not in found:
                lacking.append(MetadataResponseTopic(missing, name, is_internal=is_internal(name)))
        if ids:
            everything = await self._seen(call, None)
            known = {bytes.fromhex(topic.topic_id): topic for topic in everything.topics}
            found |= {known[one].name: known[one] for one in ids if one in known}
            lacking += [
                MetadataResponseTopic(ErrorCode.UNKNOWN_TOPIC_ID, None, one)
                for one in ids
                if one not in known
            ]
        return seen, list(found.values()), lacking

    async def _created(
        self, call: Call, names: Iterable[str], seen: MetadataReply
    ) -> MetadataReply:
        """``seen``, or the same anew once missing topics are created in the client's name."""
        known = {topic.name for topic in seen.topics} | set(seen.refused) | INTERNAL_TOPICS
        missing = [name for name in names if name not in known][:CREATIONS_MAX]
        if seen.error is not ErrorCode.NONE or not missing:
            return seen
        replies = await asyncio.gather(
            *(
                call.ask(
                    CONTROLLER_ACTOR,
                    CreateTopicRequest(
                        name=name,
                        topic_id=self._cluster.random.randbytes(16).hex(),
                        partitions=self._config.kafka_num_partitions,
                    ),
                )
                for name in missing
            )
        )
        is_new = {ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS}
        if not any(reply.error in is_new for reply in replies):
            return seen
        return await self._seen(call, tuple(names))

    def _topic(
        self, topic: TopicMetadata, nodes: Mapping[int, Node], live: Collection[int]
    ) -> MetadataResponseTopic:
        return MetadataResponseTopic(
            ErrorCode.NONE,
            topic.name,
            bytes.fromhex(topic.topic_id),
            is_internal(topic.name),
            [self._partition(one, nodes, live) for one in topic.partitions],
        )

    def _partition(
        self, known: PartitionMetadata, nodes: Mapping[int, Node], live: Collection[int]
    ) -> MetadataResponsePartition:
        has_leader = known.leader >= 0
        leader = known.leader if known.leader in nodes else self._cluster.broker_id
        return MetadataResponsePartition(
            ErrorCode.NONE if has_leader else LEADER_NOT_AVAILABLE,
            known.partition,
            leader if has_leader else NO_NODE,
            known.leader_epoch,
            list(known.replicas),
            list(known.isr),
            [one for one in known.replicas if one not in live],
        )

    def _controller(self, seen: MetadataReply, nodes: Mapping[int, Node]) -> int:
        """The node that clients send to what is for the controller: any would do."""
        found = [one.broker_id for one in seen.voters if one.is_controller]
        return found[0] if found and found[0] in nodes else self._cluster.broker_id

    def _cluster_id(self, seen: MetadataReply) -> str:
        return seen.cluster_id or self._cluster.cluster_id

    async def find_coordinator(
        self, call: Call, request: FindCoordinatorRequest
    ) -> FindCoordinatorResponse:
        """Tell which node coordinates each of the groups or transactional ids."""
        is_batch = call.version >= _BATCH_VERSION
        keys = request.coordinator_keys if is_batch else [request.key]
        seen = await self._current((CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC))
        nodes = await self._nodes.of(seen.brokers)
        found = [self._coordinator(call, seen, nodes, request.key_type, key) for key in keys]
        if is_batch:
            return FindCoordinatorResponse(error_message=None, coordinators=found)
        (only,) = found
        return FindCoordinatorResponse(
            error_code=only.error_code,
            error_message=only.error_message,
            node_id=only.node_id,
            host=only.host,
            port=only.port,
        )

    def _coordinator(
        self, call: Call, seen: MetadataReply, nodes: Mapping[int, Node], kind: int, key: str
    ) -> Coordinator:
        if kind not in _COORDINATORS:
            allowed = ", ".join(f"{one} ({_COORDINATORS[one][1].value})" for one in _COORDINATORS)
            return _no_coordinator(
                key, ErrorCode.INVALID_REQUEST, f"key type {kind} is not served, only {allowed}"
            )
        topic, resource, refusal = _COORDINATORS[kind]
        is_allowed = may(call, Operation.DESCRIBE, resource, key)
        verdict = Verdict(Operation.DESCRIBE, resource, key, is_allowed)
        client = call.client
        self._cluster.audit.judged(client.principal, client.host, _FIND_COORDINATOR, [verdict])
        if not is_allowed:
            what = f"{client.principal.name} may not describe {resource.value} {key!r}"
            return _no_coordinator(key, refusal, what)
        partitions = next((one.partitions for one in seen.topics if one.name == topic), ())
        led = partitions[shard_of(key, len(partitions))] if partitions else None
        if led is None or led.leader < 0:
            return _no_coordinator(
                key, ErrorCode.COORDINATOR_NOT_AVAILABLE, "nobody coordinates it just now"
            )
        node = nodes.get(led.leader) or nodes[self._cluster.broker_id]
        return Coordinator(key, node.broker_id, node.host, node.port, 0, None)

    async def describe_cluster(
        self, call: Call, request: DescribeClusterRequest
    ) -> DescribeClusterResponse:
        """Describe the nodes."""
        kind = request.endpoint_type
        if kind != _BROKERS:
            error = MISMATCHED_ENDPOINT_TYPE if kind == _CONTROLLERS else UNSUPPORTED_ENDPOINT_TYPE
            what = f"endpoint type {kind} is not here, but only {_BROKERS}, the brokers"
            return DescribeClusterResponse(error_code=error, error_message=what)
        seen = await self._current(())
        nodes = await self._nodes.of(seen.brokers)
        response = DescribeClusterResponse(
            cluster_id=self._cluster_id(seen),
            controller_id=self._controller(seen, nodes),
            brokers=[
                DescribeClusterBroker(one.broker_id, one.host, one.port, one.rack, one.is_fenced)
                for one in nodes.values()
                if request.include_fenced_brokers or not one.is_fenced
            ],
        )
        if request.include_cluster_authorized_operations:
            response.cluster_authorized_operations = mask(call, Resource.CLUSTER, CLUSTER_NAME)
        return response

    # --- asking the controller ------------------------------------------------------------

    async def _seen(self, call: Call, names: tuple[str, ...] | None) -> MetadataReply:
        """What the client may see of these topics, or of all; see ``MetadataReply.refused``."""
        cluster, client = self._cluster, call.client
        verdicts: list[Verdict] = []
        asked = cluster.door.judge(
            AskController(topics=names), client.principal, client.host, verdicts
        )
        cluster.audit.judged(client.principal, client.host, AskController.method, verdicts)
        if isinstance(asked, ErrorCode):
            raise UnansweredError(f"{client.principal.name} may not ask: {asked.name}")
        wanted = names if asked.request is None else asked.request.topics  # type: ignore[attr-defined]
        reply: MetadataReply = asked.join(
            await (self._everything() if wanted is None else self._current(wanted))
        )
        return reply

    async def _current(self, names: Collection[str]) -> MetadataReply:
        """These topics, as the controller knows them; of what it last said if it is silent."""
        view = self._cluster.view
        # Shards are always there: whoever asks for nothing else learns of the brokers by them.
        error, found = await view.topics(
            (*names, CONSUMER_OFFSETS_TOPIC), as_of_ms=self._as_of_ms()
        )
        newest = view.newest
        if newest is None:
            raise UnansweredError(f"the controller does not answer: {error.name}")
        topics = tuple(found[name] for name in names if name in found)
        return structs.replace(newest, error=error, topics=topics)

    def _as_of_ms(self) -> int:
        """What was asked then or later is told; not what was so before a change told since."""
        return max(loop_ms() - SHARED_MS, self._cluster.view.changed_ms)

    async def _everything(self) -> MetadataReply:
        """All topics, as the controller knows them; or those that it last told of."""
        asking = self._asking_all
        if asking is None or self._asked_all_ms < self._as_of_ms():
            self._asked_all_ms = loop_ms()
            asking = self._asking_all = self._tasks.spawn(self._ask_for_all())
        # It goes on without this caller: others wait for the same answer.
        reply = await asyncio.shield(asking)
        if reply.error is ErrorCode.NONE:
            self._all = reply
        if self._all is None:
            raise UnansweredError(f"the controller does not answer: {reply.error.name}")
        return self._all

    async def _ask_for_all(self) -> MetadataReply:
        asked_ms = loop_ms()
        reply = await self._cluster.transport.call(
            CONTROLLER_ACTOR, AskController(), timeout_ms=self._config.internal_call_timeout_ms
        )
        if reply.error is ErrorCode.NONE:
            self._cluster.view.remember(reply, (), asked_ms=asked_ms)
        return reply


def is_internal(topic: str) -> bool:
    """Whether clients are to leave a topic alone."""
    return topic in INTERNAL_TOPICS


def _no_coordinator(key: str, error: ErrorCode, what: str) -> Coordinator:
    return Coordinator(key, NO_NODE, "", NO_NODE, kafkas(error), what)
