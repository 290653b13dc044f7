"""The exception that each error code becomes for a user: one class per code.

Only ``api`` and the bridges above it raise these, and every class pickles. The docstring of each
class is its default message, and ``advice`` its default advice.

One file: a class for each code of the one table, and nothing else.
"""

from __future__ import annotations

import copyreg
from typing import Any, ClassVar

from oncelog.storage.errors import ErrorClass, ErrorCode
from oncelog.storage.model import NO_OFFSET, TopicPartition


class OncelogError(Exception):
    """Base of every error that oncelog raises to a user.

    ``code`` is the ``ErrorCode``; ``retriable``, ``abortable`` and ``fatal`` say what a program may
    do. ``what`` says what is wrong and ``advice`` what to do about it; the error's text is both.
    """

    code: ClassVar[ErrorCode] = ErrorCode.UNKNOWN_SERVER_ERROR
    advice: str = ""

    def __init__(self, what: str = "", *, advice: str = "") -> None:
        advice = advice or ("" if what else self.advice)
        self.what = what or (type(self).__doc__ or "").rstrip(".")
        if advice:
            self.advice = advice
        super().__init__(f"{self.what}; {advice}" if advice else self.what)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the fields: the text would become ``what``, with the advice in it twice."""
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]

    @property
    def retriable(self) -> bool:
        """Whether the same call may be made again."""
        return self.code.error_class is ErrorClass.RETRIABLE

    @property
    def abortable(self) -> bool:
        """Whether aborting the transaction makes the producer usable again."""
        return self.code.error_class is ErrorClass.ABORTABLE

    @property
    def fatal(self) -> bool:
        """Whether only a different argument, or closing the client, helps."""
        return self.code.error_class is ErrorClass.FATAL


class UnknownServerError(OncelogError):
    """The server failed in a way that has no error code."""

    code = ErrorCode.UNKNOWN_SERVER_ERROR
    advice = "see its log"


class OffsetOutOfRangeError(OncelogError):
    """The offset is below the log start or beyond the log end."""

    code = ErrorCode.OFFSET_OUT_OF_RANGE
    advice = "seek or reset the position"


class CorruptMessageError(OncelogError):
    """The batch failed its CRC, is truncated or has an impossible size."""

    code = ErrorCode.CORRUPT_MESSAGE
    advice = "send it again"


class UnknownTopicOrPartitionError(OncelogError):
    """No such topic or partition."""

    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    advice = "create it; `oncelog topics list` shows those that exist"


class UnknownTopicIdError(OncelogError):
    """The topic was deleted and created again; an offset of the old one means nothing in it."""

    code = ErrorCode.UNKNOWN_TOPIC_ID
    advice = "seek to the beginning or the end of the new one"


class NotLeaderOrFollowerError(OncelogError):
    """This replica does not lead the partition now."""

    code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    advice = "refresh the metadata and retry"


class RequestTimedOutError(OncelogError):
    """No answer in time."""

    code = ErrorCode.REQUEST_TIMED_OUT
    advice = "the request may have taken effect, so retry with the same sequence"


class BrokerNotAvailableError(OncelogError):
    """No live broker holds the partition."""

    code = ErrorCode.BROKER_NOT_AVAILABLE
    advice = "retry; `oncelog status` shows the brokers"


class MessageTooLargeError(OncelogError):
    """The batch is larger than the topic's max_message_bytes."""

    code = ErrorCode.MESSAGE_TOO_LARGE
    advice = "send smaller records"


class StaleControllerEpochError(OncelogError):
    """A newer controller has written here."""

    code = ErrorCode.STALE_CONTROLLER_EPOCH
    advice = "look the controller up again and retry"


class OffsetMetadataTooLargeError(OncelogError):
    """The metadata of a committed offset is longer than 4,096 bytes."""

    code = ErrorCode.OFFSET_METADATA_TOO_LARGE
    advice = "commit less metadata"


class NetworkError(OncelogError):
    """The call was lost on the way."""

    code = ErrorCode.NETWORK_EXCEPTION
    advice = "it may have taken effect, so retry with the same sequence"


class CoordinatorLoadInProgressError(OncelogError):
    """The coordinator is reading its log."""

    code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    advice = "retry shortly"


class CoordinatorNotAvailableError(OncelogError):
    """The coordinator cannot be reached or cannot write its log."""

    code = ErrorCode.COORDINATOR_NOT_AVAILABLE
    advice = "retry"


class NotCoordinatorError(OncelogError):
    """This actor does not coordinate the id now."""

    code = ErrorCode.NOT_COORDINATOR
    advice = "look the coordinator up again and retry"


class InvalidTopicError(OncelogError):
    """The topic name is not allowed, or the topic is internal."""

    code = ErrorCode.INVALID_TOPIC_EXCEPTION
    advice = (
        "give 1 to 249 of letters, digits, '.', '_' and '-'; names of internal topics are taken"
    )


class RecordListTooLargeError(OncelogError):
    """The batch is larger than a segment."""

    code = ErrorCode.RECORD_LIST_TOO_LARGE
    advice = "send smaller batches"


class NotEnoughReplicasError(OncelogError):
    """Fewer replicas are in sync than min_insync_replicas; nothing was appended."""

    code = ErrorCode.NOT_ENOUGH_REPLICAS
    advice = "retry, or restart the brokers that are down"


class NotEnoughReplicasAfterAppendError(OncelogError):
    """Appended, but fewer replicas are in sync than min_insync_replicas."""

    code = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    advice = "retry, it is deduplicated"


class InvalidRequiredAcksError(OncelogError):
    """acks must be -1 (all), 1 or 0."""

    code = ErrorCode.INVALID_REQUIRED_ACKS
    advice = "give 'all'"


class IllegalGenerationError(OncelogError):
    """The group has moved to another generation."""

    code = ErrorCode.ILLEGAL_GENERATION
    advice = "rejoin it"


class InconsistentGroupProtocolError(OncelogError):
    """The member's protocols do not fit those of the group."""

    code = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    advice = "give every member the same assignors"


class InvalidGroupIdError(OncelogError):
    """The group id is empty or longer than 1,024 bytes."""

    code = ErrorCode.INVALID_GROUP_ID
    advice = "give 1 to 1,024 bytes"


class UnknownMemberIdError(OncelogError):
    """The group does not know this member."""

    code = ErrorCode.UNKNOWN_MEMBER_ID
    advice = "join again"


class InvalidSessionTimeoutError(OncelogError):
    """The session timeout is outside what the group coordinator allows."""

    code = ErrorCode.INVALID_SESSION_TIMEOUT
    advice = "give one that the cluster's settings allow"


class RebalanceInProgressError(OncelogError):
    """The group is rebalancing."""

    code = ErrorCode.REBALANCE_IN_PROGRESS
    advice = "rejoin it"


class InvalidTimestampError(OncelogError):
    """The record's timestamp is outside what the topic allows."""

    code = ErrorCode.INVALID_TIMESTAMP
    advice = "send it with another timestamp"


class TopicAlreadyExistsError(OncelogError):
    """A topic of this name exists."""

    code = ErrorCode.TOPIC_ALREADY_EXISTS
    advice = "choose another name, or delete it first"


class InvalidPartitionsError(OncelogError):
    """The number of partitions is not allowed."""

    code = ErrorCode.INVALID_PARTITIONS
    advice = "give 1 or more"


class InvalidReplicationFactorError(OncelogError):
    """The replication factor is below 1 or above the number of brokers."""

    code = ErrorCode.INVALID_REPLICATION_FACTOR
    advice = "add a broker, or give fewer replicas"


class InvalidReplicaAssignmentError(OncelogError):
    """A broker named for a partition's replicas cannot hold one."""

    code = ErrorCode.INVALID_REPLICA_ASSIGNMENT
    advice = "give brokers that `oncelog status` shows as alive and not draining"


class ReassignmentInProgressError(OncelogError):
    """The partition is being moved to other brokers."""

    code = ErrorCode.REASSIGNMENT_IN_PROGRESS
    advice = "wait for that, or cancel it"


class StaleBrokerEpochError(OncelogError):
    """The broker has registered again since; it asks for its new epoch."""

    code = ErrorCode.STALE_BROKER_EPOCH


class DuplicateBrokerRegistrationError(OncelogError):
    """Another data directory has this broker's number."""

    code = ErrorCode.DUPLICATE_BROKER_REGISTRATION
    advice = "give one of them another number"


class InvalidUpdateVersionError(OncelogError):
    """The partition has been changed since."""

    code = ErrorCode.INVALID_UPDATE_VERSION
    advice = "read its current state, then retry"


class IneligibleReplicaError(OncelogError):
    """The replica cannot be in sync now: its broker is fenced, or it is no replica."""

    code = ErrorCode.INELIGIBLE_REPLICA
    advice = "wait until it is in sync; `oncelog topics describe TOPIC` shows it"


class InvalidConfigError(OncelogError):
    """A setting is unknown or its value impossible."""

    code = ErrorCode.INVALID_CONFIG


class NotControllerError(OncelogError):
    """This actor is not the controller now."""

    code = ErrorCode.NOT_CONTROLLER
    advice = "look it up again and retry"


class InvalidRequestError(OncelogError):
    """The request is malformed."""

    code = ErrorCode.INVALID_REQUEST


class PolicyViolationError(OncelogError):
    """The topic's cleanup policy does not allow this."""

    code = ErrorCode.POLICY_VIOLATION
    advice = "change the topic's cleanup_policy first"


class OutOfOrderSequenceNumberError(OncelogError):
    """The sequence number does not follow the last one of this producer."""

    code = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    advice = "abort the transaction, or make a new producer"


class DuplicateSequenceNumberError(OncelogError):
    """The batch is already in the log."""

    code = ErrorCode.DUPLICATE_SEQUENCE_NUMBER


class InvalidProducerEpochError(OncelogError):
    """A newer epoch of this producer is known."""

    code = ErrorCode.INVALID_PRODUCER_EPOCH
    advice = "abort, then begin again"


class InvalidTxnStateError(OncelogError):
    """The transaction is not in a state that allows this."""

    code = ErrorCode.INVALID_TXN_STATE
    advice = "abort the transaction, then begin again"


class InvalidProducerIdMappingError(OncelogError):
    """The producer id does not belong to the transactional id."""

    code = ErrorCode.INVALID_PRODUCER_ID_MAPPING


class InvalidTransactionTimeoutError(OncelogError):
    """The transaction timeout is not above 0 or above transaction_max_timeout_ms."""

    code = ErrorCode.INVALID_TRANSACTION_TIMEOUT
    advice = "give a timeout within these limits"


class ConcurrentTransactionsError(OncelogError):
    """Another step of this transactional id is still under way."""

    code = ErrorCode.CONCURRENT_TRANSACTIONS
    advice = "retry shortly"


class TransactionCoordinatorFencedError(OncelogError):
    """A newer coordinator epoch has written here."""

    code = ErrorCode.TRANSACTION_COORDINATOR_FENCED


class TransactionalIdAuthorizationFailedError(OncelogError):
    """The transactional id is missing or not allowed."""

    code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    advice = "give the transactional id of the producer"


class TopicAuthorizationFailedError(OncelogError):
    """The caller may not do this to the topic, whether it exists or not."""

    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    advice = "ask an operator for an ACL"


class GroupAuthorizationFailedError(OncelogError):
    """The caller may not do this to the group, whether it exists or not."""

    code = ErrorCode.GROUP_AUTHORIZATION_FAILED
    advice = "ask an operator for an ACL"


class ClusterAuthorizationFailedError(OncelogError):
    """The caller may not do this to the cluster."""

    code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    advice = "ask an operator for an ACL; what servers do to each other no program may"


class SaslAuthenticationFailedError(OncelogError):
    """There is no such user with that password."""

    code = ErrorCode.SASL_AUTHENTICATION_FAILED
    advice = "check the name and the password; `oncelog users list` shows the names"


class OperationNotAttemptedError(OncelogError):
    """Not tried, because another partition of the same request failed."""

    code = ErrorCode.OPERATION_NOT_ATTEMPTED
    advice = "retry once the other one succeeds"


class KafkaStorageError(OncelogError):
    """The disk failed: the replica is offline or out of space."""

    code = ErrorCode.KAFKA_STORAGE_ERROR
    advice = "retry: another replica leads once it can"


class UnknownProducerIdError(OncelogError):
    """The producer id is not known."""

    code = ErrorCode.UNKNOWN_PRODUCER_ID
    advice = "make a new producer"


class NonEmptyGroupError(OncelogError):
    """The group still has members."""

    code = ErrorCode.NON_EMPTY_GROUP
    advice = "stop its members first"


class GroupIdNotFoundError(OncelogError):
    """No such group."""

    code = ErrorCode.GROUP_ID_NOT_FOUND
    advice = "`oncelog groups list` shows those that exist"


class FencedLeaderEpochError(OncelogError):
    """The request's leader epoch is older than the leader's."""

    code = ErrorCode.FENCED_LEADER_EPOCH


class UnknownLeaderEpochError(OncelogError):
    """The request's leader epoch is newer than the leader's."""

    code = ErrorCode.UNKNOWN_LEADER_EPOCH


class OffsetNotAvailableError(OncelogError):
    """The new leader does not know the latest offset yet."""

    code = ErrorCode.OFFSET_NOT_AVAILABLE
    advice = "retry"


class MemberIdRequiredError(OncelogError):
    """Join again with the member id of this reply."""

    code = ErrorCode.MEMBER_ID_REQUIRED


class PreferredLeaderNotAvailableError(OncelogError):
    """The preferred leader of a partition cannot lead it now."""

    code = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    advice = "wait until its broker is there and its replica in sync"


class GroupMaxSizeReachedError(OncelogError):
    """The group has its maximum number of members."""

    code = ErrorCode.GROUP_MAX_SIZE_REACHED
    advice = "use another group, or raise group_max_size"


class FencedMemberEpochError(OncelogError):
    """Another process has joined the group with this member id."""

    code = ErrorCode.FENCED_MEMBER_EPOCH
    advice = "close this one"


class InvalidRecordStateError(OncelogError):
    """The queue's record is not held by this worker: it was acknowledged, or its lock has ended."""

    code = ErrorCode.INVALID_RECORD_STATE
    advice = "drop the record's result: another worker has the record, or has done it"


class FencedInstanceIdError(OncelogError):
    """Another member uses this group instance id now."""

    code = ErrorCode.FENCED_INSTANCE_ID
    advice = "close this one"


class GroupSubscribedToTopicError(OncelogError):
    """The group is subscribed to the topic."""

    code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    advice = "unsubscribe from the topic first"


class InvalidRecordError(OncelogError):
    """The batch or one of its records breaks a rule of the format."""

    code = ErrorCode.INVALID_RECORD


class SerializationError(InvalidRecordError):
    """A serializer or deserializer of the application has failed; its error is the cause."""


class UnstableOffsetCommitError(OncelogError):
    """A transaction that commits offsets of this group is still open."""

    code = ErrorCode.UNSTABLE_OFFSET_COMMIT
    advice = "retry"


class ThrottlingQuotaExceededError(OncelogError):
    """A limit of the principal is reached."""

    code = ErrorCode.THROTTLING_QUOTA_EXCEEDED
    advice = "retry later; an operator can raise the limit"


class ProducerFencedError(OncelogError):
    """A newer producer with this transactional id has taken over."""

    code = ErrorCode.PRODUCER_FENCED
    advice = "close this one, or give it another transactional id"


class TransactionalIdNotFoundError(OncelogError):
    """No such transactional id."""

    code = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    advice = "`oncelog transactions list` shows those that exist"


class TransactionAbortableError(OncelogError):
    """The transaction cannot go on."""

    code = ErrorCode.TRANSACTION_ABORTABLE
    advice = "abort it, then begin again"


class AlreadyCommittedError(OncelogError):
    """The transaction with this commit token is committed."""

    code = ErrorCode.ALREADY_COMMITTED
    advice = "there is nothing to do"


class ReplicaOfflineError(OncelogError):
    """The replica has taken itself offline after a disk fault."""

    code = ErrorCode.REPLICA_OFFLINE
    advice = "see its reason"


class ClientClosedError(OncelogError):
    """The client is closed."""

    code = ErrorCode.CLIENT_CLOSED
    advice = "make a new one"


class TransactionTimedOutError(OncelogError):
    """The transaction was open for longer than its timeout."""

    code = ErrorCode.TRANSACTION_TIMED_OUT
    advice = "abort it, then begin again"


class AbortedByOperatorError(OncelogError):
    """An operator has aborted the transaction."""

    code = ErrorCode.ABORTED_BY_OPERATOR
    advice = "abort it here as well, then begin again"


class OutdatedVersionError(OncelogError):
    """A later version of the application's writes is committed."""

    code = ErrorCode.OUTDATED_VERSION
    advice = "continue with a higher version"


class InvalidRegularExpressionError(OncelogError):
    """A subscription's pattern is no regular expression."""

    code = ErrorCode.INVALID_REGULAR_EXPRESSION
    advice = "give a regular expression of Python's re"


class WakeupError(OncelogError):
    """Another thread has called ``wakeup``, which ends a poll; nothing was lost."""

    code = ErrorCode.WAKEUP
    advice = "poll again, or close the consumer"


class TransactionalIdInUseError(OncelogError):
    """Another producer with this transactional id lives, and was not to be put out."""

    code = ErrorCode.TRANSACTIONAL_ID_IN_USE
    advice = "call init_transactions() again later, or close the other producer"


class InvalidSettingError(InvalidConfigError, ValueError):
    """A setting is unknown or impossible: ``what`` names it and its value, ``advice`` what fits."""


class IllegalStateError(InvalidTxnStateError):
    """The call does not fit the client's state: ``advice`` says what to call instead."""

    advice = ""


class ConcurrentModificationError(IllegalStateError):
    """Two threads or tasks use one consumer at the same time.

    Kafka's is ``ConcurrentModificationException``.
    """

    advice = "give each a consumer of its own"


class ConnectionFailedError(NetworkError):
    """No cluster could be reached, started or shared."""

    advice = ""


class SpillFailedError(KafkaStorageError):
    """Records of open transactions cannot be written to the spill directory."""

    advice = "make room there, or choose another directory; the next poll tries again"


class CorruptDataError(CorruptMessageError):
    """Bytes on disk or from a peer break their format: the message names the place."""

    advice = ""


class CorruptRecordError(CorruptDataError):
    """Records in the log cannot be read; ``seek`` to ``next_offset`` passes over them.

    ``offset`` (inclusive) to ``next_offset`` (exclusive) are lost to readers of
    ``topic_partition``. Reading there again raises again; everything before was delivered.
    """

    advice = "seek to next_offset"

    def __init__(
        self,
        what: str = "",
        *,
        advice: str = "",
        topic_partition: TopicPartition | None = None,
        offset: int = NO_OFFSET,
        next_offset: int = NO_OFFSET,
    ) -> None:
        super().__init__(what, advice=advice)
        self.topic_partition = topic_partition
        self.offset = offset
        self.next_offset = next_offset

    @property
    def retriable(self) -> bool:
        """Never: damage in the log is permanent."""
        return False

    @property
    def fatal(self) -> bool:
        """Always: only a seek past the damage helps."""
        return True


EXCEPTIONS: dict[ErrorCode, type[OncelogError]] = {
    exception.code: exception for exception in OncelogError.__subclasses__()
}
"""The exception class of each code but ``NONE``."""


def exception_for(code: ErrorCode, what: str = "", *, advice: str = "") -> OncelogError:
    """The exception that ``code`` becomes for a user; ``NONE`` is not an error and is refused."""
    return EXCEPTIONS[code](what, advice=advice)
