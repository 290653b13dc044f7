"""Who may call what: one table of what each request needs, asked at the door of each actor.

A connection begins with a proof of who calls (``rpc/handshake.py``), and ``Dispatch`` asks here
before a method sees the request. Calls within a process pass no door and are not asked.

A server may do everything. Every program in a Ray cluster is the same principal, ``User:ray``: Ray
lets it run whatever it likes. It may do all but what only servers do to each other. That guards
against mistakes, such as a program that deposes a leader or removes a replica's data. Markers it
may write, as an operator does who ends a hanging transaction. So of each row just one thing is
asked yet: whether it is for servers only.

Source: KIP-11 and Kafka's "Authorization and ACLs", for the operations and what needs which.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from oncelog.actors.protocol.messages import (
    brokers,
    cluster,
    group,
    partition,
    replication,
    transaction,
)
from oncelog.actors.protocol.messages.base import Request
from oncelog.storage.errors import ErrorCode


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

Need = tuple[Operation, Resource]

_READ_GROUP: Final = (Operation.READ, Resource.GROUP)
_WRITE_ID: Final = (Operation.WRITE, Resource.TRANSACTIONAL_ID)
_ALTER_CLUSTER: Final = (Operation.ALTER, Resource.CLUSTER)
_DESCRIBE_CLUSTER: Final = (Operation.DESCRIBE, Resource.CLUSTER)
_SERVER_ONLY: Final = (Operation.CLUSTER_ACTION, Resource.CLUSTER)


def _topic(operation: Operation) -> Need:
    return operation, Resource.TOPIC


NEEDS: Final[Mapping[type[Request[Any]], tuple[Need, ...]]] = {
    partition.ProduceRequest: (_topic(Operation.WRITE), _WRITE_ID),
    partition.FetchRequest: (_topic(Operation.READ),),
    partition.ListOffsetsRequest: (_topic(Operation.DESCRIBE),),
    partition.DescribeProducersRequest: (_topic(Operation.READ),),
    partition.DeleteRecordsRequest: (_topic(Operation.DELETE),),
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
    transaction.AddPartitionsToTxnRequest: (_WRITE_ID, _topic(Operation.WRITE)),
    transaction.AddOffsetsToTxnRequest: (_WRITE_ID, _READ_GROUP),
    transaction.EndTxnRequest: (_WRITE_ID,),
    transaction.DescribeTransactionsRequest: ((Operation.DESCRIBE, Resource.TRANSACTIONAL_ID),),
    transaction.AbortTransactionRequest: (_ALTER_CLUSTER,),
    transaction.DeleteTransactionalIdRequest: (_ALTER_CLUSTER,),
    group.JoinGroupRequest: (_READ_GROUP,),
    group.SyncGroupRequest: (_READ_GROUP,),
    group.HeartbeatRequest: (_READ_GROUP,),
    group.LeaveGroupRequest: (_READ_GROUP,),
    group.OffsetCommitRequest: (_READ_GROUP, _topic(Operation.READ)),
    group.TxnOffsetCommitRequest: (_WRITE_ID, _READ_GROUP, _topic(Operation.READ)),
    group.OffsetFetchRequest: ((Operation.DESCRIBE, Resource.GROUP), _topic(Operation.DESCRIBE)),
    group.DescribeGroupsRequest: ((Operation.DESCRIBE, Resource.GROUP),),
    group.DeleteGroupRequest: ((Operation.DELETE, Resource.GROUP),),
    cluster.MetadataRequest: (_topic(Operation.DESCRIBE),),
    cluster.CreateTopicRequest: (_topic(Operation.CREATE),),
    cluster.AlterTopicRequest: (_topic(Operation.ALTER),),
    cluster.CreatePartitionsRequest: (_topic(Operation.ALTER),),
    cluster.DeleteTopicRequest: (_topic(Operation.DELETE),),
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


def needs_of(request: Request[Any]) -> tuple[Need, ...]:
    """What ``request`` needs: its row, but for an order to stop the whole cluster.

    An operator gives that one to the controller. It names no replica's topic and removes nothing.
    """
    if request == cluster.ShutdownRequest():
        return (_ALTER_CLUSTER,)
    return NEEDS[type(request)]


def refusal(principal: Principal, request: Request[Any]) -> ErrorCode:
    """``NONE`` if ``principal`` may make this request, or else the error of what it lacks."""
    if principal.is_server or _SERVER_ONLY not in needs_of(request):
        return ErrorCode.NONE
    return ErrorCode.CLUSTER_AUTHORIZATION_FAILED
