"""How large requests of Kafka's clients may be, and how much memory their decoded form takes.

A batch stays as it arrived, but whatever else a request lists becomes objects: an empty topic has
3 bytes on the wire, and takes ``DECODED_FACTOR`` times as many decoded. So only a Produce may be
as long as Kafka's maximum. Others have a lower one, and reserve room for their decoded form while
they arrive; ``LISTED_MAX`` bounds what a handler has to do.

A Produce reserves room for its bytes alone, so it must be mostly records: one that lists more than
they can be for is not decoded.
"""

from __future__ import annotations

from struct import Struct as Form
from typing import Final

from msgspec import Struct

from oncelog.actors.gateway.messages.apis import APIS, ApiKey
from oncelog.actors.gateway.messages.primitives import (
    ITEMS_MAX,
    MalformedError,
    get_compact_count,
    get_compact_nullable_string,
    get_compact_string,
    get_count,
    get_fixed,
    get_nullable_string,
    get_string,
    get_varint,
    malformed,
    outside,
    skip_tags,
)

FRAME_MAX_BYTES: Final = 104_857_600
"""A longer request closes its connection. Kafka's ``socket.request.max.bytes``."""

OTHER_FRAME_MAX_BYTES: Final = 4 * 1_048_576
"""The same for all requests but Produce: 100,000 partitions of a Fetch or OffsetCommit fit."""

DECODED_FACTOR: Final = 40
"""Memory of a decoded request per byte of it, at most; records are not decoded."""

PARTITION_BYTES_MIN: Final = 64
"""Bytes of a Produce per topic and partition that it lists; a batch's header alone has 61.

A decoded partition takes up to 350 bytes, so such a request takes up to 6.5 times its own.
"""

UNCHECKED_BYTES: Final = 4_096
"""So much of a Produce is not counted: a short one may be dense."""

LISTED_MAX: Final = ITEMS_MAX
"""Topics, partitions and the like that one request may list, of any API.

A handler may take longer for them, and more memory, than their decoding has.
"""

UNCOUNTED_BYTES: Final = 65_536
"""A shorter request lists less than that."""

_KEY: Final = Form(">h")
_ACKS: Final = Form(">hi")
_INDEX: Final = Form(">i")
_TOPIC_BYTES_MIN: Final = 3


def is_produce(frame: memoryview) -> bool:
    """Whether a frame that begins so is a Produce."""
    (key,) = _KEY.unpack_from(frame)
    return bool(key == ApiKey.PRODUCE)


def check_produce(version: int, frame: memoryview, position: int) -> None:
    """Raise ``MalformedError`` if a Produce lists more than its bytes can be records for.

    What else is wrong with it, decoding it tells.
    """
    if len(frame) <= UNCHECKED_BYTES:
        return
    most = min(len(frame) // PARTITION_BYTES_MIN, LISTED_MAX)
    is_compact = version >= APIS[ApiKey.PRODUCE].flexible_from
    text, nullable, counted = (
        (get_compact_string, get_compact_nullable_string, get_compact_count)
        if is_compact
        else (get_string, get_nullable_string, get_count)
    )
    _, position = nullable(frame, position, "transactional_id")
    topic_count, position = counted(frame, position + _ACKS.size, _TOPIC_BYTES_MIN, "topic_data")
    listed = topic_count
    for _ in range(topic_count):
        _, position = text(frame, position, "name")
        count, position = counted(frame, position, _INDEX.size, "partition_data")
        listed += count
        if listed > most:
            break
        for _ in range(count):
            position = _past_partition(frame, position, is_compact=is_compact)
        if is_compact:
            position = skip_tags(frame, position)
    if listed > most:
        raise malformed("topic_data", position, f"{listed} topics and partitions, and few records")


def check_listed(frame: memoryview, request: Struct) -> None:
    """Raise ``MalformedError`` if a request lists more than ``LISTED_MAX`` items."""
    if len(frame) > UNCOUNTED_BYTES:
        _count_listed(request, 0)


def _count_listed(item: Struct, listed: int) -> int:
    """``listed``, and what is listed in ``item``."""
    for name in item.__struct_fields__:
        value = getattr(item, name)
        if type(value) is not list:
            continue
        listed += len(value)
        if listed > LISTED_MAX:
            raise MalformedError(f"{name}: more than {LISTED_MAX} items are listed")
        if value and isinstance(value[0], Struct):
            for inner in value:
                listed = _count_listed(inner, listed)
    return listed


def _past_partition(frame: memoryview, position: int, *, is_compact: bool) -> int:
    """The position after the index and records of a partition."""
    position += _INDEX.size
    if is_compact:
        length, position = get_varint(frame, position, "records")
        length -= 1
    else:
        (length,), position = get_fixed(_INDEX, frame, position, "records")
    if length < -1 or length > len(frame) - position:
        raise outside("records", frame, position, length)
    position += max(length, 0)
    return skip_tags(frame, position) if is_compact else position
