"""The one table of error codes.

Between actors an error is a code; only ``api`` raises (see ``exceptions.py``). The numbers up to
9,999 are Kafka's; ours begin at 10,000. A *retriable* error is handled by making the same call
again, an *abortable* one by aborting the transaction, a *fatal* one only by the caller: with
another argument, or by closing.
"""

from __future__ import annotations

import enum


class ErrorClass(enum.Enum):
    """What a caller can do about an error."""

    NONE = "none"
    RETRIABLE = "retriable"
    ABORTABLE = "abortable"
    FATAL = "fatal"


class ErrorCode(enum.IntEnum):
    """Stable codes. Never renumber one; a retired code keeps its place."""

    error_class: ErrorClass

    def __new__(cls, value: int, error_class: ErrorClass) -> ErrorCode:
        """Make a member from its number on the wire and its error class."""
        member = int.__new__(cls, value)
        member._value_ = value
        member.error_class = error_class
        return member

    @property
    def retriable(self) -> bool:
        """Whether the same call may be made again."""
        return self.error_class is ErrorClass.RETRIABLE

    UNKNOWN_SERVER_ERROR = -1, ErrorClass.FATAL
    NONE = 0, ErrorClass.NONE
    OFFSET_OUT_OF_RANGE = 1, ErrorClass.FATAL
    CORRUPT_MESSAGE = 2, ErrorClass.RETRIABLE
    UNKNOWN_TOPIC_OR_PARTITION = 3, ErrorClass.RETRIABLE
    NOT_LEADER_OR_FOLLOWER = 6, ErrorClass.RETRIABLE
    REQUEST_TIMED_OUT = 7, ErrorClass.RETRIABLE
    BROKER_NOT_AVAILABLE = 8, ErrorClass.RETRIABLE
    MESSAGE_TOO_LARGE = 10, ErrorClass.ABORTABLE
    STALE_CONTROLLER_EPOCH = 11, ErrorClass.RETRIABLE
    OFFSET_METADATA_TOO_LARGE = 12, ErrorClass.FATAL
    NETWORK_EXCEPTION = 13, ErrorClass.RETRIABLE
    COORDINATOR_LOAD_IN_PROGRESS = 14, ErrorClass.RETRIABLE
    COORDINATOR_NOT_AVAILABLE = 15, ErrorClass.RETRIABLE
    NOT_COORDINATOR = 16, ErrorClass.RETRIABLE
    INVALID_TOPIC_EXCEPTION = 17, ErrorClass.FATAL
    RECORD_LIST_TOO_LARGE = 18, ErrorClass.ABORTABLE
    NOT_ENOUGH_REPLICAS = 19, ErrorClass.RETRIABLE
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20, ErrorClass.RETRIABLE
    INVALID_REQUIRED_ACKS = 21, ErrorClass.FATAL
    ILLEGAL_GENERATION = 22, ErrorClass.ABORTABLE
    INCONSISTENT_GROUP_PROTOCOL = 23, ErrorClass.FATAL
    INVALID_GROUP_ID = 24, ErrorClass.FATAL
    UNKNOWN_MEMBER_ID = 25, ErrorClass.ABORTABLE
    INVALID_SESSION_TIMEOUT = 26, ErrorClass.FATAL
    REBALANCE_IN_PROGRESS = 27, ErrorClass.RETRIABLE
    TOPIC_AUTHORIZATION_FAILED = 29, ErrorClass.FATAL
    GROUP_AUTHORIZATION_FAILED = 30, ErrorClass.FATAL
    CLUSTER_AUTHORIZATION_FAILED = 31, ErrorClass.FATAL
    INVALID_TIMESTAMP = 32, ErrorClass.ABORTABLE
    TOPIC_ALREADY_EXISTS = 36, ErrorClass.FATAL
    INVALID_PARTITIONS = 37, ErrorClass.FATAL
    INVALID_REPLICATION_FACTOR = 38, ErrorClass.FATAL
    INVALID_REPLICA_ASSIGNMENT = 39, ErrorClass.FATAL
    INVALID_CONFIG = 40, ErrorClass.FATAL
    NOT_CONTROLLER = 41, ErrorClass.RETRIABLE
    INVALID_REQUEST = 42, ErrorClass.FATAL
    POLICY_VIOLATION = 44, ErrorClass.FATAL
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45, ErrorClass.ABORTABLE
    DUPLICATE_SEQUENCE_NUMBER = 46, ErrorClass.NONE
    INVALID_PRODUCER_EPOCH = 47, ErrorClass.ABORTABLE
    INVALID_TXN_STATE = 48, ErrorClass.FATAL
    INVALID_PRODUCER_ID_MAPPING = 49, ErrorClass.ABORTABLE
    INVALID_TRANSACTION_TIMEOUT = 50, ErrorClass.FATAL
    CONCURRENT_TRANSACTIONS = 51, ErrorClass.RETRIABLE
    TRANSACTION_COORDINATOR_FENCED = 52, ErrorClass.FATAL
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53, ErrorClass.FATAL
    OPERATION_NOT_ATTEMPTED = 55, ErrorClass.ABORTABLE
    KAFKA_STORAGE_ERROR = 56, ErrorClass.RETRIABLE
    SASL_AUTHENTICATION_FAILED = 58, ErrorClass.FATAL
    UNKNOWN_PRODUCER_ID = 59, ErrorClass.ABORTABLE
    REASSIGNMENT_IN_PROGRESS = 60, ErrorClass.RETRIABLE
    NON_EMPTY_GROUP = 68, ErrorClass.FATAL
    GROUP_ID_NOT_FOUND = 69, ErrorClass.FATAL
    FENCED_LEADER_EPOCH = 74, ErrorClass.RETRIABLE
    UNKNOWN_LEADER_EPOCH = 75, ErrorClass.RETRIABLE
    STALE_BROKER_EPOCH = 77, ErrorClass.RETRIABLE
    OFFSET_NOT_AVAILABLE = 78, ErrorClass.RETRIABLE
    MEMBER_ID_REQUIRED = 79, ErrorClass.RETRIABLE
    PREFERRED_LEADER_NOT_AVAILABLE = 80, ErrorClass.RETRIABLE
    GROUP_MAX_SIZE_REACHED = 81, ErrorClass.FATAL
    FENCED_INSTANCE_ID = 82, ErrorClass.FATAL
    GROUP_SUBSCRIBED_TO_TOPIC = 86, ErrorClass.FATAL
    INVALID_RECORD = 87, ErrorClass.ABORTABLE
    UNSTABLE_OFFSET_COMMIT = 88, ErrorClass.RETRIABLE
    THROTTLING_QUOTA_EXCEEDED = 89, ErrorClass.RETRIABLE
    PRODUCER_FENCED = 90, ErrorClass.FATAL
    INVALID_UPDATE_VERSION = 95, ErrorClass.RETRIABLE
    UNKNOWN_TOPIC_ID = 100, ErrorClass.RETRIABLE
    DUPLICATE_BROKER_REGISTRATION = 101, ErrorClass.FATAL
    TRANSACTIONAL_ID_NOT_FOUND = 105, ErrorClass.FATAL
    INELIGIBLE_REPLICA = 107, ErrorClass.RETRIABLE
    FENCED_MEMBER_EPOCH = 110, ErrorClass.ABORTABLE
    TRANSACTION_ABORTABLE = 120, ErrorClass.ABORTABLE
    INVALID_RECORD_STATE = 121, ErrorClass.ABORTABLE
    INVALID_REGULAR_EXPRESSION = 128, ErrorClass.FATAL
    ALREADY_COMMITTED = 10_001, ErrorClass.NONE
    REPLICA_OFFLINE = 10_002, ErrorClass.FATAL
    CLIENT_CLOSED = 10_003, ErrorClass.FATAL
    TRANSACTION_TIMED_OUT = 10_004, ErrorClass.ABORTABLE
    ABORTED_BY_OPERATOR = 10_005, ErrorClass.ABORTABLE
    OUTDATED_VERSION = 10_006, ErrorClass.FATAL
    WAKEUP = 10_007, ErrorClass.RETRIABLE
    TRANSACTIONAL_ID_IN_USE = 10_008, ErrorClass.RETRIABLE


class InvariantViolation(AssertionError):
    """A rule of the protocol was about to be broken: a bug of ours, never caught.

    The actor that meets it dies and recovers from its log.
    """
