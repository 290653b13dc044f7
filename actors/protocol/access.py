"""Who may call what: one table of what each request needs, asked at the door of each actor.

A connection begins with a proof of who calls (``rpc/handshake.py``), and ``Dispatch`` asks here
before a method sees the request. Calls within a process pass no door and are not asked.

A server may do everything. Every program in a Ray cluster is the same principal, ``User:ray``: Ray
lets it run whatever it likes. It may do all but what only servers do to each other. That guards
against mistakes, such as a program that deposes a leader or removes a replica's data. Markers it
may write, as an operator does who ends a hanging transaction. So of each row just one thing is
asked yet: whether it is for servers only.

Anybody else has what ACLs allow once they are switched on, and nothing by default. An ACL is for a
principal, a kind of resource and a name, which may be a prefix; one that denies wins. To read,
write, delete or alter something is to see it.

A request about several things is *split*: what is allowed is done, and the rest is answered with
the error of what is lacked, as if nobody had looked whether it exists.

Source: KIP-11, KIP-290 and Kafka's "Authorization and ACLs".

One file: the table, the rules that it is judged by, and what they leave of a request.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec
from msgspec import structs

from oncelog.actors.protocol.messages import (
    brokers,
    cluster,
    group,
    partition,
    replication,
    transaction,
)
from oncelog.actors.protocol.messages.base import Reply, Request
from oncelog.actors.protocol.quotas import NO_LIMITS, Limits
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import INTERNAL_TOPICS, TopicPartition


class Operation(enum.Enum):
    """What is done to a resource, in Kafka's words."""

    READ = "Read"
    WRITE = "Write"
    CREATE = "Create"
    DELETE = "Delete"
    ALTER = "Alter"
    DESCRIBE = "Describe"
    CLUSTER_ACTION = "ClusterAction"
    """What servers do to each other: replicate, vote, tell who leads."""
    ALL = "All"
    """Only in an ACL: any of the others."""


class Resource(enum.Enum):
    """A kind of things that requests name."""

    TOPIC = "Topic"
    GROUP = "Group"
    TRANSACTIONAL_ID = "TransactionalId"
    CLUSTER = "Cluster"


class Principal(msgspec.Struct, frozen=True):
    """Who calls. ``is_server``: it has proved that it is one of the cluster's own processes."""

    name: str
    is_server: bool = False


RAY: Final = Principal("User:ray")
"""Any program of the Ray cluster."""

SERVER: Final = Principal("Server", is_server=True)

# --- rules ----------------------------------------------------------------------------------------

ANYBODY: Final = "User:*"
ANY_HOST: Final = "*"
ANY_NAME: Final = "*"
SOME_NAME: Final = ""
"""In a question: any one resource of the kind would do."""
CLUSTER_NAME: Final = "oncelog"
"""The name of the one resource of kind ``CLUSTER``."""

_SHOWS: Final = frozenset({Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER})
"""Whoever may do one of these to a resource may describe it."""


class Acl(msgspec.Struct, frozen=True, kw_only=True):
    """One rule: ``principal`` may, or may not, do ``operation`` to the resources of a name.

    ``name`` ``*`` is any name; with ``is_prefix`` all that begin with it. ``host`` is the address
    that the principal calls from, ``*`` for any.
    """

    principal: str
    resource: Resource
    name: str
    operation: Operation
    is_prefix: bool = False
    is_allowed: bool = True
    host: str = ANY_HOST

    def covers(self, name: str) -> bool:
        """Whether it is about the resource ``name``."""
        if name == SOME_NAME:
            # To deny one is not to deny them all.
            return self.is_allowed or (self.name == ANY_NAME and not self.is_prefix)
        if self.is_prefix:
            return name.startswith(self.name)
        return self.name in (name, ANY_NAME)


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """All ACLs of a cluster, of one version. Until they are switched on everything is allowed.

    ``limits`` count whether or not they are on: for a principal, or with ``ANYBODY`` for each that
    has none of its own.
    """

    version: int = 0
    is_on: bool = False
    super_users: frozenset[str] = frozenset({RAY.name})
    acls: tuple[Acl, ...] = ()
    limits: tuple[tuple[str, Limits], ...] = ()


NO_RULES: Final = Rules()

DECISIONS_MAX: Final = 10_000
"""Decisions that are remembered; beyond that all are forgotten."""


class Authorizer:
    """Decides by one version of the rules, and remembers what it decided."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self._decided: dict[tuple[str, str, Operation, Resource, str], bool] = {}
        self._of: dict[tuple[str, Resource], list[Acl]] = {}
        for acl in rules.acls:
            self._of.setdefault((acl.principal, acl.resource), []).append(acl)
        self._limits = dict(rules.limits)

    def limits(self, principal: Principal) -> Limits:
        """What ``principal`` may take of this actor; a server whatever it needs."""
        if principal.is_server or not self._limits:
            return NO_LIMITS
        own = self._limits.get(principal.name)
        return self._limits.get(ANYBODY, NO_LIMITS) if own is None else own

    def may(
        self, principal: Principal, operation: Operation, resource: Resource, name: str, host: str
    ) -> bool:
        """Whether ``principal``, which calls from ``host``, may do this to the resource."""
        if principal.is_server:
            return True
        if operation is Operation.CLUSTER_ACTION and principal.name == RAY.name:
            return False
        if not self.rules.is_on or principal.name in self.rules.super_users:
            return operation is not Operation.CLUSTER_ACTION
        question = (principal.name, host, operation, resource, name)
        answer = self._decided.get(question)
        if answer is None:
            if len(self._decided) >= DECISIONS_MAX:
                self._decided.clear()
            answer = self._decided[question] = self._decide(*question)
        return answer

    def judge(self, request: Request[Any], principal: Principal, host: str) -> Split | ErrorCode:
        """What of ``request`` may be asked, or the error of what its caller lacks."""
        if principal.is_server:
            return Split(request=request, join=_as_it_is)

        def may(operation: Operation, resource: Resource, name: str) -> bool:
            return self.may(principal, operation, resource, name, host)

        lacked = refusal(request, may)
        return split(request, may) if lacked is ErrorCode.NONE else lacked

    def _decide(
        self, principal: str, host: str, operation: Operation, resource: Resource, name: str
    ) -> bool:
        found = [
            acl
            for who in (principal, ANYBODY)
            for acl in self._of.get((who, resource), ())
            if acl.host in (host, ANY_HOST) and acl.covers(name)
        ]
        exactly = {operation, Operation.ALL}
        if any(acl.operation in exactly for acl in found if not acl.is_allowed):
            return False
        enough = exactly | _SHOWS if operation is Operation.DESCRIBE else exactly
        return any(acl.operation in enough for acl in found if acl.is_allowed)


# --- what a request needs -------------------------------------------------------------------------


class Need(msgspec.Struct, frozen=True):
    """An operation, on the resources that ``names`` finds in a request."""

    operation: Operation
    resource: Resource
    names: Callable[[Any], Iterable[str]]


def _cluster_name(_: Any) -> tuple[str, ...]:
    return (CLUSTER_NAME,)


def _field(name: str) -> Callable[[Any], Iterable[str]]:
    def find(request: Any) -> Iterable[str]:
        value = getattr(request, name)
        return () if value is None else (value,)

    return find


def _one_topic(request: Any) -> tuple[str, ...]:
    return (request.topic_partition.topic,)


def _no_name(_: Any) -> tuple[str, ...]:
    """For what a request is split by."""
    return ()


_ALTER_CLUSTER: Final = Need(Operation.ALTER, Resource.CLUSTER, _cluster_name)
_DESCRIBE_CLUSTER: Final = Need(Operation.DESCRIBE, Resource.CLUSTER, _cluster_name)
_SERVER_ONLY: Final = Need(Operation.CLUSTER_ACTION, Resource.CLUSTER, _cluster_name)
_READ_GROUP: Final = Need(Operation.READ, Resource.GROUP, _field("group_id"))
_WRITE_ID: Final = Need(Operation.WRITE, Resource.TRANSACTIONAL_ID, _field("transactional_id"))


def _on_topic(operation: Operation, names: Callable[[Any], Iterable[str]] = _one_topic) -> Need:
    return Need(operation, Resource.TOPIC, names)


_WRITE_SOMETHING: Final = _on_topic(Operation.WRITE, lambda _: (SOME_NAME,))


def _each_topic(operation: Operation) -> Need:
    """Of each topic in the request, which is split by it."""
    return Need(operation, Resource.TOPIC, _no_name)


NEEDS: Final[Mapping[type[Request[Any]], tuple[Need, ...]]] = {
    partition.ProduceRequest: (_on_topic(Operation.WRITE), _WRITE_ID),
    partition.FetchRequest: (_on_topic(Operation.READ),),
    partition.ListOffsetsRequest: (_on_topic(Operation.DESCRIBE),),
    partition.DescribeProducersRequest: (_on_topic(Operation.READ),),
    partition.DeleteRecordsRequest: (_on_topic(Operation.DELETE),),
    partition.DescribeReplicaRequest: (_DESCRIBE_CLUSTER,),
    # As in Kafka also an operator's, who ends a hanging transaction (KIP-664).
    partition.WriteTxnMarkersRequest: (_ALTER_CLUSTER,),
    partition.ConfigureRequest: (_SERVER_ONLY,),
    replication.ReplicateRequest: (_SERVER_ONLY,),
    replication.VoteRequest: (_SERVER_ONLY,),
    replication.DescribeVoterRequest: (_DESCRIBE_CLUSTER,),
    transaction.BeginRunRequest: (_WRITE_ID,),
    transaction.InitProducerIdRequest: (_WRITE_ID,),
    transaction.EnlistRequest: (_WRITE_ID,),
    transaction.LeaveRunRequest: (_WRITE_ID,),
    transaction.RenewRunRequest: (_WRITE_ID,),
    transaction.AddPartitionsToTxnRequest: (_WRITE_ID, _each_topic(Operation.WRITE)),
    transaction.AddOffsetsToTxnRequest: (_WRITE_ID, _READ_GROUP),
    transaction.EndTxnRequest: (_WRITE_ID, _each_topic(Operation.WRITE)),
    transaction.DescribeTransactionsRequest: (
        Need(Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, _no_name),
    ),
    transaction.AbortTransactionRequest: (_ALTER_CLUSTER,),
    transaction.DeleteTransactionalIdRequest: (_ALTER_CLUSTER,),
    group.JoinGroupRequest: (_READ_GROUP,),
    group.SyncGroupRequest: (_READ_GROUP,),
    group.HeartbeatRequest: (_READ_GROUP,),
    group.LeaveGroupRequest: (_READ_GROUP,),
    group.OffsetCommitRequest: (_READ_GROUP, _each_topic(Operation.READ)),
    group.TxnOffsetCommitRequest: (_WRITE_ID, _READ_GROUP, _each_topic(Operation.READ)),
    group.OffsetFetchRequest: (
        Need(Operation.DESCRIBE, Resource.GROUP, _field("group_id")),
        _each_topic(Operation.DESCRIBE),
    ),
    group.DescribeGroupsRequest: (Need(Operation.DESCRIBE, Resource.GROUP, _no_name),),
    group.DeleteGroupRequest: (Need(Operation.DELETE, Resource.GROUP, _field("group_id")),),
    cluster.MetadataRequest: (_each_topic(Operation.DESCRIBE),),
    cluster.CreateTopicRequest: (_on_topic(Operation.CREATE, _field("name")),),
    cluster.AlterTopicRequest: (_on_topic(Operation.ALTER, _field("name")),),
    cluster.CreatePartitionsRequest: (_on_topic(Operation.ALTER, _field("name")),),
    cluster.DeleteTopicRequest: (_on_topic(Operation.DELETE, _field("name")),),
    cluster.RotateClusterKeyRequest: (_ALTER_CLUSTER,),
    cluster.BecomeLeaderRequest: (_SERVER_ONLY,),
    cluster.LeaderAndIsrRequest: (_SERVER_ONLY,),
    cluster.AlterIsrRequest: (_SERVER_ONLY,),
    cluster.ClusterKeysRequest: (_SERVER_ONLY,),
    cluster.LearnKeysRequest: (_SERVER_ONLY,),
    cluster.AllocateProducerIdsRequest: (_SERVER_ONLY,),
    cluster.HostedReplicasRequest: (_SERVER_ONLY,),
    cluster.HoldReplicasRequest: (_SERVER_ONLY,),
    cluster.ShutdownRequest: (_SERVER_ONLY,),
    brokers.RegisterBrokerRequest: (_SERVER_ONLY,),
    brokers.BrokerHeartbeatRequest: (_SERVER_ONLY,),
    brokers.PingRequest: (_SERVER_ONLY,),
    brokers.DrainBrokerRequest: (_ALTER_CLUSTER,),
    brokers.ReassignPartitionRequest: (_ALTER_CLUSTER,),
}
"""Request → what its caller needs, all of it."""

_REFUSALS: Final = {
    Resource.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    Resource.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    Resource.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    Resource.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
}

May = Callable[[Operation, Resource, str], bool]
"""Whether the caller may do this to the resource of that name."""


def needs_of(request: Request[Any]) -> tuple[Need, ...]:
    """What ``request`` needs: its row, with two exceptions.

    An operator gives the controller the order to stop the whole cluster, which names no replica's
    topic and removes nothing. A producer without transactions has no id to be allowed.
    """
    if request == cluster.ShutdownRequest():
        return (_ALTER_CLUSTER,)
    if isinstance(request, transaction.InitProducerIdRequest) and request.transactional_id is None:
        return (_WRITE_SOMETHING,)
    return NEEDS[type(request)]


def refusal(request: Request[Any], may: May) -> ErrorCode:
    """``NONE`` if the caller may make this request, all or in part, or the error of what it lacks.

    A request that is ``split`` is not refused for what it is split by.
    """
    for need in needs_of(request):
        for name in need.names(request):
            if not may(need.operation, need.resource, name):
                return _REFUSALS[need.resource]
    return ErrorCode.NONE


# --- requests about several things ----------------------------------------------------------------


class Split(msgspec.Struct, frozen=True, kw_only=True):
    """What may be asked, and how its reply becomes the caller's.

    Without a ``request`` nothing is asked, and ``join`` gets a reply without content.
    """

    request: Request[Any] | None
    join: Callable[[Any], Any]


def split(request: Request[Any], may: May) -> Split:
    """Leave out what the caller may not ask; ``refusal`` has allowed the rest."""
    divide = _SPLITS.get(type(request))
    return Split(request=request, join=_as_it_is) if divide is None else divide(request, may)


def _as_it_is(reply: Reply) -> Reply:
    return reply


def _parts(
    topic_partitions: Iterable[TopicPartition], operation: Operation, may: May
) -> tuple[set[TopicPartition], list[TopicPartition]]:
    """Those that the caller may do this to, and the others in order."""
    given = list(topic_partitions)
    allowed = {tp for tp in given if may(operation, Resource.TOPIC, tp.topic)}
    return allowed, [tp for tp in given if tp not in allowed]


def _split_offsets(request: Any, may: May) -> Split:
    """Positions of topics that the caller may not read are not committed."""
    allowed, others = _parts((tp for tp, _ in request.offsets), Operation.READ, may)
    if not others:
        return Split(request=request, join=_as_it_is)
    refused = tuple(
        group.PartitionResult(topic_partition=tp, error=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        for tp in others
    )
    kept = tuple((tp, position) for tp, position in request.offsets if tp in allowed)
    return Split(
        request=structs.replace(request, offsets=kept) if kept else None,
        join=lambda reply: structs.replace(reply, results=(*reply.results, *refused)),
    )


def _split_positions(request: group.OffsetFetchRequest, may: May) -> Split:
    """Of all positions, those of topics that the caller may see; of named ones, an error each."""
    if request.partitions is None:
        return Split(
            request=request,
            join=lambda reply: structs.replace(
                reply,
                offsets=tuple(
                    one
                    for one in reply.offsets
                    if may(Operation.DESCRIBE, Resource.TOPIC, one.topic_partition.topic)
                ),
            ),
        )
    allowed, others = _parts(request.partitions, Operation.DESCRIBE, may)
    refused = tuple(
        group.FetchedOffset(topic_partition=tp, error=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        for tp in others
    )
    kept = tuple(tp for tp in request.partitions if tp in allowed)
    return Split(
        request=structs.replace(request, partitions=kept) if kept or not refused else None,
        join=lambda reply: structs.replace(reply, offsets=(*reply.offsets, *refused)),
    )


def _split_topics(request: cluster.MetadataRequest, may: May) -> Split:
    """A topic that the caller may not see is left out, as one that does not exist.

    Internal topics are shown to all: clients find coordinators by them.
    """

    def is_shown(topic: str) -> bool:
        return topic in INTERNAL_TOPICS or may(Operation.DESCRIBE, Resource.TOPIC, topic)

    if request.topics is None:
        return Split(
            request=request,
            join=lambda reply: structs.replace(
                reply, topics=tuple(one for one in reply.topics if is_shown(one.name))
            ),
        )
    shown = tuple(filter(is_shown, request.topics))
    return Split(request=structs.replace(request, topics=shown), join=_as_it_is)


def _split_enrolment(request: transaction.AddPartitionsToTxnRequest, may: May) -> Split:
    """All or nothing: one partition that may not be written has none enrolled."""
    allowed, others = _parts(request.partitions, Operation.WRITE, may)
    if not others:
        return Split(request=request, join=_as_it_is)
    enrolments = tuple(
        transaction.PartitionEnrolment(
            topic_partition=tp,
            error=ErrorCode.OPERATION_NOT_ATTEMPTED
            if tp in allowed
            else ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        )
        for tp in request.partitions
    )
    return Split(request=None, join=lambda reply: structs.replace(reply, enrolments=enrolments))


def _split_end(request: transaction.EndTxnRequest, may: May) -> Split:
    """The end counts; what may not be written is not enrolled ahead, so nothing is."""
    _, others = _parts(request.next_partitions, Operation.WRITE, may)
    kept = structs.replace(request, next_partitions=()) if others else request
    return Split(request=kept, join=_as_it_is)


def _split_groups(request: group.DescribeGroupsRequest, may: May) -> Split:
    """A group that the caller may not see is as one that does not exist."""
    if request.group_ids is not None:
        seen = tuple(
            one for one in request.group_ids if may(Operation.DESCRIBE, Resource.GROUP, one)
        )
        return Split(request=structs.replace(request, group_ids=seen), join=_as_it_is)
    return Split(
        request=request,
        join=lambda reply: structs.replace(
            reply,
            groups=tuple(
                one for one in reply.groups if may(Operation.DESCRIBE, Resource.GROUP, one.group_id)
            ),
        ),
    )


def _split_transactions(request: transaction.DescribeTransactionsRequest, may: May) -> Split:
    """An id that the caller may not see is unknown, and topics that it may not are left out."""

    def is_seen(transactional_id: str) -> bool:
        return may(Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, transactional_id)

    def shown(one: Any) -> Any:
        allowed, _ = _parts(one.partitions, Operation.DESCRIBE, may)
        return structs.replace(one, partitions=tuple(tp for tp in one.partitions if tp in allowed))

    def join(reply: Any) -> Any:
        found = tuple(
            structs.replace(shown(one), members=tuple(map(shown, one.members)))
            for one in reply.transactions
            if is_seen(one.transactional_id)
        )
        return structs.replace(reply, transactions=found)

    if request.transactional_ids is not None and not all(map(is_seen, request.transactional_ids)):
        unknown = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        return Split(request=None, join=lambda reply: structs.replace(reply, error=unknown))
    return Split(request=request, join=join)


_SPLITS: Final[Mapping[type[Request[Any]], Callable[[Any, May], Split]]] = {
    group.OffsetCommitRequest: _split_offsets,
    group.TxnOffsetCommitRequest: _split_offsets,
    group.OffsetFetchRequest: _split_positions,
    group.DescribeGroupsRequest: _split_groups,
    cluster.MetadataRequest: _split_topics,
    transaction.AddPartitionsToTxnRequest: _split_enrolment,
    transaction.EndTxnRequest: _split_end,
    transaction.DescribeTransactionsRequest: _split_transactions,
}
