"""What a topic's settings ask of a client's batch."""

from __future__ import annotations

import pytest

from oncelog.actors.config import TopicConfig
from oncelog.actors.replica.topic_rules import REFUSED_RECORDS_MAX, check_topic_rules
from oncelog.storage.errors import ErrorCode
from oncelog.storage.records.batch import parse_header, seal
from oncelog.storage.records.codec import encode_records
from oncelog.storage.records.compression import Codec

NOW_MS = 1_700_000_000_000


def check(
    *records: tuple[bytes | None, int], codec: Codec = Codec.NONE, **settings: object
) -> tuple[ErrorCode, str]:
    """Check a batch of (key, age in ms) records."""
    return checked(*records, codec=codec, **settings)[:2]


def checked(
    *records: tuple[bytes | None, int], codec: Codec = Codec.NONE, **settings: object
) -> tuple[ErrorCode, str, tuple[int, ...]]:
    """``check``, with the numbers of the records that are refused."""
    batch = encode_records(
        [(key, b"v", NOW_MS - age_ms, ()) for key, age_ms in records], codec=codec
    )
    return check_topic_rules(batch, parse_header(batch), TopicConfig(**settings), NOW_MS)


def test_a_default_topic_takes_old_records_and_records_without_keys() -> None:
    assert check((None, 10**12), (b"k", 0)) == (ErrorCode.NONE, "")


@pytest.mark.parametrize(("age_ms", "error"), [(-100, 0), (-101, ErrorCode.INVALID_TIMESTAMP)])
def test_a_timestamp_too_far_in_the_future_is_refused(age_ms: int, error: int) -> None:
    found, detail = check((b"k", 0), (b"k", age_ms), message_timestamp_after_max_ms=100)
    assert found == error
    assert ("message_timestamp_after_max_ms=100" in detail) == bool(error)


@pytest.mark.parametrize(("age_ms", "error"), [(100, 0), (101, ErrorCode.INVALID_TIMESTAMP)])
def test_a_timestamp_too_far_in_the_past_is_refused_wherever_it_stands(
    age_ms: int, error: int
) -> None:
    found, detail = check((b"k", 0), (b"k", age_ms), message_timestamp_before_max_ms=100)
    assert found == error
    assert ("message_timestamp_before_max_ms=100" in detail) == bool(error)


def test_a_record_without_a_timestamp_is_as_old_as_may_be() -> None:
    found, _ = check((b"k", NOW_MS + 1), message_timestamp_before_max_ms=100)
    assert found is ErrorCode.NONE


def test_with_log_append_time_the_timestamps_of_clients_do_not_matter() -> None:
    settings = {
        "message_timestamp_type": "LogAppendTime",
        "message_timestamp_before_max_ms": 100,
        "message_timestamp_after_max_ms": 100,
    }
    assert check((b"k", 10**9), (b"k", -(10**9)), **settings)[0] is ErrorCode.NONE


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_a_compacted_topic_refuses_records_without_keys_by_number(
    policy: str, codec: Codec
) -> None:
    records = [(b"k", 0), (None, 0), (b"", 0), (None, 0)]
    found, detail = check(*records, codec=codec, cleanup_policy=policy)
    assert found is ErrorCode.INVALID_RECORD
    assert detail.endswith("these have none: 1, 3")


def test_of_many_records_without_keys_ten_are_named() -> None:
    _, detail = check(*[(None, 0)] * 12, cleanup_policy="compact")
    assert detail.endswith("0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 12 in all")


def test_a_bad_timestamp_is_told_before_a_missing_key() -> None:
    found, _ = check((None, 101), cleanup_policy="compact", message_timestamp_before_max_ms=100)
    assert found is ErrorCode.INVALID_TIMESTAMP


def test_records_that_cannot_be_read_are_refused_by_a_compacted_topic() -> None:
    batch = seal(
        b"\xff" * 30,
        codec=Codec.NONE,
        record_count=1,
        base_timestamp_ms=NOW_MS,
        max_timestamp_ms=NOW_MS,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        is_transactional=False,
    )
    topic = TopicConfig(cleanup_policy="compact")
    refusal = check_topic_rules(batch, parse_header(batch), topic, NOW_MS)
    assert (refusal.error, refusal.records) == (ErrorCode.INVALID_RECORD, ())


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
@pytest.mark.parametrize(
    ("records", "settings", "refused"),
    [
        ((0, -101, 0, -200), {"message_timestamp_after_max_ms": 100}, (1, 3)),
        ((0, 101, 50, 200), {"message_timestamp_before_max_ms": 100}, (1, 3)),
    ],
)
def test_whose_timestamps_were_refused_is_told(
    codec: Codec, records: tuple[int, ...], settings: dict[str, object], refused: tuple[int, ...]
) -> None:
    batch = [(b"k", age_ms) for age_ms in records]
    _, detail, found = checked(*batch, codec=codec, **settings)
    assert found == refused
    assert detail.startswith(f"record 1 of 4: timestamp {NOW_MS - records[1]} is 101 ms in the ")
    assert detail.endswith("rejected records: 1, 3")


def test_whose_key_is_missing_is_told() -> None:
    records = checked((b"k", 0), (None, 0), (b"", 0), (None, 0), cleanup_policy="compact")[2]
    assert records == (1, 3)


def test_of_too_many_none_is_told() -> None:
    many = [(b"k", -101)] * (REFUSED_RECORDS_MAX + 1)
    error, _, records = checked(*many, message_timestamp_after_max_ms=100)
    assert (error, records) == (ErrorCode.INVALID_TIMESTAMP, ())


def test_whose_future_timestamp_it_is_need_not_be_readable_to_be_refused() -> None:
    batch = seal(
        b"\xff" * 30,
        codec=Codec.NONE,
        record_count=1,
        base_timestamp_ms=NOW_MS + 101,
        max_timestamp_ms=NOW_MS + 101,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        is_transactional=False,
    )
    topic = TopicConfig(message_timestamp_after_max_ms=100)
    refusal = check_topic_rules(batch, parse_header(batch), topic, NOW_MS)
    assert (refusal.error, refusal.records) == (ErrorCode.INVALID_TIMESTAMP, ())
