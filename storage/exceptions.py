"""The exception that each error code becomes for a user: one class per code.

Only ``api`` and the bridges above it raise these. Every class pickles; the docstring of each is the
advice that its message falls back to.

One file: a class for each code of the one table, and nothing else.
"""

from __future__ import annotations

from typing import ClassVar

from oncelog.storage.errors import ErrorClass, ErrorCode
from oncelog.storage.model import NO_OFFSET, TopicPartition


class OncelogError(Exception):
    """Base of every error that oncelog raises to a user.

    ``code`` is the ``ErrorCode``; ``retriable``, ``abortable`` and ``fatal`` say what to do.
    """

    code: ClassVar[ErrorCode] = ErrorCode.UNKNOWN_SERVER_ERROR

    def __init__(self, message: str = "") -> None:
        super().__init__(message or (type(self).__doc__ or ""))

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
        """Whether only another argument, or closing the client, helps."""
        return self.code.error_class is ErrorClass.FATAL


class UnknownServerError(OncelogError):
    """The server met a condition it has no code for; see its log."""

    code = ErrorCode.UNKNOWN_SERVER_ERROR


class OffsetOutOfRangeError(OncelogError):
    """The offset is below the log start or beyond the log end; seek or reset the position."""

    code = ErrorCode.OFFSET_OUT_OF_RANGE


class CorruptMessageError(OncelogError):
    """The batch failed its CRC, is truncated or has an impossible size; send it again."""

    code = ErrorCode.CORRUPT_MESSAGE


class UnknownTopicOrPartitionError(OncelogError):
    """No such topic or partition; create it, or wait for the metadata to spread."""

    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class UnknownTopicIdError(OncelogError):
    """The topic was deleted and created again; an offset of the old one means nothing in it."""

    code = ErrorCode.UNKNOWN_TOPIC_ID


class NotLeaderOrFollowerError(OncelogError):
    """This replica does not lead the partition now; refresh the metadata and retry."""

    code = ErrorCode.NOT_LEADER_OR_FOLLOWER


class RequestTimedOutError(OncelogError):
    """No answer in time; the request may have taken effect, so retry with the same sequence."""

    code = ErrorCode.REQUEST_TIMED_OUT


class BrokerNotAvailableError(OncelogError):
    """No live broker holds the partition; retry."""

    code = ErrorCode.BROKER_NOT_AVAILABLE


class MessageTooLargeError(OncelogError):
    """The batch is larger than the topic's max_message_bytes; send smaller records."""

    code = ErrorCode.MESSAGE_TOO_LARGE


class StaleControllerEpochError(OncelogError):
    """A newer controller has written here."""

    code = ErrorCode.STALE_CONTROLLER_EPOCH


class OffsetMetadataTooLargeError(OncelogError):
    """The metadata of a committed offset is longer than 4,096 bytes."""

    code = ErrorCode.OFFSET_METADATA_TOO_LARGE


class NetworkError(OncelogError):
    """The call was lost on the way; it may have taken effect, so retry with the same sequence."""

    code = ErrorCode.NETWORK_EXCEPTION


class CoordinatorLoadInProgressError(OncelogError):
    """The coordinator is reading its log; retry shortly."""

    code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


class CoordinatorNotAvailableError(OncelogError):
    """The coordinator cannot be reached or cannot write its log; retry."""

    code = ErrorCode.COORDINATOR_NOT_AVAILABLE


class NotCoordinatorError(OncelogError):
    """This actor does not coordinate the id now; look the coordinator up again and retry."""

    code = ErrorCode.NOT_COORDINATOR


class InvalidTopicError(OncelogError):
    """The topic name is not allowed, or the topic is internal."""

    code = ErrorCode.INVALID_TOPIC_EXCEPTION


class RecordListTooLargeError(OncelogError):
    """The batch is larger than a segment."""

    code = ErrorCode.RECORD_LIST_TOO_LARGE


class NotEnoughReplicasError(OncelogError):
    """Fewer replicas are in sync than min_insync_replicas; nothing was appended."""

    code = ErrorCode.NOT_ENOUGH_REPLICAS


class NotEnoughReplicasAfterAppendError(OncelogError):
    """Appended, but fewer replicas are in sync than demanded; retry, it is deduplicated."""

    code = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND


class InvalidRequiredAcksError(OncelogError):
    """acks must be -1 (all), 1 or 0."""

    code = ErrorCode.INVALID_REQUIRED_ACKS


class IllegalGenerationError(OncelogError):
    """The group has moved to another generation; rejoin it."""

    code = ErrorCode.ILLEGAL_GENERATION


class InconsistentGroupProtocolError(OncelogError):
    """The member's protocols do not fit those of the group."""

    code = ErrorCode.INCONSISTENT_GROUP_PROTOCOL


class InvalidGroupIdError(OncelogError):
    """The group id is empty or longer than 1,024 bytes."""

    code = ErrorCode.INVALID_GROUP_ID


class UnknownMemberIdError(OncelogError):
    """The group does not know this member; join again."""

    code = ErrorCode.UNKNOWN_MEMBER_ID


class InvalidSessionTimeoutError(OncelogError):
    """The session timeout is outside what the group coordinator allows."""

    code = ErrorCode.INVALID_SESSION_TIMEOUT


class RebalanceInProgressError(OncelogError):
    """The group is rebalancing; rejoin it."""

    code = ErrorCode.REBALANCE_IN_PROGRESS


class InvalidTimestampError(OncelogError):
    """The record's timestamp is outside what the topic allows."""

    code = ErrorCode.INVALID_TIMESTAMP


class TopicAlreadyExistsError(OncelogError):
    """A topic of this name exists."""

    code = ErrorCode.TOPIC_ALREADY_EXISTS


class InvalidPartitionsError(OncelogError):
    """The number of partitions is not allowed."""

    code = ErrorCode.INVALID_PARTITIONS


class InvalidReplicationFactorError(OncelogError):
    """The replication factor is below 1 or above the number of brokers."""

    code = ErrorCode.INVALID_REPLICATION_FACTOR


class InvalidReplicaAssignmentError(OncelogError):
    """The brokers named for a partition's replicas cannot be those."""

    code = ErrorCode.INVALID_REPLICA_ASSIGNMENT


class ReassignmentInProgressError(OncelogError):
    """The partition is being moved to other brokers; wait for that, or cancel it."""

    code = ErrorCode.REASSIGNMENT_IN_PROGRESS


class StaleBrokerEpochError(OncelogError):
    """The broker has registered again since; it asks for its new epoch."""

    code = ErrorCode.STALE_BROKER_EPOCH


class DuplicateBrokerRegistrationError(OncelogError):
    """Another data directory has this broker's number; one of them must have another."""

    code = ErrorCode.DUPLICATE_BROKER_REGISTRATION


class InvalidUpdateVersionError(OncelogError):
    """The partition has been changed since; look at what it is now and try again."""

    code = ErrorCode.INVALID_UPDATE_VERSION


class IneligibleReplicaError(OncelogError):
    """The replica cannot be in sync now: its broker is fenced, or it is no replica."""

    code = ErrorCode.INELIGIBLE_REPLICA


class InvalidConfigError(OncelogError):
    """A setting is unknown or its value impossible."""

    code = ErrorCode.INVALID_CONFIG


class NotControllerError(OncelogError):
    """This actor is not the controller now; look it up again and retry."""

    code = ErrorCode.NOT_CONTROLLER


class InvalidRequestError(OncelogError):
    """The request is malformed."""

    code = ErrorCode.INVALID_REQUEST


class PolicyViolationError(OncelogError):
    """The topic's cleanup policy does not allow this."""

    code = ErrorCode.POLICY_VIOLATION


class OutOfOrderSequenceNumberError(OncelogError):
    """The sequence number does not follow the last one of this producer."""

    code = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


class DuplicateSequenceNumberError(OncelogError):
    """The batch is already in the log."""

    code = ErrorCode.DUPLICATE_SEQUENCE_NUMBER


class InvalidProducerEpochError(OncelogError):
    """A newer epoch of this producer is known; abort, then begin again."""

    code = ErrorCode.INVALID_PRODUCER_EPOCH


class InvalidTxnStateError(OncelogError):
    """The transaction is not in a state that allows this."""

    code = ErrorCode.INVALID_TXN_STATE


class InvalidProducerIdMappingError(OncelogError):
    """The producer id does not belong to the transactional id."""

    code = ErrorCode.INVALID_PRODUCER_ID_MAPPING


class InvalidTransactionTimeoutError(OncelogError):
    """The transaction timeout is not above 0 or above transaction_max_timeout_ms."""

    code = ErrorCode.INVALID_TRANSACTION_TIMEOUT


class ConcurrentTransactionsError(OncelogError):
    """Another step of this transactional id is still under way; retry shortly."""

    code = ErrorCode.CONCURRENT_TRANSACTIONS


class TransactionCoordinatorFencedError(OncelogError):
    """A newer coordinator epoch has written here."""

    code = ErrorCode.TRANSACTION_COORDINATOR_FENCED


class TransactionalIdAuthorizationFailedError(OncelogError):
    """The transactional id is missing or not allowed."""

    code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


class OperationNotAttemptedError(OncelogError):
    """Not tried, because another partition of the same request failed."""

    code = ErrorCode.OPERATION_NOT_ATTEMPTED


class KafkaStorageError(OncelogError):
    """The disk refused; the replica is offline or out of space."""

    code = ErrorCode.KAFKA_STORAGE_ERROR


class UnknownProducerIdError(OncelogError):
    """The producer id is not known."""

    code = ErrorCode.UNKNOWN_PRODUCER_ID


class NonEmptyGroupError(OncelogError):
    """The group still has members."""

    code = ErrorCode.NON_EMPTY_GROUP


class GroupIdNotFoundError(OncelogError):
    """No such group."""

    code = ErrorCode.GROUP_ID_NOT_FOUND


class FencedLeaderEpochError(OncelogError):
    """The request's leader epoch is older than the leader's."""

    code = ErrorCode.FENCED_LEADER_EPOCH


class UnknownLeaderEpochError(OncelogError):
    """The request's leader epoch is newer than the leader's."""

    code = ErrorCode.UNKNOWN_LEADER_EPOCH


class OffsetNotAvailableError(OncelogError):
    """The new leader does not know the latest offset yet; retry."""

    code = ErrorCode.OFFSET_NOT_AVAILABLE


class MemberIdRequiredError(OncelogError):
    """Join again with the member id of this reply."""

    code = ErrorCode.MEMBER_ID_REQUIRED


class GroupMaxSizeReachedError(OncelogError):
    """The group has as many members as it may."""

    code = ErrorCode.GROUP_MAX_SIZE_REACHED


class FencedInstanceIdError(OncelogError):
    """Another member uses this group instance id now."""

    code = ErrorCode.FENCED_INSTANCE_ID


class GroupSubscribedToTopicError(OncelogError):
    """The group is subscribed to the topic."""

    code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC


class InvalidRecordError(OncelogError):
    """The batch or one of its records breaks a rule of the format."""

    code = ErrorCode.INVALID_RECORD


class UnstableOffsetCommitError(OncelogError):
    """A transaction that commits offsets of this group is still open; retry."""

    code = ErrorCode.UNSTABLE_OFFSET_COMMIT


class ProducerFencedError(OncelogError):
    """A newer producer with this transactional id has taken over; close this one."""

    code = ErrorCode.PRODUCER_FENCED


class TransactionalIdNotFoundError(OncelogError):
    """No such transactional id."""

    code = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


class TransactionAbortableError(OncelogError):
    """The transaction cannot go on; abort it, then begin again."""

    code = ErrorCode.TRANSACTION_ABORTABLE


class AlreadyCommittedError(OncelogError):
    """The transaction with this commit token is committed; there is nothing to do."""

    code = ErrorCode.ALREADY_COMMITTED


class ReplicaOfflineError(OncelogError):
    """The replica has taken itself offline after a disk fault; see its reason."""

    code = ErrorCode.REPLICA_OFFLINE


class ClientClosedError(OncelogError):
    """The client is closed; make a new one."""

    code = ErrorCode.CLIENT_CLOSED


class TransactionTimedOutError(OncelogError):
    """The transaction was open for longer than its timeout; abort it, then begin again."""

    code = ErrorCode.TRANSACTION_TIMED_OUT


class AbortedByOperatorError(OncelogError):
    """An operator has aborted the transaction; abort it here as well, then begin again."""

    code = ErrorCode.ABORTED_BY_OPERATOR


class OutdatedVersionError(OncelogError):
    """A later version of the application's writes is committed; go on above it."""

    code = ErrorCode.OUTDATED_VERSION


class InvalidSettingError(InvalidConfigError, ValueError):
    """A setting is unknown or impossible; the message names it, its value and what is allowed."""


class IllegalStateError(InvalidTxnStateError):
    """The call does not fit the client's state; the message says what to call instead."""


class ConnectionFailedError(NetworkError):
    """No cluster could be reached, started or shared; the message says what to do."""


class CorruptDataError(CorruptMessageError):
    """Bytes on disk or from a peer break their format; the message names the place."""


class CorruptRecordError(CorruptDataError):
    """Records in the log cannot be read; ``seek`` to ``next_offset`` passes over them.

    ``offset`` (inclusive) to ``next_offset`` (exclusive) are lost to readers of
    ``topic_partition``. Reading there again raises again; everything before was delivered.
    """

    def __init__(
        self,
        message: str = "",
        *,
        topic_partition: TopicPartition | None = None,
        offset: int = NO_OFFSET,
        next_offset: int = NO_OFFSET,
    ) -> None:
        super().__init__(message)
        self.topic_partition = topic_partition
        self.offset = offset
        self.next_offset = next_offset

    @property
    def retriable(self) -> bool:
        """Never: what is damaged in the log stays so."""
        return False

    @property
    def fatal(self) -> bool:
        """Always: only a seek, another position, helps."""
        return True


EXCEPTIONS: dict[ErrorCode, type[OncelogError]] = {
    exception.code: exception for exception in OncelogError.__subclasses__()
}
"""The exception of each code, ``NONE`` excepted."""


def exception_for(code: ErrorCode, message: str = "") -> OncelogError:
    """The exception that ``code`` becomes for a user; ``NONE`` is not an error and is refused."""
    return EXCEPTIONS[code](message)
