"""Checks of what a program gives to a producer: records, offsets, a consumer's group.

A wrong argument is named, with its value and what is allowed, before anything is sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

from msgspec import structs

from oncelog.actors.protocol.group.group_offsets import (
    Refusal,
    refusal_of_count,
    refusal_of_position,
)
from oncelog.actors.protocol.messages.group import OffsetAndMetadata
from oncelog.api.batching.accumulator import Headers
from oncelog.api.records import as_committed, check_order
from oncelog.api.transacting.requests import GroupMetadata
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import InvalidGroupIdError, InvalidRequestError, exception_for
from oncelog.storage.model import (
    GROUP_ID_MAX_BYTES,
    INT32_MAX,
    TopicPartition,
    is_valid_group_id,
    utf8_bytes,
)

Bytes: TypeAlias = "bytes | bytearray | memoryview"
Offsets = Mapping[TopicPartition, "int | OffsetAndMetadata"]

# --- checks of what is sent -----------------------------------------------------------------------


def checked_record(
    topic: str,
    value: Bytes | None,
    key: Bytes | None,
    headers: Headers,
    timestamp_ms: int | None,
    partition: int | None,
) -> tuple[bytes | None, bytes | None, Headers]:
    """The arguments of ``send`` with plain bytes; ``TypeError`` names a wrong one."""
    if type(topic) is not str:
        checked_topic(topic)
    if value is not None and type(value) is not bytes:
        value = _as_bytes("value", value)
    if key is not None and type(key) is not bytes:
        key = _as_bytes("key", key)
    if headers:
        headers = _checked_headers(headers)
    if timestamp_ms is not None:
        _check_integer("timestamp_ms", timestamp_ms, "milliseconds since 1970")
        if not -(2**63) <= timestamp_ms < 2**63:
            raise ValueError(f"timestamp_ms={timestamp_ms} does not fit into 64 bits")
    if partition is not None:
        _check_integer("partition", partition, "a partition number")
    return value, key, headers if headers else ()


def check_callback(on_delivery: object) -> None:
    """``TypeError`` for what cannot be called."""
    if on_delivery is not None and not callable(on_delivery):
        raise TypeError(f"on_delivery must be a callable or None, not {type(on_delivery).__name__}")


def checked_topic(topic: object) -> str:
    """The topic; ``TypeError`` for what is no text."""
    if not isinstance(topic, str):
        raise TypeError(f"topic must be str, not {type(topic).__name__}")
    return topic


def _as_bytes(name: str, value: object) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    hint = "; encode it, for example with .encode()" if isinstance(value, str) else ""
    raise TypeError(f"{name} must be bytes or None, not {type(value).__name__}{hint}")


def _check_integer(name: str, value: object, meaning: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} must be an int ({meaning}) or None, not {type(value).__name__}")


_HEADERS_ARE: Final = "headers must be pairs (str, bytes or None), as in [('h', b'1')]"


def _checked_headers(headers: Headers) -> Headers:
    checked: list[tuple[str, bytes | None]] = []
    if not isinstance(headers, Iterable):
        raise TypeError(f"{_HEADERS_ARE}; got {headers!r}")
    for header in headers:
        if not isinstance(header, tuple) or len(header) != 2 or not isinstance(header[0], str):
            raise TypeError(f"{_HEADERS_ARE}; got {header!r}")
        name, value = header
        if utf8_bytes(name) is None:
            raise ValueError(f"header name {name!r} must be text that UTF-8 can encode")
        checked.append((name, None if value is None else _as_bytes(f"header {name!r}", value)))
    return tuple(checked)


# --- checks of offsets ----------------------------------------------------------------------------


_TEXT: Final = "a str"

_POSITION_TYPES: Final = {
    "offset": (int, "an int"),
    "leader_epoch": (int, "an int"),
    "metadata": (str, _TEXT),
    "topic_id": (str, _TEXT),
}


def checked_offsets(
    offsets: Offsets, group: GroupMetadata
) -> dict[TopicPartition, OffsetAndMetadata]:
    """``offsets`` as in a request, if a coordinator can accept them from ``group``."""
    _check_group(group)
    if not isinstance(offsets, Mapping):
        raise TypeError(f"offsets must be a mapping, not {type(offsets).__name__}")
    _raise(refusal_of_count(len(offsets)))
    return {tp: _checked_position(tp, offset, group) for tp, offset in offsets.items()}


def _checked_position(
    tp: object, offset: int | OffsetAndMetadata, group: GroupMetadata
) -> OffsetAndMetadata:
    if not isinstance(tp, TopicPartition):
        raise TypeError(
            f"offsets must map TopicPartition to the next offset to read, not {type(tp).__name__}"
        )
    _check_type(f"topic={tp.topic!r}", tp.topic, str, _TEXT)
    _check_type(f"partition={tp.partition!r} of {tp.topic!r}", tp.partition, int, "an int")
    if isinstance(offset, OffsetAndMetadata):
        position = offset
    elif isinstance(offset, int) and not isinstance(offset, bool):
        topic_id = group.topic_ids.get(tp.topic, "")
        position = structs.replace(as_committed(offset), topic_id=topic_id)
    else:
        raise TypeError(
            f"the offset of {tp} must be an int of 0 or more, or OffsetAndMetadata, not {offset!r}"
        )
    for name, (kind, kind_name) in _POSITION_TYPES.items():
        value = getattr(position, name)
        _check_type(f"{name}={value!r:.80} of {tp}", value, kind, kind_name)
    _raise(refusal_of_position(tp, position))
    if getattr(group, "delivers_in_commit_order", False):
        check_order(position, tp)
    return position


def _check_group(group: GroupMetadata) -> None:
    names = ("group_id", "generation_id", "member_id", "group_instance_id", "topic_ids")
    if not all(hasattr(group, name) for name in names):
        raise TypeError(f"group must be what consumer.group_metadata() gives, not {group!r}")
    _check_type(f"group_id={group.group_id!r}", group.group_id, str, _TEXT)
    if not is_valid_group_id(group.group_id):
        raise InvalidGroupIdError(
            f"group_id={group.group_id!r:.80}",
            advice=f"give 1 to {GROUP_ID_MAX_BYTES} bytes of UTF-8",
        )
    generation_id = group.generation_id
    _check_type(f"generation_id={generation_id!r}", generation_id, int, "an int")
    if not -1 <= generation_id <= INT32_MAX:
        raise InvalidRequestError(
            f"generation_id={generation_id}", advice=f"give -1 to {INT32_MAX}"
        )
    for name in ("member_id", "group_instance_id"):
        value = getattr(group, name)
        if value is None and name == "group_instance_id":
            continue
        _check_type(f"{name}={value!r}", value, str, _TEXT)
        if utf8_bytes(value) is None:
            raise InvalidRequestError(
                f"{name}={value!r:.80}", advice="give text that UTF-8 can encode"
            )
    if not isinstance(group.topic_ids, Mapping):
        raise TypeError(f"topic_ids={group.topic_ids!r} must be a mapping")


def _check_type(what: str, value: object, kind: type, kind_name: str) -> None:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TypeError(f"{what} must be {kind_name}")


def _raise(refusal: Refusal) -> None:
    code, words = refusal
    if code is not ErrorCode.NONE:
        raise exception_for(code, words)
