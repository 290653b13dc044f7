"""What each request needs and who then may make it, written by hand and not read from the product.

``ROWS`` has a sample of each request; the names in it are those that its caller needs rights on.
``allows`` is what ACLs mean, as Kafka has it. ``row_saboteurs`` removes the needs of the product,
one at a time, so that tests and simulator can show that they notice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest import mock

from oncelog.actors.protocol import access
from oncelog.actors.protocol.access import NEEDS, Principal
from oncelog.actors.protocol.messages import brokers, cluster, group, partition, replication, share
from oncelog.actors.protocol.messages import transaction as txn
from oncelog.actors.protocol.messages.access import (
    ANYBODY,
    CLUSTER_NAME,
    NO_ACCESS,
    RAY_NAME,
    AccessRequest,
    Acl,
    AlterAclsRequest,
    AlterAuthorizationRequest,
    AlterLimitsRequest,
    AlterUsersRequest,
    DescribeAccessRequest,
    LearnAccessRequest,
    Limits,
    Operation,
    Resource,
    Rules,
)
from oncelog.actors.protocol.messages.base import Request
from oncelog.actors.protocol.tickets import ClusterKeys
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import TopicPartition

REFUSALS = {
    Resource.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    Resource.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    Resource.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    Resource.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
}

# --- the table ------------------------------------------------------------------------------------


class Names(NamedTuple):
    """What requests name."""

    topic: str
    group: str
    transactional_id: str

    @property
    def partition(self) -> TopicPartition:
        return TopicPartition(self.topic, 0)

    def of(self, resource: Resource) -> str:
        return {
            Resource.TOPIC: self.topic,
            Resource.GROUP: self.group,
            Resource.TRANSACTIONAL_ID: self.transactional_id,
            Resource.CLUSTER: CLUSTER_NAME,
        }[resource]

    def with_other(self, resource: Resource, other: str) -> Names:
        """With another name of that kind; there is one cluster."""
        if resource is Resource.CLUSTER:
            return self
        return self._replace(**{resource.name.lower(): other})


class Right(NamedTuple):
    """``in_part``: what lacks it is left out of the request, or refused alone."""

    operation: Operation
    resource: Resource
    in_part: bool = False
    on_any: bool = False
    """On any one resource of the kind, whatever its name."""


class Row(NamedTuple):
    make: Callable[[Names], Request[Any]]
    rights: tuple[Right, ...]

    @property
    def kind(self) -> type[Request[Any]]:
        return type(self.make(Names("a", "b", "c")))

    def __str__(self) -> str:
        return f"{self.kind.method}-{'+'.join(map(told, self.rights))}"


def told(right: Right) -> str:
    return f"{right.resource.value}{right.operation.value}"


_READ, _WRITE, _DESCRIBE = Operation.READ, Operation.WRITE, Operation.DESCRIBE
_TOPIC, _CLUSTER = Resource.TOPIC, Resource.CLUSTER
READ_TOPIC, WRITE_TOPIC = Right(_READ, _TOPIC), Right(_WRITE, _TOPIC)
READ_TOPICS, WRITE_TOPICS = READ_TOPIC._replace(in_part=True), WRITE_TOPIC._replace(in_part=True)
DESCRIBE_TOPIC = Right(_DESCRIBE, _TOPIC)
DESCRIBE_TOPICS = DESCRIBE_TOPIC._replace(in_part=True)
CREATE_TOPIC, ALTER_TOPIC = Right(Operation.CREATE, _TOPIC), Right(Operation.ALTER, _TOPIC)
DELETE_TOPIC = Right(Operation.DELETE, _TOPIC)
READ_GROUP, DELETE_GROUP = Right(_READ, Resource.GROUP), Right(Operation.DELETE, Resource.GROUP)
DESCRIBE_GROUP = Right(_DESCRIBE, Resource.GROUP)
DESCRIBE_GROUPS = DESCRIBE_GROUP._replace(in_part=True)
WRITE_ID = Right(_WRITE, Resource.TRANSACTIONAL_ID)
DESCRIBE_IDS = Right(_DESCRIBE, Resource.TRANSACTIONAL_ID, in_part=True)
ALTER_CLUSTER, DESCRIBE_CLUSTER = Right(Operation.ALTER, _CLUSTER), Right(_DESCRIBE, _CLUSTER)
SERVER_PROOF = Right(Operation.CLUSTER_ACTION, _CLUSTER)

_RUN = txn.Run(number=9, id="another")
"""None that has begun: whoever may enlist leaves no transaction open."""
_PRODUCER: dict[str, int] = {"producer_id": 7, "producer_epoch": 0}
_POSITION = group.OffsetAndMetadata(offset=0)
_TOPIC_ID = "5" * 32


def _produce(n: Names, transactional_id: str | None) -> Request[Any]:
    return partition.ProduceRequest(
        topic_partition=n.partition, transactional_id=transactional_id, batch=b""
    )


def _marker(n: Names) -> Request[Any]:
    """As a coordinator would write it."""
    marker = partition.TxnMarker(
        producer_id=0, producer_epoch=30_000, committed=True, partitions=(n.partition,)
    )
    return partition.WriteTxnMarkersRequest(coordinator_epoch=1_000, markers=(marker,))


def _replicate(n: Names) -> Request[Any]:
    return replication.ReplicateRequest(
        topic_partition=n.partition,
        topic_id=_TOPIC_ID,
        leader=1,
        leader_epoch=1_000,
        epoch_start_offset=0,
        previous_end_offset=0,
        previous_leader_epoch=-1,
        high_watermark=0,
        log_start_offset=0,
        batches=b"",
    )


def _become_leader(n: Names) -> Request[Any]:
    return cluster.BecomeLeaderRequest(
        topic_partition=n.partition,
        topic_id=_TOPIC_ID,
        broker_id=1,
        incarnation="x",
        expected_epoch=0,
    )


def _alter_isr(n: Names) -> Request[Any]:
    return cluster.AlterIsrRequest(
        topic_partition=n.partition,
        topic_id=_TOPIC_ID,
        broker_id=1,
        leader_epoch=0,
        partition_version=0,
        isr=(1,),
    )


def _end(n: Names, **fields: Any) -> Request[Any]:
    return txn.EndTxnRequest(transactional_id=n.transactional_id, committed=True, **fields)


def _txn_offsets(n: Names) -> Request[Any]:
    return group.TxnOffsetCommitRequest(
        transactional_id=n.transactional_id,
        group_id=n.group,
        **_PRODUCER,
        base_sequence=0,
        offsets=((n.partition, _POSITION),),
    )


def _fetch_together(n: Names) -> Request[Any]:
    fetch = partition.FetchRequest(topic_partition=n.partition, fetch_offset=0)
    shared = partition.SharedFetch(number=1, key=f"{_TOPIC_ID}-0", fetch=fetch)
    return partition.FetchTogetherRequest(session_id="s", fetches=(shared,), max_wait_ms=0)


_MEMBER: dict[str, Any] = {"member_id": "m", "member_epoch": 1_000}
"""None that has joined: whoever may join makes no queue of a group."""


def _acknowledged(n: Names) -> tuple[share.PartitionAcknowledgements, ...]:
    run = share.AcknowledgedRun(0, 0, share.AcknowledgeType.ACCEPT)
    return (
        share.PartitionAcknowledgements(
            topic_partition=n.partition, topic_id=_TOPIC_ID, runs=(run,)
        ),
    )


def _leave(n: Names) -> Request[Any]:
    leaving = (group.LeavingMember(member_id="m"),)
    return group.LeaveGroupRequest(group_id=n.group, members=leaving)


def _of_id(kind: type[Request[Any]], **fields: Any) -> Callable[[Names], Request[Any]]:
    return lambda n: kind(transactional_id=n.transactional_id, **fields)  # type: ignore[call-arg]


def _of_group(kind: type[Request[Any]], **fields: Any) -> Callable[[Names], Request[Any]]:
    return lambda n: kind(group_id=n.group, **fields)  # type: ignore[call-arg]


def _of_partition(kind: type[Request[Any]], **fields: Any) -> Callable[[Names], Request[Any]]:
    return lambda n: kind(topic_partition=n.partition, **fields)  # type: ignore[call-arg]


def _of_topic(kind: type[Request[Any]], **fields: Any) -> Callable[[Names], Request[Any]]:
    return lambda n: kind(name=n.topic, **fields)  # type: ignore[call-arg]


def _all(request: Request[Any]) -> Callable[[Names], Request[Any]]:
    return lambda _: request


_LEADERSHIP = cluster.BecomeLeaderReply(
    leader_epoch=1_000, partition_version=1_000_000, replicas=(1,), isr=(1,)
)

ROWS: tuple[Row, ...] = (
    # Records.
    Row(lambda n: _produce(n, None), (WRITE_TOPIC,)),
    Row(lambda n: _produce(n, n.transactional_id), (WRITE_TOPIC, WRITE_ID)),
    Row(_of_partition(partition.FetchRequest, fetch_offset=0), (READ_TOPIC,)),
    Row(_fetch_together, (READ_TOPICS,)),
    Row(_of_partition(partition.ListOffsetsRequest, timestamp_ms=-1), (DESCRIBE_TOPIC,)),
    Row(_of_partition(partition.DescribeProducersRequest), (READ_TOPIC,)),
    Row(_of_partition(partition.DeleteRecordsRequest, offset=-1), (DELETE_TOPIC,)),
    Row(_of_partition(partition.DescribeReplicaRequest), (DESCRIBE_TOPIC,)),
    Row(_all(partition.DescribeReplicaRequest()), (DESCRIBE_CLUSTER,)),
    Row(
        _of_partition(partition.AbortHangingRequest, **_PRODUCER, start_offset=0), (ALTER_CLUSTER,)
    ),
    # Transactions.
    Row(
        _all(txn.InitProducerIdRequest(transactional_id=None)), (WRITE_TOPIC._replace(on_any=True),)
    ),
    Row(_of_id(txn.InitProducerIdRequest), (WRITE_ID,)),
    Row(_of_id(txn.ProducerHeartbeatRequest, **_PRODUCER), (WRITE_ID,)),
    Row(_of_id(txn.BeginRunRequest, run_id="r"), (WRITE_ID,)),
    Row(_of_id(txn.EnlistRequest, run=_RUN, token=b""), (WRITE_ID,)),
    Row(_of_id(txn.LeaveRunRequest, run=_RUN, **_PRODUCER), (WRITE_ID,)),
    Row(_of_id(txn.RenewRunRequest, run=_RUN), (WRITE_ID,)),
    Row(
        lambda n: txn.AddPartitionsToTxnRequest(
            transactional_id=n.transactional_id, **_PRODUCER, partitions=(n.partition,)
        ),
        (WRITE_ID, WRITE_TOPICS),
    ),
    Row(
        lambda n: txn.AddOffsetsToTxnRequest(
            transactional_id=n.transactional_id, **_PRODUCER, group_id=n.group
        ),
        (WRITE_ID, READ_GROUP),
    ),
    Row(_of_id(txn.VerifyTxnRequest, **_PRODUCER), (SERVER_PROOF,)),
    Row(_of_id(txn.PrepareTxnRequest, **_PRODUCER), (WRITE_ID,)),
    Row(_end, (WRITE_ID,)),
    Row(lambda n: _end(n, next_partitions=(n.partition,)), (WRITE_ID, WRITE_TOPICS)),
    Row(
        lambda n: txn.DescribeTransactionsRequest(transactional_ids=(n.transactional_id,)),
        (DESCRIBE_IDS,),
    ),
    Row(_of_id(txn.AbortTransactionRequest), (ALTER_CLUSTER,)),
    Row(_of_id(txn.EndPreparedTxnRequest, committed=True), (ALTER_CLUSTER,)),
    Row(_of_id(txn.DeleteTransactionalIdRequest), (ALTER_CLUSTER,)),
    # Groups.
    Row(_of_group(group.JoinGroupRequest), (READ_GROUP,)),
    Row(_of_group(group.SyncGroupRequest, generation_id=1, member_id="m"), (READ_GROUP,)),
    Row(_of_group(group.HeartbeatRequest, generation_id=1, member_id="m"), (READ_GROUP,)),
    Row(_leave, (READ_GROUP,)),
    Row(
        lambda n: group.OffsetCommitRequest(group_id=n.group, offsets=((n.partition, _POSITION),)),
        (READ_GROUP, READ_TOPICS),
    ),
    Row(_txn_offsets, (WRITE_ID, READ_GROUP, READ_TOPICS)),
    Row(
        lambda n: group.OffsetFetchRequest(group_id=n.group, partitions=(n.partition,)),
        (DESCRIBE_GROUP, DESCRIBE_TOPICS),
    ),
    Row(lambda n: group.DescribeGroupsRequest(group_ids=(n.group,)), (DESCRIBE_GROUPS,)),
    Row(_of_group(group.DeleteGroupRequest), (DELETE_GROUP,)),
    Row(
        lambda n: group.DeleteOffsetsRequest(group_id=n.group, partitions=(n.partition,)),
        (DELETE_GROUP, READ_TOPICS),
    ),
    # Queues.
    Row(
        lambda n: share.ShareGroupHeartbeatRequest(
            group_id=n.group, **_MEMBER, topics=(n.topic,), is_leaving=True
        ),
        (READ_GROUP, READ_TOPIC),
    ),
    Row(
        lambda n: share.ShareAcquireRequest(
            group_id=n.group, **_MEMBER, topics=(n.topic,), sequence=1, max_records=1
        ),
        (READ_GROUP, READ_TOPIC),
    ),
    Row(
        lambda n: share.ShareAcknowledgeRequest(
            group_id=n.group, **_MEMBER, sequence=1, acknowledgements=_acknowledged(n)
        ),
        (READ_GROUP, READ_TOPIC),
    ),
    Row(
        lambda n: share.TxnShareAcknowledgeRequest(
            transactional_id=n.transactional_id,
            group_id=n.group,
            **_MEMBER,
            **_PRODUCER,
            base_sequence=0,
            acknowledgements=_acknowledged(n),
        ),
        (WRITE_ID, READ_GROUP, READ_TOPIC),
    ),
    Row(_of_group(share.DescribeShareGroupRequest), (DESCRIBE_GROUP,)),
    # Topics, and the cluster as a whole.
    Row(lambda n: cluster.MetadataRequest(topics=(n.topic,)), (DESCRIBE_TOPICS,)),
    Row(_of_topic(cluster.CreateTopicRequest, topic_id=_TOPIC_ID, partitions=0), (CREATE_TOPIC,)),
    Row(_of_topic(cluster.AlterTopicRequest, changes=(("retention_ms", "1"),)), (ALTER_TOPIC,)),
    Row(_of_topic(cluster.CreatePartitionsRequest, partitions=9), (ALTER_TOPIC,)),
    Row(_of_topic(cluster.DeleteTopicRequest), (DELETE_TOPIC,)),
    Row(_all(cluster.RotateClusterKeyRequest(key_version=0)), (ALTER_CLUSTER,)),
    Row(_all(brokers.DrainBrokerRequest(broker_id=1)), (ALTER_CLUSTER,)),
    Row(_of_partition(brokers.ReassignPartitionRequest, replicas=(1,)), (ALTER_CLUSTER,)),
    Row(_all(brokers.ElectLeadersRequest()), (ALTER_CLUSTER,)),
    Row(_all(replication.DescribeVoterRequest()), (DESCRIBE_CLUSTER,)),
    Row(_all(cluster.ShutdownRequest()), (ALTER_CLUSTER,)),
    # Users and rules.
    Row(_all(DescribeAccessRequest()), (DESCRIBE_CLUSTER,)),
    Row(_all(brokers.FindKafkaListenerRequest()), (DESCRIBE_CLUSTER,)),
    Row(_all(AlterUsersRequest(removed=("alice",))), (ALTER_CLUSTER,)),
    Row(
        lambda n: AlterAclsRequest(
            added=(
                Acl(principal=ANYBODY, resource=_TOPIC, name="*", operation=Operation.ALL),
                Acl(principal=ANYBODY, resource=_TOPIC, name=n.topic, operation=Operation.ALL),
            )
        ),
        (ALTER_CLUSTER,),
    ),
    Row(_all(AlterLimitsRequest(put=((RAY_NAME, Limits(connections=1)),))), (ALTER_CLUSTER,)),
    Row(_all(AlterAuthorizationRequest(is_on=False, super_users=(ANYBODY,))), (ALTER_CLUSTER,)),
    # What servers do to each other.
    Row(_marker, (SERVER_PROOF,)),
    Row(
        _of_partition(
            partition.ConfigureRequest, topic_id=_TOPIC_ID, settings=(), settings_version=1_000_000
        ),
        (SERVER_PROOF,),
    ),
    Row(_replicate, (SERVER_PROOF,)),
    Row(
        _all(
            replication.VoteRequest(
                cluster_id="c" * 32,
                candidate=9,
                leader_epoch=1_000,
                log_end_offset=1_000_000,
                log_epoch=1_000,
            )
        ),
        (SERVER_PROOF,),
    ),
    Row(_become_leader, (SERVER_PROOF,)),
    Row(_of_partition(cluster.LeaderAndIsrRequest, leadership=_LEADERSHIP), (SERVER_PROOF,)),
    Row(_alter_isr, (SERVER_PROOF,)),
    Row(_all(cluster.ClusterKeysRequest()), (SERVER_PROOF,)),
    Row(
        _all(cluster.LearnKeysRequest(keys=ClusterKeys(version=1_000_000, current=b"k" * 32))),
        (SERVER_PROOF,),
    ),
    Row(_all(cluster.AllocateProducerIdsRequest(broker_id=1)), (SERVER_PROOF,)),
    Row(_all(cluster.HostedReplicasRequest(broker_id=1, host=1)), (SERVER_PROOF,)),
    Row(_all(cluster.HoldReplicasRequest()), (SERVER_PROOF,)),
    Row(_all(cluster.ShutdownRequest(topic_id=_TOPIC_ID, remove_data=True)), (SERVER_PROOF,)),
    Row(_all(AccessRequest()), (SERVER_PROOF,)),
    Row(_all(LearnAccessRequest(access=NO_ACCESS)), (SERVER_PROOF,)),
    Row(_all(brokers.RegisterBrokerRequest(broker_id=1)), (SERVER_PROOF,)),
    Row(_all(brokers.BrokerHeartbeatRequest(broker_id=1, broker_epoch=0)), (SERVER_PROOF,)),
    Row(_all(brokers.PingRequest()), (SERVER_PROOF,)),
    Row(_all(brokers.DescribeProcessesRequest(processes=())), (SERVER_PROOF,)),
)
"""Each request at least once, with what its caller needs. Whoever may create creates nothing."""

LISTINGS: tuple[Row, ...] = (
    Row(_all(cluster.MetadataRequest()), ()),
    Row(_all(group.DescribeGroupsRequest()), ()),
    Row(_all(txn.DescribeTransactionsRequest()), ()),
    Row(_of_group(group.OffsetFetchRequest), (DESCRIBE_GROUP,)),
)
"""Requests for all there is: their replies tell what the caller may see."""

# --- the rules ------------------------------------------------------------------------------------

SHOWING = {
    Operation.READ,
    Operation.WRITE,
    Operation.CREATE,
    Operation.DELETE,
    Operation.ALTER,
}
"""Whoever may do one of these to something may see it."""


def suffices(given: Operation, wanted: Operation) -> bool:
    """Whether an ACL that allows ``given`` allows ``wanted``."""
    return given in (wanted, Operation.ALL) or (wanted is _DESCRIBE and given in SHOWING)


def allows(rules: Rules, who: Principal, right: Right, name: str, host: str) -> bool:
    """Whether ``who`` has the right on that name."""
    if who.is_server:
        return True
    is_for_servers = right.operation is Operation.CLUSTER_ACTION
    if is_for_servers and who.name == RAY_NAME:
        return False
    if not rules.is_on or who.name in rules.super_users:
        return not is_for_servers
    found = [
        acl
        for acl in rules.acls
        if acl.principal in (who.name, ANYBODY)
        and acl.resource is right.resource
        and acl.host in (host, "*")
    ]
    if right.on_any:
        denied = any(_denies(acl, right) and acl.name == "*" for acl in found)
        return not denied and any(
            acl.is_allowed and suffices(acl.operation, right.operation) for acl in found
        )
    about = [
        acl
        for acl in found
        if (name.startswith(acl.name) if acl.is_prefix else acl.name in (name, "*"))
    ]
    return not any(_denies(acl, right) for acl in about) and any(
        acl.is_allowed and suffices(acl.operation, right.operation) for acl in about
    )


def _denies(acl: Acl, right: Right) -> bool:
    return not acl.is_allowed and acl.operation in (right.operation, Operation.ALL)


def lacking(row: Row, names: Names, rules: Rules, who: Principal, host: str) -> list[Right]:
    """What ``who`` lacks for the request that ``row`` makes of ``names``."""
    return [
        right
        for right in row.rights
        if not allows(rules, who, right, names.of(right.resource), host)
    ]


# --- the table of the product, with one need less -------------------------------------------------


class RowSaboteur(NamedTuple):
    """One kind of request passes as if one of its needs were met."""

    kind: type[Request[Any]]
    operation: Operation
    resource: Resource

    def __str__(self) -> str:
        return f"{self.kind.method}-{self.resource.value}{self.operation.value}"

    @contextmanager
    def sabotage(self) -> Iterator[None]:
        removed = (self.operation, self.resource)

        def blind(judge: Callable[..., Any]) -> Callable[..., Any]:
            def judged(request: Request[Any], may: access.May) -> Any:
                if type(request) is not self.kind:
                    return judge(request, may)
                return judge(request, lambda *asked: asked[:2] == removed or may(*asked))

            return judged

        with (
            mock.patch.object(access, "refusal", blind(access.refusal)),
            mock.patch.object(access, "split", blind(access.split)),
        ):
            yield


def row_saboteurs() -> list[RowSaboteur]:
    """One for each need in the product's table, and for each exception to it."""
    of_table = [
        RowSaboteur(kind, need.operation, need.resource)
        for kind, needs in NEEDS.items()
        for need in needs
    ]
    exceptions = [
        RowSaboteur(cluster.ShutdownRequest, Operation.ALTER, _CLUSTER),
        RowSaboteur(txn.InitProducerIdRequest, _WRITE, _TOPIC),
        RowSaboteur(partition.DescribeReplicaRequest, _DESCRIBE, _TOPIC),
    ]
    return of_table + exceptions
