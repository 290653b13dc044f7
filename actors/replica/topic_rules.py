"""Checks a client's batch against the settings of the topic.

Only here does a leader decode records, and only if it must: for the keys of a compacted topic, for
the timestamps of one that rejects old ones, and to name records with a rejected timestamp.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final, NamedTuple

from oncelog.actors.config import TopicConfig
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.model import INT64_MAX, NO_TIMESTAMP
from oncelog.storage.records.batch import BatchHeader, Buffer
from oncelog.storage.records.codec import Record, decode_records

REFUSED_RECORDS_MAX: Final = 1_000
"""A reply lists up to this many invalid records; if there are more, it lists none."""

_NAMED_RECORDS_MAX: Final = 10


class RuleCheck(NamedTuple):
    """``NONE``, or the error for the whole batch, a text, and the invalid records."""

    error: ErrorCode = ErrorCode.NONE
    detail: str = ""
    records: tuple[int, ...] = ()


def check_topic_rules(
    batch: Buffer, header: BatchHeader, topic: TopicConfig, now_ms: int
) -> RuleCheck:
    """Check the batch against the settings of ``topic``; the text names the error and the records.

    ``INVALID_TIMESTAMP`` comes before ``INVALID_RECORD``. Records without a timestamp count as
    infinitely old. With LogAppendTime the client's timestamps are ignored.
    """
    keeps_client_time = topic.message_timestamp_type == "CreateTime"
    if (
        keeps_client_time
        and header.max_timestamp_ms - now_ms > topic.message_timestamp_after_max_ms
    ):
        return _whose_future(batch, header, topic, now_ms)
    checks_age = keeps_client_time and topic.message_timestamp_before_max_ms < INT64_MAX
    if not checks_age and not topic.is_compacted:
        return RuleCheck()
    try:
        records = decode_records(batch)
    except CorruptDataError as error:
        return RuleCheck(ErrorCode.INVALID_RECORD, str(error))
    if checks_age:
        oldest_ms = now_ms - topic.message_timestamp_before_max_ms
        found = _check_times(records, topic, now_ms, lambda time: NO_TIMESTAMP != time < oldest_ms)
        if found.error is not ErrorCode.NONE:
            return found
    return _check_keys(records) if topic.is_compacted else RuleCheck()


def _whose_future(batch: Buffer, header: BatchHeader, topic: TopicConfig, now_ms: int) -> RuleCheck:
    """Reject a header with a future timestamp, even if no record has it."""
    newest_ms = now_ms + topic.message_timestamp_after_max_ms
    with contextlib.suppress(CorruptDataError):
        found = _check_times(decode_records(batch), topic, now_ms, lambda time: time > newest_ms)
        if found.error is not ErrorCode.NONE:
            return found
    detail = _wrong_time(header.max_timestamp_ms, topic, now_ms)
    return RuleCheck(ErrorCode.INVALID_TIMESTAMP, detail)


def _check_times(
    records: list[Record], topic: TopicConfig, now_ms: int, is_wrong: Callable[[int], bool]
) -> RuleCheck:
    wrong = [number for number, record in enumerate(records) if is_wrong(record.timestamp_ms)]
    if not wrong:
        return RuleCheck()
    first = f"record {wrong[0]} of {len(records)}: "
    first += _wrong_time(records[wrong[0]].timestamp_ms, topic, now_ms)
    others = "" if len(wrong) == 1 else f"; rejected records: {_named(wrong)}"
    return RuleCheck(ErrorCode.INVALID_TIMESTAMP, first + others, _refused_records(wrong))


def _wrong_time(timestamp_ms: int, topic: TopicConfig, now_ms: int) -> str:
    if timestamp_ms > now_ms:
        limit = f"message_timestamp_after_max_ms={topic.message_timestamp_after_max_ms}"
        return f"timestamp {timestamp_ms} is {timestamp_ms - now_ms} ms in the future; {limit}"
    limit = f"message_timestamp_before_max_ms={topic.message_timestamp_before_max_ms}"
    return f"timestamp {timestamp_ms} is {now_ms - timestamp_ms} ms in the past; {limit}"


def _check_keys(records: list[Record]) -> RuleCheck:
    keyless = [number for number, record in enumerate(records) if record.key is None]
    if not keyless:
        return RuleCheck()
    detail = f"records of a compacted topic need keys; these have none: {_named(keyless)}"
    return RuleCheck(ErrorCode.INVALID_RECORD, detail, _refused_records(keyless))


def _named(numbers: list[int]) -> str:
    """The first few of ``numbers``, for an error text."""
    named = ", ".join(map(str, numbers[:_NAMED_RECORDS_MAX]))
    return named if len(numbers) <= _NAMED_RECORDS_MAX else f"{named} and {len(numbers)} in all"


def _refused_records(numbers: list[int]) -> tuple[int, ...]:
    return tuple(numbers) if len(numbers) <= REFUSED_RECORDS_MAX else ()
