"""oncelog: an exactly-once, transactional event log for Ray.

Public names load on first use. Importing the package stays cheap, and a process can still be
configured to join a cluster before Ray is imported.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oncelog import ray_data, spark_bridge
    from oncelog.actors.protocol.messages.access import Acl, Limits, Operation, Resource
    from oncelog.actors.protocol.messages.group import OffsetAndMetadata
    from oncelog.actors.protocol.messages.transaction import Run, Winner
    from oncelog.api.admin.admin import Admin, AsyncAdmin
    from oncelog.api.admin.identities import AclFilter
    from oncelog.api.batching.delivery import RecordMetadata
    from oncelog.api.batching.interceptors import ProducerInterceptor, ProducerRecord
    from oncelog.api.client import Cluster, connect, init
    from oncelog.api.consuming.consumer import AsyncConsumer, Consumer
    from oncelog.api.consuming.core import ConsumerRebalanceListener
    from oncelog.api.option_types import ConsumerOptions, ProducerOptions
    from oncelog.api.processing.job import ProcessFailedError, ProcessJob
    from oncelog.api.producing.member import Membership
    from oncelog.api.producing.producer import AsyncProducer, Producer
    from oncelog.api.records import ConsumerRecord
    from oncelog.api.serializing import SerializationContext
    from oncelog.api.session.routing import Outage
    from oncelog.api.transacting.producer_transaction import PreparedTxnState
    from oncelog.storage.errors import ErrorCode
    from oncelog.storage.exceptions import (
        AbortedByOperatorError,
        AlreadyCommittedError,
        BrokerNotAvailableError,
        ClientClosedError,
        ClusterAuthorizationFailedError,
        ConcurrentTransactionsError,
        ConnectionFailedError,
        CoordinatorLoadInProgressError,
        CoordinatorNotAvailableError,
        CorruptDataError,
        CorruptMessageError,
        CorruptRecordError,
        DuplicateBrokerRegistrationError,
        DuplicateSequenceNumberError,
        FencedInstanceIdError,
        FencedLeaderEpochError,
        GroupAuthorizationFailedError,
        GroupIdNotFoundError,
        GroupMaxSizeReachedError,
        GroupSubscribedToTopicError,
        IllegalGenerationError,
        IllegalStateError,
        InconsistentGroupProtocolError,
        IneligibleReplicaError,
        InvalidConfigError,
        InvalidGroupIdError,
        InvalidPartitionsError,
        InvalidProducerEpochError,
        InvalidProducerIdMappingError,
        InvalidRecordError,
        InvalidReplicaAssignmentError,
        InvalidReplicationFactorError,
        InvalidRequestError,
        InvalidRequiredAcksError,
        InvalidSessionTimeoutError,
        InvalidSettingError,
        InvalidTimestampError,
        InvalidTopicError,
        InvalidTransactionTimeoutError,
        InvalidTxnStateError,
        InvalidUpdateVersionError,
        KafkaStorageError,
        MemberIdRequiredError,
        MessageTooLargeError,
        NetworkError,
        NonEmptyGroupError,
        NotControllerError,
        NotCoordinatorError,
        NotEnoughReplicasAfterAppendError,
        NotEnoughReplicasError,
        NotLeaderOrFollowerError,
        OffsetMetadataTooLargeError,
        OffsetNotAvailableError,
        OffsetOutOfRangeError,
        OncelogError,
        OperationNotAttemptedError,
        OutdatedVersionError,
        OutOfOrderSequenceNumberError,
        PolicyViolationError,
        PreferredLeaderNotAvailableError,
        ProducerFencedError,
        ReassignmentInProgressError,
        RebalanceInProgressError,
        RecordListTooLargeError,
        ReplicaOfflineError,
        RequestTimedOutError,
        SaslAuthenticationFailedError,
        SerializationError,
        SpillFailedError,
        StaleBrokerEpochError,
        StaleControllerEpochError,
        ThrottlingQuotaExceededError,
        TopicAlreadyExistsError,
        TopicAuthorizationFailedError,
        TransactionAbortableError,
        TransactionalIdAuthorizationFailedError,
        TransactionalIdInUseError,
        TransactionalIdNotFoundError,
        TransactionCoordinatorFencedError,
        TransactionTimedOutError,
        UnknownLeaderEpochError,
        UnknownMemberIdError,
        UnknownProducerIdError,
        UnknownServerError,
        UnknownTopicIdError,
        UnknownTopicOrPartitionError,
        UnstableOffsetCommitError,
    )
    from oncelog.storage.model import IsolationLevel, TopicPartition
    from oncelog.storage.records.rows import Record

__version__ = "0.1.0"

__all__ = [
    "AbortedByOperatorError",
    "Acl",
    "AclFilter",
    "Admin",
    "AlreadyCommittedError",
    "AsyncAdmin",
    "AsyncConsumer",
    "AsyncProducer",
    "BrokerNotAvailableError",
    "ClientClosedError",
    "Cluster",
    "ClusterAuthorizationFailedError",
    "ConcurrentTransactionsError",
    "ConnectionFailedError",
    "Consumer",
    "ConsumerOptions",
    "ConsumerRebalanceListener",
    "ConsumerRecord",
    "CoordinatorLoadInProgressError",
    "CoordinatorNotAvailableError",
    "CorruptDataError",
    "CorruptMessageError",
    "CorruptRecordError",
    "DuplicateBrokerRegistrationError",
    "DuplicateSequenceNumberError",
    "ErrorCode",
    "FencedInstanceIdError",
    "FencedLeaderEpochError",
    "GroupAuthorizationFailedError",
    "GroupIdNotFoundError",
    "GroupMaxSizeReachedError",
    "GroupSubscribedToTopicError",
    "IllegalGenerationError",
    "IllegalStateError",
    "InconsistentGroupProtocolError",
    "IneligibleReplicaError",
    "InvalidConfigError",
    "InvalidGroupIdError",
    "InvalidPartitionsError",
    "InvalidProducerEpochError",
    "InvalidProducerIdMappingError",
    "InvalidRecordError",
    "InvalidReplicaAssignmentError",
    "InvalidReplicationFactorError",
    "InvalidRequestError",
    "InvalidRequiredAcksError",
    "InvalidSessionTimeoutError",
    "InvalidSettingError",
    "InvalidTimestampError",
    "InvalidTopicError",
    "InvalidTransactionTimeoutError",
    "InvalidTxnStateError",
    "InvalidUpdateVersionError",
    "IsolationLevel",
    "KafkaStorageError",
    "Limits",
    "MemberIdRequiredError",
    "Membership",
    "MessageTooLargeError",
    "NetworkError",
    "NonEmptyGroupError",
    "NotControllerError",
    "NotCoordinatorError",
    "NotEnoughReplicasAfterAppendError",
    "NotEnoughReplicasError",
    "NotLeaderOrFollowerError",
    "OffsetAndMetadata",
    "OffsetMetadataTooLargeError",
    "OffsetNotAvailableError",
    "OffsetOutOfRangeError",
    "OncelogError",
    "Operation",
    "OperationNotAttemptedError",
    "OutOfOrderSequenceNumberError",
    "Outage",
    "OutdatedVersionError",
    "PolicyViolationError",
    "PreferredLeaderNotAvailableError",
    "PreparedTxnState",
    "ProcessFailedError",
    "ProcessJob",
    "Producer",
    "ProducerFencedError",
    "ProducerInterceptor",
    "ProducerOptions",
    "ProducerRecord",
    "ReassignmentInProgressError",
    "RebalanceInProgressError",
    "Record",
    "RecordListTooLargeError",
    "RecordMetadata",
    "ReplicaOfflineError",
    "RequestTimedOutError",
    "Resource",
    "Run",
    "SaslAuthenticationFailedError",
    "SerializationContext",
    "SerializationError",
    "SpillFailedError",
    "StaleBrokerEpochError",
    "StaleControllerEpochError",
    "ThrottlingQuotaExceededError",
    "TopicAlreadyExistsError",
    "TopicAuthorizationFailedError",
    "TopicPartition",
    "TransactionAbortableError",
    "TransactionCoordinatorFencedError",
    "TransactionTimedOutError",
    "TransactionalIdAuthorizationFailedError",
    "TransactionalIdInUseError",
    "TransactionalIdNotFoundError",
    "UnknownLeaderEpochError",
    "UnknownMemberIdError",
    "UnknownProducerIdError",
    "UnknownServerError",
    "UnknownTopicIdError",
    "UnknownTopicOrPartitionError",
    "UnstableOffsetCommitError",
    "Winner",
    "connect",
    "init",
    "ray_data",
    "spark_bridge",
]

_MODULES = {
    "Acl": "oncelog.actors.protocol.messages.access",
    "AclFilter": "oncelog.api.admin.identities",
    "Admin": "oncelog.api.admin.admin",
    "AsyncAdmin": "oncelog.api.admin.admin",
    "AsyncConsumer": "oncelog.api.consuming.consumer",
    "AsyncProducer": "oncelog.api.producing.producer",
    "Cluster": "oncelog.api.client",
    "Consumer": "oncelog.api.consuming.consumer",
    "ConsumerOptions": "oncelog.api.option_types",
    "ConsumerRebalanceListener": "oncelog.api.consuming.core",
    "ConsumerRecord": "oncelog.api.records",
    "ErrorCode": "oncelog.storage.errors",
    "IsolationLevel": "oncelog.storage.model",
    "Membership": "oncelog.api.producing.member",
    "OffsetAndMetadata": "oncelog.actors.protocol.messages.group",
    "Limits": "oncelog.actors.protocol.messages.access",
    "Operation": "oncelog.actors.protocol.messages.access",
    "Outage": "oncelog.api.session.routing",
    "PreparedTxnState": "oncelog.api.transacting.producer_transaction",
    "ProcessFailedError": "oncelog.api.processing.job",
    "ProcessJob": "oncelog.api.processing.job",
    "Producer": "oncelog.api.producing.producer",
    "ProducerInterceptor": "oncelog.api.batching.interceptors",
    "ProducerOptions": "oncelog.api.option_types",
    "ProducerRecord": "oncelog.api.batching.interceptors",
    "Record": "oncelog.storage.records.rows",
    "RecordMetadata": "oncelog.api.batching.delivery",
    "Resource": "oncelog.actors.protocol.messages.access",
    "Run": "oncelog.actors.protocol.messages.transaction",
    "SerializationContext": "oncelog.api.serializing",
    "TopicPartition": "oncelog.storage.model",
    "Winner": "oncelog.actors.protocol.messages.transaction",
    "connect": "oncelog.api.client",
    "init": "oncelog.api.client",
}


_EXCEPTIONS = "oncelog.storage.exceptions"


def __getattr__(name: str) -> Any:
    if name in ("ray_data", "spark_bridge"):
        return importlib.import_module(f"oncelog.{name}")
    if name not in __all__:
        raise AttributeError(f"module 'oncelog' has no attribute {name!r}")
    # Public names that are not listed above are exceptions.
    return getattr(importlib.import_module(_MODULES.get(name, _EXCEPTIONS)), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
