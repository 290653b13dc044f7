"""What the settings of a topic ask of a client's batch beyond its header's shape.

The one place where a leader looks at records, and only if it must: for the keys of a compacted
topic, and for the timestamps of one that refuses old ones.
"""

from __future__ import annotations

from typing import Final

from oncelog.actors.config import TopicConfig
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.model import NO_TIMESTAMP
from oncelog.storage.records.batch import BatchHeader, Buffer

_NAMED_RECORDS_MAX: Final = 10
_ANY_AGE_MS: Final = 2**63 - 1


def check_topic_rules(
    batch: Buffer, header: BatchHeader, topic: TopicConfig, now_ms: int
) -> tuple[ErrorCode, str]:
    """``NONE``, or why to refuse the whole batch, with a text that names what is wrong.

    ``INVALID_TIMESTAMP`` comes before ``INVALID_RECORD``. Records without a timestamp are as old
    as may be. With LogAppendTime the client's timestamps do not matter.
    """
    keeps_client_time = topic.message_timestamp_type == "CreateTime"
    if (
        keeps_client_time
        and header.max_timestamp_ms - now_ms > topic.message_timestamp_after_max_ms
    ):
        return ErrorCode.INVALID_TIMESTAMP, (
            f"timestamp {header.max_timestamp_ms} is {header.max_timestamp_ms - now_ms} ms in the "
            f"future; message_timestamp_after_max_ms={topic.message_timestamp_after_max_ms}"
        )
    checks_age = keeps_client_time and topic.message_timestamp_before_max_ms < _ANY_AGE_MS
    if checks_age or topic.is_compacted:
        return _check_records(batch, topic, now_ms, checks_age=checks_age)
    return ErrorCode.NONE, ""


def _check_records(
    batch: Buffer, topic: TopicConfig, now_ms: int, *, checks_age: bool
) -> tuple[ErrorCode, str]:
    # Imported here because it loads numpy and pyarrow, which most leaders never need.
    from oncelog.storage.records.codec import decode_records

    try:
        records = decode_records(batch)
    except CorruptDataError as error:
        return ErrorCode.INVALID_RECORD, str(error)
    if checks_age:
        oldest_ms = now_ms - topic.message_timestamp_before_max_ms
        for record in records:
            if NO_TIMESTAMP != record.timestamp_ms < oldest_ms:
                return ErrorCode.INVALID_TIMESTAMP, (
                    f"timestamp {record.timestamp_ms} is {now_ms - record.timestamp_ms} ms in the "
                    f"past; message_timestamp_before_max_ms={topic.message_timestamp_before_max_ms}"
                )
    if topic.is_compacted:
        keyless = [number for number, record in enumerate(records) if record.key is None]
        if keyless:
            named = ", ".join(map(str, keyless[:_NAMED_RECORDS_MAX]))
            more = "" if len(keyless) <= _NAMED_RECORDS_MAX else f" and {len(keyless)} in all"
            return ErrorCode.INVALID_RECORD, (
                f"records of a compacted topic need keys; without one are {named}{more}"
            )
    return ErrorCode.NONE, ""
