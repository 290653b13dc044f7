"""Who may call what: one table of what each request needs, asked at the door of each actor.

A connection begins with a proof of who calls (``rpc/handshake.py``), and ``Dispatch`` asks here
before a method sees the request. Calls within a process pass no door and are not asked.

A server may do everything. Every program in a Ray cluster is the same principal, ``User:ray``: Ray
lets it run whatever it likes. It may do all but what only servers do to each other. That guards
against mistakes, such as a program that deposes a leader or writes a marker.

Anybody else has what ACLs allow once they are switched on, and nothing by default. An ACL is for a
principal, a kind of resource and a name, which may be a prefix; one that denies wins. To read,
write, delete or alter something is to see it.

A request about several things is *split*: what is allowed is done, and the rest is answered with
the error of what is lacked, as if nobody had looked whether it exists.

One file: the table, the rules, and how a request that names several things is split by them.

Source: KIP-11, KIP-290 and Kafka's "Authorization and ACLs".
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import structs

from oncelog.actors.protocol.messages import (
    access,
    brokers,
    cluster,
    group,
    partition,
    replication,
    share,
    transaction,
)
from oncelog.actors.protocol.messages.access import (
    ANY_HOST,
    ANY_NAME,
    ANYBODY,
    CLUSTER_NAME,
    NO_LIMITS,
    RAY_NAME,
    Acl,
    Limits,
    Operation,
    Resource,
    Rules,
)
from oncelog.actors.protocol.messages.base import Reply, Request
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import CONSUMER_OFFSETS_TOPIC, INTERNAL_TOPICS, TopicPartition


class Principal(msgspec.Struct, frozen=True):
    """Who calls. ``is_server``: it has proved that it is one of the cluster's own processes."""

    name: str
    is_server: bool = False


RAY: Final = Principal(RAY_NAME)
"""Any program of the Ray cluster."""

SERVER: Final = Principal("Server", is_server=True)

# --- rules ----------------------------------------------------------------------------------------

SOME_NAME: Final = ""
"""In a question: any one resource of the kind would do."""

_SHOWS: Final = frozenset(
    {Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE, Operation.ALTER}
)
"""Whoever may do one of these to a resource may describe it.

``CREATE`` is ours: who tries to create a topic learns whether there is one.
"""


class Verdict(NamedTuple):
    """What the rules say of one operation on one resource, ``SOME_NAME`` for any of its kind."""

    operation: Operation
    resource: Resource
    name: str
    is_allowed: bool

    @property
    def error(self) -> ErrorCode:
        """The code that its caller gets, if it is refused."""
        return ErrorCode.NONE if self.is_allowed else _REFUSALS[self.resource]


DECISIONS_MAX: Final = 10_000
"""Decisions that are remembered; beyond that all are forgotten."""

DECIDED_NAME_CHARS_MAX: Final = 249
"""Characters of a name there: those that a topic's may have. A longer one is decided anew."""


def covers(acl: Acl, name: str) -> bool:
    """Whether ``acl`` is about the resource ``name``."""
    if name == SOME_NAME:
        # To deny one is not to deny them all.
        return acl.is_allowed or (acl.name == ANY_NAME and not acl.is_prefix)
    if acl.is_prefix:
        return name.startswith(acl.name)
    return acl.name in (name, ANY_NAME)


class _Acls:
    """The ACLs of one principal about one kind of resource, found by a resource's name.

    Not looked through one by one: a request may name very many resources.
    """

    __slots__ = ("_all", "_lengths", "_named", "_prefixes")

    def __init__(self) -> None:
        self._all: list[Acl] = []
        self._named: dict[str, list[Acl]] = {}
        self._prefixes: dict[str, list[Acl]] = {}
        self._lengths: list[int] = []
        """Of the prefixes."""

    def add(self, acl: Acl) -> None:
        self._all.append(acl)
        found = self._prefixes if acl.is_prefix else self._named
        if acl.is_prefix and len(acl.name) not in self._lengths:
            self._lengths.append(len(acl.name))
        found.setdefault(acl.name, []).append(acl)

    def about(self, name: str) -> Iterator[Acl]:
        """Those that cover a name; see ``covers``."""
        if name == SOME_NAME:
            yield from (acl for acl in self._all if covers(acl, name))
            return
        yield from self._named.get(name, ())
        if name != ANY_NAME:
            yield from self._named.get(ANY_NAME, ())
        for length in self._lengths:
            if length <= len(name):
                yield from self._prefixes.get(name[:length], ())


_NO_ACLS: Final = _Acls()


class Authorizer:
    """Decides by one version of the rules, and remembers what it decided."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self._decided: dict[tuple[str, str, Operation, Resource, str], bool] = {}
        self._of: dict[tuple[str, Resource], _Acls] = {}
        for acl in rules.acls:
            self._of.setdefault((acl.principal, acl.resource), _Acls()).add(acl)
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
        if len(name) > DECIDED_NAME_CHARS_MAX:
            return self._decide(*question)
        answer = self._decided.get(question)
        if answer is None:
            if len(self._decided) >= DECISIONS_MAX:
                self._decided.clear()
            answer = self._decided[question] = self._decide(*question)
        return answer

    def judge(
        self,
        request: Request[Any],
        principal: Principal,
        host: str,
        verdicts: list[Verdict] | None = None,
    ) -> Split | ErrorCode:
        """What of ``request`` may be asked, or the error of what its caller lacks.

        ``verdicts`` takes what was decided for that: nothing of a server, which may do all, and
        nothing about what a reply is cleared of, which nobody asked for by name.
        """
        if principal.is_server:
            return Split(request=request, join=as_it_is)
        if isinstance(request, cluster.FindListenerRequest) and principal != RAY:
            # With it a user could pass for a program of the Ray cluster.
            return Split(request=request, join=without_token)
        heard = verdicts

        def may(operation: Operation, resource: Resource, name: str) -> bool:
            is_allowed = self.may(principal, operation, resource, name, host)
            if heard is not None:
                heard.append(Verdict(operation, resource, name, is_allowed))
            return is_allowed

        lacked = refusal(request, may)
        asked = split(request, may) if lacked is ErrorCode.NONE else lacked
        heard = None
        return asked

    def _decide(
        self, principal: str, host: str, operation: Operation, resource: Resource, name: str
    ) -> bool:
        acl = self.deciding(principal, host, operation, resource, name)
        return acl is not None and acl.is_allowed

    def deciding(
        self, principal: str, host: str, operation: Operation, resource: Resource, name: str
    ) -> Acl | None:
        """An ACL that decides while the rules are on; ``None``: none allows it, so it is denied."""
        found = [
            acl
            for who in (principal, ANYBODY)
            for acl in self._of.get((who, resource), _NO_ACLS).about(name)
            if acl.host in (host, ANY_HOST)
        ]
        exactly = {operation, Operation.ALL}
        enough = exactly | _SHOWS if operation is Operation.DESCRIBE else exactly
        denying = (acl for acl in found if not acl.is_allowed and acl.operation in exactly)
        allowing = (acl for acl in found if acl.is_allowed and acl.operation in enough)
        return next(itertools.chain(denying, allowing), None)


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


def _acknowledged_topics(request: Any) -> Iterable[str]:
    return {part.topic_partition.topic for part in request.acknowledgements}


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


_DESCRIBE_TOPIC: Final = _on_topic(Operation.DESCRIBE)
_WRITE_SOMETHING: Final = _on_topic(Operation.WRITE, lambda _: (SOME_NAME,))


def _each_topic(operation: Operation) -> Need:
    """Of each topic in the request, which is split by it."""
    return Need(operation, Resource.TOPIC, _no_name)


NEEDS: Final[Mapping[type[Request[Any]], tuple[Need, ...]]] = {
    partition.ProduceRequest: (_on_topic(Operation.WRITE), _WRITE_ID),
    partition.FetchRequest: (_on_topic(Operation.READ),),
    partition.FetchTogetherRequest: (_each_topic(Operation.READ),),
    partition.ListOffsetsRequest: (_on_topic(Operation.DESCRIBE),),
    partition.DescribeProducersRequest: (_on_topic(Operation.READ),),
    partition.DeleteRecordsRequest: (_on_topic(Operation.DELETE),),
    partition.DescribeReplicaRequest: (_DESCRIBE_CLUSTER,),
    partition.AbortHangingRequest: (_ALTER_CLUSTER,),
    partition.WriteTxnMarkersRequest: (_SERVER_ONLY,),
    partition.ConfigureRequest: (_SERVER_ONLY,),
    replication.ReplicateRequest: (_SERVER_ONLY,),
    replication.VoteRequest: (_SERVER_ONLY,),
    replication.DescribeVoterRequest: (_DESCRIBE_CLUSTER,),
    transaction.BeginRunRequest: (_WRITE_ID,),
    transaction.InitProducerIdRequest: (_WRITE_ID,),
    transaction.ProducerHeartbeatRequest: (_WRITE_ID,),
    transaction.EnlistRequest: (_WRITE_ID,),
    transaction.LeaveRunRequest: (_WRITE_ID,),
    transaction.RenewRunRequest: (_WRITE_ID,),
    transaction.AddPartitionsToTxnRequest: (_WRITE_ID, _each_topic(Operation.WRITE)),
    transaction.AddOffsetsToTxnRequest: (_WRITE_ID, _READ_GROUP),
    transaction.VerifyTxnRequest: (_SERVER_ONLY,),
    transaction.PrepareTxnRequest: (_WRITE_ID,),
    transaction.EndTxnRequest: (_WRITE_ID, _each_topic(Operation.WRITE)),
    transaction.DescribeTransactionsRequest: (
        Need(Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, _no_name),
    ),
    transaction.AbortTransactionRequest: (_ALTER_CLUSTER,),
    transaction.EndPreparedTxnRequest: (_ALTER_CLUSTER,),
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
    group.DeleteOffsetsRequest: (
        Need(Operation.DELETE, Resource.GROUP, _field("group_id")),
        _each_topic(Operation.READ),
    ),
    group.DescribeGroupsRequest: (Need(Operation.DESCRIBE, Resource.GROUP, _no_name),),
    group.DeleteGroupRequest: (Need(Operation.DELETE, Resource.GROUP, _field("group_id")),),
    share.ShareGroupHeartbeatRequest: (
        _READ_GROUP,
        _on_topic(Operation.READ, lambda request: request.topics),
    ),
    share.ShareAcquireRequest: (
        _READ_GROUP,
        _on_topic(Operation.READ, lambda request: request.topics),
    ),
    share.ShareAcknowledgeRequest: (
        _READ_GROUP,
        _on_topic(Operation.READ, _acknowledged_topics),
    ),
    share.TxnShareAcknowledgeRequest: (
        _WRITE_ID,
        _READ_GROUP,
        _on_topic(Operation.READ, _acknowledged_topics),
    ),
    share.DescribeShareGroupRequest: (
        Need(Operation.DESCRIBE, Resource.GROUP, _field("group_id")),
    ),
    cluster.MetadataRequest: (_each_topic(Operation.DESCRIBE),),
    cluster.FindListenerRequest: (),
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
    access.AccessRequest: (_SERVER_ONLY,),
    access.LearnAccessRequest: (_SERVER_ONLY,),
    access.DescribeAccessRequest: (_DESCRIBE_CLUSTER,),
    access.AlterUsersRequest: (_ALTER_CLUSTER,),
    access.AlterAclsRequest: (_ALTER_CLUSTER,),
    access.AlterLimitsRequest: (_ALTER_CLUSTER,),
    access.AlterAuthorizationRequest: (_ALTER_CLUSTER,),
    brokers.RegisterBrokerRequest: (_SERVER_ONLY,),
    brokers.BrokerHeartbeatRequest: (_SERVER_ONLY,),
    brokers.PingRequest: (_SERVER_ONLY,),
    brokers.DescribeProcessesRequest: (_SERVER_ONLY,),
    brokers.FindKafkaListenerRequest: (_DESCRIBE_CLUSTER,),
    brokers.DrainBrokerRequest: (_ALTER_CLUSTER,),
    brokers.ReassignPartitionRequest: (_ALTER_CLUSTER,),
    brokers.ElectLeadersRequest: (_ALTER_CLUSTER,),
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
    """What ``request`` needs: its row, with three exceptions.

    An operator gives the controller the order to stop the whole cluster, which names no replica's
    topic and removes nothing. A producer without transactions has no id to be allowed. A replica
    may be described to whoever may see the topic, if he names that.
    """
    if request == cluster.ShutdownRequest():
        return (_ALTER_CLUSTER,)
    if isinstance(request, transaction.InitProducerIdRequest) and request.transactional_id is None:
        return (_WRITE_SOMETHING,)
    if isinstance(request, partition.DescribeReplicaRequest) and request.topic_partition:
        # Internal topics are shown to all: a program that connects asks whether they are led.
        is_internal = request.topic_partition.topic in INTERNAL_TOPICS
        return () if is_internal else (_DESCRIBE_TOPIC,)
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
    return Split(request=request, join=as_it_is) if divide is None else divide(request, may)


def as_it_is(reply: Reply) -> Reply:
    """The ``join`` of a request that is not split."""
    return reply


def without_token(reply: Any) -> Any:
    """Where an actor listens, as users are told it."""
    return structs.replace(reply, token=b"")


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
        return Split(request=request, join=as_it_is)
    refused = tuple(
        group.PartitionResult(topic_partition=tp, error=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        for tp in others
    )
    kept = tuple((tp, position) for tp, position in request.offsets if tp in allowed)
    return Split(
        request=structs.replace(request, offsets=kept) if kept else None,
        join=lambda reply: structs.replace(reply, results=(*reply.results, *refused)),
    )


def _split_fetches(request: partition.FetchTogetherRequest, may: May) -> Split:
    """Of topics that the caller may not read, no fetch is begun."""
    topics = (one.fetch.topic_partition for one in request.fetches)
    allowed, others = _parts(topics, Operation.READ, may)
    if not others:
        return Split(request=request, join=as_it_is)
    refusal = partition.FetchReply(error=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    refused = tuple(
        partition.EndedFetch(number=one.number, reply=refusal)
        for one in request.fetches
        if one.fetch.topic_partition not in allowed
    )
    kept = tuple(one for one in request.fetches if one.fetch.topic_partition in allowed)
    return Split(
        # Its caller is told of the refusals at once.
        request=structs.replace(request, fetches=kept, max_wait_ms=0),
        join=lambda reply: structs.replace(
            reply,
            ended=(*reply.ended, *refused),
            records=(*reply.records, *(b"" for _ in refused)),
        ),
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

    Of those that were named the reply says so, whether they exist or not: the caller might take
    them for deleted, and forget how far it has read. Source: KIP-11.

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
    refused = tuple(name for name in request.topics if name not in shown)
    return Split(
        request=structs.replace(request, topics=shown),
        join=lambda reply: structs.replace(reply, refused=refused) if refused else reply,
    )


def _enrolled(
    topic_partitions: Iterable[TopicPartition], may: May
) -> tuple[set[TopicPartition], list[TopicPartition]]:
    """See ``_parts``. Whoever has the id may enrol positions: to send them takes more."""

    def may_write(operation: Operation, resource: Resource, topic: str) -> bool:
        return topic == CONSUMER_OFFSETS_TOPIC or may(operation, resource, topic)

    return _parts(topic_partitions, Operation.WRITE, may_write)


def _split_enrolment(request: transaction.AddPartitionsToTxnRequest, may: May) -> Split:
    """All or nothing: one partition that may not be written has none enrolled."""
    allowed, others = _enrolled(request.partitions, may)
    if not others:
        return Split(request=request, join=as_it_is)
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
    _, others = _enrolled(request.next_partitions, may)
    kept = structs.replace(request, next_partitions=()) if others else request
    return Split(request=kept, join=as_it_is)


def _split_groups(request: group.DescribeGroupsRequest, may: May) -> Split:
    """A group that the caller may not see is as one that does not exist."""
    if request.group_ids is not None:
        seen = tuple(
            one for one in request.group_ids if may(Operation.DESCRIBE, Resource.GROUP, one)
        )
        return Split(request=structs.replace(request, group_ids=seen), join=as_it_is)
    return Split(
        request=request,
        join=lambda reply: structs.replace(
            reply,
            groups=tuple(
                one for one in reply.groups if may(Operation.DESCRIBE, Resource.GROUP, one.group_id)
            ),
        ),
    )


def _split_share_group(request: share.DescribeShareGroupRequest, may: May) -> Split:
    """Partitions of topics that the caller may not see are left out."""

    def join(reply: Any) -> Any:
        tps = (one.topic_partition for one in reply.partitions)
        allowed, _ = _parts(tps, Operation.DESCRIBE, may)
        shown = tuple(one for one in reply.partitions if one.topic_partition in allowed)
        return structs.replace(reply, partitions=shown)

    return Split(request=request, join=join)


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


def _split_deleted(request: group.DeleteOffsetsRequest, may: May) -> Split:
    """Positions of topics that the caller may not read stay."""
    allowed, others = _parts(request.partitions, Operation.READ, may)
    refused = tuple(
        group.PartitionResult(topic_partition=tp, error=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        for tp in others
    )
    kept = tuple(tp for tp in request.partitions if tp in allowed)
    return Split(
        request=structs.replace(request, partitions=kept) if kept or not refused else None,
        join=lambda reply: structs.replace(reply, results=(*reply.results, *refused)),
    )


_SPLITS: Final[Mapping[type[Request[Any]], Callable[[Any, May], Split]]] = {
    partition.FetchTogetherRequest: _split_fetches,
    group.OffsetCommitRequest: _split_offsets,
    group.TxnOffsetCommitRequest: _split_offsets,
    group.DeleteOffsetsRequest: _split_deleted,
    group.OffsetFetchRequest: _split_positions,
    group.DescribeGroupsRequest: _split_groups,
    share.DescribeShareGroupRequest: _split_share_group,
    cluster.MetadataRequest: _split_topics,
    transaction.AddPartitionsToTxnRequest: _split_enrolment,
    transaction.EndTxnRequest: _split_end,
    transaction.DescribeTransactionsRequest: _split_transactions,
}
