"""The table of error codes."""

from __future__ import annotations

import pickle

import kafka.errors
import pytest

from oncelog.storage.errors import ErrorClass, ErrorCode

KAFKA_CODES = [code for code in ErrorCode if 0 < code < 10_000]
KAFKA_NAMES = {
    error.errno: error.message
    for error in vars(kafka.errors).values()
    if isinstance(error, type)
    and issubclass(error, kafka.errors.BrokerResponseError)
    and error.errno is not None
}

OLDER_NAMES = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER: "NOT_LEADER_FOR_PARTITION",
    ErrorCode.MESSAGE_TOO_LARGE: "MESSAGE_SIZE_TOO_LARGE",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "INVALID_TOPIC",
    ErrorCode.INVALID_REPLICA_ASSIGNMENT: "INVALID_REPLICATION_ASSIGNMENT",
}
"""What kafka-python still calls a code that Kafka has renamed."""

NEWER_NAMES = {128: "INVALID_REGULAR_EXPRESSION"}
"""Codes of Kafka 4 that kafka-python does not know yet."""


@pytest.mark.parametrize("code", KAFKA_CODES)
def test_code_below_10000_is_kafkas(code: ErrorCode) -> None:
    assert (KAFKA_NAMES | NEWER_NAMES)[int(code)] == OLDER_NAMES.get(code, code.name)


def test_no_two_codes_share_a_number() -> None:
    assert len(ErrorCode) == len(ErrorCode.__members__)


@pytest.mark.parametrize("code", ErrorCode)
def test_code_pickles_to_itself(code: ErrorCode) -> None:
    assert pickle.loads(pickle.dumps(code)) is code


@pytest.mark.parametrize("code", ErrorCode)
def test_only_retriable_class_is_retriable(code: ErrorCode) -> None:
    assert code.retriable == (code.error_class is ErrorClass.RETRIABLE)


def test_codes_that_report_no_failure_have_no_class() -> None:
    harmless = {code for code in ErrorCode if code.error_class is ErrorClass.NONE}
    assert harmless == {
        ErrorCode.NONE,
        ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
        ErrorCode.ALREADY_COMMITTED,
    }


def test_code_is_found_by_its_number() -> None:
    # The constructor of an enum member with data also looks members up, which mypy does not see.
    assert ErrorCode(87) is ErrorCode.INVALID_RECORD  # type: ignore[call-arg]
