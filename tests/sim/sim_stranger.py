"""Users: those who work within their rights, and one with few who tries everything else.

He may write to one topic, under transactional ids of his own. Whatever else he asks is refused at
the door of each process, also of one that has just started and knows no rules yet. So no call of
his may have any other answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sim_rogue import address_of_replica
from sim_stage import COPY_GROUP, Player, Stage
from sim_world import World

from oncelog.actors.interfaces import CONTROLLER_ACTOR
from oncelog.actors.protocol.access import Principal
from oncelog.actors.protocol.messages.access import (
    RAY_NAME,
    Acl,
    AlterAclsRequest,
    AlterAuthorizationRequest,
    DescribeAccessRequest,
    Operation,
    Resource,
)
from oncelog.actors.protocol.messages.base import Request
from oncelog.actors.protocol.messages.brokers import DrainBrokerRequest
from oncelog.actors.protocol.messages.cluster import (
    AlterTopicRequest,
    CreateTopicRequest,
    DeleteTopicRequest,
    RotateClusterKeyRequest,
)
from oncelog.actors.protocol.messages.group import OffsetAndMetadata, OffsetCommitRequest
from oncelog.actors.protocol.messages.partition import (
    DeleteRecordsRequest,
    FetchRequest,
    ListOffsetsRequest,
    ProduceRequest,
    TxnMarker,
    WriteTxnMarkersRequest,
)
from oncelog.actors.protocol.messages.transaction import (
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
)
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, TopicPartition

STRANGER = Principal("User:stranger")
OWN_ID = "stranger-id"
OWN_TOPIC = "strangers"
PAUSE_MS = 200.0
TIMEOUT_MS = 1_000
SET_UP_LIMIT_S = 120.0
KNOWN_LIMIT_S = 60.0

_REFUSED = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
_UNANSWERED = frozenset({ErrorCode.NETWORK_EXCEPTION, ErrorCode.REQUEST_TIMED_OUT})


# --- the rules ------------------------------------------------------------------------------------


def set_rules(stage: Stage) -> None:
    """Give the stranger his rights and switch the rules on; return once every process knows."""
    world = stage.world
    client = world.client("rule-maker")
    world.run(client.spawn(_set_rules(client)), limit_s=SET_UP_LIMIT_S)
    world.run(world.until(lambda: are_rules_known(world)), limit_s=KNOWN_LIMIT_S)


def are_rules_known(world: World) -> bool:
    """Whether every living process goes by what the controller has."""
    controller = world.server(CONTROLLER_ACTOR)
    if controller is None or not controller.shell.runtime.is_loaded:
        return False
    version = controller.shell.machine.access.version
    return all(
        process.dispatch.door.version == version
        for process in world.processes.values()
        if process.dispatch is not None
    )


_ANY_TOPIC = ((Resource.TOPIC, "*", one) for one in (Operation.READ, Operation.WRITE))
_RIGHTS: dict[str, tuple[tuple[Resource, str, Operation], ...]] = {
    "writer": (
        (Resource.TOPIC, "*", Operation.WRITE),
        (Resource.TRANSACTIONAL_ID, "*", Operation.WRITE),
    ),
    "plain": ((Resource.TOPIC, "*", Operation.WRITE),),
    "reader": ((Resource.TOPIC, "*", Operation.READ),),
    "copier": (
        *_ANY_TOPIC,
        (Resource.TRANSACTIONAL_ID, "*", Operation.WRITE),
        (Resource.GROUP, "*", Operation.READ),
    ),
}
"""What those need who work, by the first word of a role's name; all others are programs."""


def principal_of(role: str) -> Principal | None:
    """As whom a role works where there are rules; ``None``: as any program."""
    kind = role.partition("-")[0]
    return Principal(f"User:{kind}") if kind in _RIGHTS else None


async def _set_rules(client: Any) -> None:
    acls = (
        *(
            Acl(principal=f"User:{kind}", resource=resource, name=name, operation=operation)
            for kind, rights in _RIGHTS.items()
            for resource, name, operation in rights
        ),
        _acl(Resource.TOPIC, OWN_TOPIC, Operation.WRITE),
        _acl(Resource.TRANSACTIONAL_ID, OWN_ID, Operation.WRITE),
    )
    on = AlterAuthorizationRequest(is_on=True, super_users=(RAY_NAME,))
    for request in (AlterAclsRequest(added=acls), on):
        error = ErrorCode.NETWORK_EXCEPTION
        while error is not ErrorCode.NONE:
            reply = await client.transport.call(CONTROLLER_ACTOR, request, timeout_ms=10_000)
            error = reply.error


def _acl(resource: Resource, name: str, operation: Operation) -> Acl:
    return Acl(principal=STRANGER.name, resource=resource, name=name, operation=operation)


# --- what he tries --------------------------------------------------------------------------------


async def stranger(player: Player) -> None:
    """Asks for what he may not have, until the stage is over."""
    player.client.principal = STRANGER
    while player.is_on:
        await player.pause(PAUSE_MS)
        address, request = player.random.choice(_ATTEMPTS)(player)
        player.stage.counts["calls of a stranger"] += 1
        reply = await player.client.transport.call(address, request, timeout_ms=TIMEOUT_MS)
        player.stage.counts["calls of a stranger refused"] += reply.error in _REFUSED
        _check(player, request, reply)


def _check(player: Player, request: Request[Any], reply: Any) -> None:
    if reply.error in _REFUSED or reply.error in _UNANSWERED:
        return
    parts = [one.error for one in getattr(reply, "enrolments", ())]
    if ErrorCode.TOPIC_AUTHORIZATION_FAILED not in parts or ErrorCode.NONE in parts:
        player.stage.world.fail(
            AssertionError(f"{request} was answered {reply}"), "a stranger was let in"
        )


def _at_a_partition(make: Callable[[Player, TopicPartition], Request[Any]]) -> Any:
    def attempt(player: Player) -> tuple[str, Request[Any]]:
        tp = player.random.choice(player.stage.partitions)
        return address_of_replica(player, tp), make(player, tp)

    return attempt


def _at(topic: str, make: Callable[[Player], Request[Any]]) -> Any:
    """At a shard of a coordinator, whichever: the door is the same."""
    return lambda player: (address_of_replica(player, TopicPartition(topic, 0)), make(player))


def _at_the_controller(request: Request[Any]) -> Any:
    return lambda _player: (CONTROLLER_ACTOR, request)


def _marker(tp: TopicPartition) -> WriteTxnMarkersRequest:
    """As a coordinator would write it."""
    marker = TxnMarker(producer_id=0, producer_epoch=30_000, committed=True, partitions=(tp,))
    return WriteTxnMarkersRequest(coordinator_epoch=1_000, markers=(marker,))


def _enrolment(player: Player) -> AddPartitionsToTxnRequest:
    """Of a partition that he may not write to beside one that he may, under his own id."""
    partitions = (TopicPartition(OWN_TOPIC, 0), player.random.choice(player.stage.partitions))
    return AddPartitionsToTxnRequest(
        transactional_id=OWN_ID, producer_id=7, producer_epoch=0, partitions=partitions
    )


def _position(player: Player) -> OffsetCommitRequest:
    offsets = ((player.random.choice(player.stage.partitions), OffsetAndMetadata(offset=0)),)
    return OffsetCommitRequest(group_id=COPY_GROUP, offsets=offsets)


_ATTEMPTS: tuple[Callable[[Player], tuple[str, Request[Any]]], ...] = (
    _at_a_partition(lambda _, tp: FetchRequest(topic_partition=tp, fetch_offset=0)),
    _at_a_partition(lambda _, tp: ListOffsetsRequest(topic_partition=tp, timestamp_ms=-1)),
    _at_a_partition(lambda _, tp: ProduceRequest(topic_partition=tp, batch=b"")),
    _at_a_partition(
        lambda _, tp: ProduceRequest(topic_partition=tp, transactional_id="writer-0", batch=b"")
    ),
    _at_a_partition(lambda _, tp: _marker(tp)),
    _at_a_partition(lambda _, tp: DeleteRecordsRequest(topic_partition=tp, offset=-1)),
    _at(TRANSACTION_STATE_TOPIC, lambda _: InitProducerIdRequest(transactional_id="writer-0")),
    _at(TRANSACTION_STATE_TOPIC, lambda _: EndTxnRequest(transactional_id="job-0", committed=True)),
    _at(TRANSACTION_STATE_TOPIC, _enrolment),
    _at(CONSUMER_OFFSETS_TOPIC, _position),
    _at_the_controller(CreateTopicRequest(name="of-a-stranger", topic_id="5" * 32, partitions=1)),
    _at_the_controller(AlterTopicRequest(name="t0", changes=(("retention_ms", "1"),))),
    _at_the_controller(DeleteTopicRequest(name="t0")),
    _at_the_controller(RotateClusterKeyRequest(key_version=0)),
    _at_the_controller(DrainBrokerRequest(broker_id=1)),
    _at_the_controller(DescribeAccessRequest()),
    _at_the_controller(AlterAclsRequest(added=(_acl(Resource.TOPIC, "*", Operation.ALL),))),
    _at_the_controller(AlterAuthorizationRequest(is_on=False, super_users=(STRANGER.name,))),
)
