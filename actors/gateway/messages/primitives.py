"""Kafka's primitive types as bytes, for the requests and responses of Kafka's clients.

Big-endian. Old forms: a string has an int16 length, byte strings, records and arrays an int32
length or count; -1 is null. Compact forms: length or count + 1 as an unsigned varint; 0 is null.
A flexible structure ends with its tagged fields: their count, then tag, size and bytes of each.
Source: the Kafka protocol guide, "Protocol Primitive Types"; KIP-482.

``get_...`` reads at ``position`` and returns the value and the position after it. It checks each
length and count against the bytes that are left before anything is allocated, and raises
``MalformedError``, which names the field. ``put_...`` appends a value to ``out``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct, error, pack, unpack_from
from typing import Any, Final, TypeAlias, TypeVar

ItemT = TypeVar("ItemT")

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Bytes of a response; a memoryview must have items of one byte."""

NO_BYTES: Final = memoryview(b"")
NO_UUID: Final = bytes(16)

SHORT_READS: Final = (IndexError, error)
"""What inlined reads raise for bytes that end early."""

STRING_BYTES_MAX: Final = 32_767
"""The longest string in UTF-8 that Kafka reads, in either form."""

ITEMS_MAX: Final = 100_000
"""The most items of one array. Those of Produce and Fetch are only as many as have their bytes."""

TAGS_MAX: Final = 100
"""The most tagged fields of one structure; Kafka knows fewer than 10 of any."""

_VARINT_MAX: Final = (1 << 32) - 1
_BYTE = 0x80
_INT16 = Struct(">h")
_INT32 = Struct(">i")
_NULL_INT16 = _INT16.pack(-1)
_NULL_INT32 = _INT32.pack(-1)


class MalformedError(ValueError):
    """The bytes are not the message that their header announces; the text names the field."""


def malformed(name: str, position: int, what: object) -> MalformedError:
    """The error for the field ``name`` at byte ``position``."""
    return MalformedError(f"{name} at byte {position}: {what}")


def outside(name: str, view: memoryview, position: int, length: int) -> MalformedError:
    """The error for a length that is negative, or more than the bytes that are left."""
    if length == -1:
        return malformed(name, position, "null is not allowed")
    return malformed(name, position, f"{length} bytes wanted, {len(view) - position} are left")


def crowded(name: str, view: memoryview, position: int, count: int) -> MalformedError:
    """The error for a count that is negative, too high, or more than the bytes left can hold."""
    if count == -1:
        return malformed(name, position, "null is not allowed")
    left = len(view) - position
    return malformed(name, position, f"{count} items do not fit in {left} bytes, or are too many")


def get_fixed(
    form: Struct, view: memoryview, position: int, name: str
) -> tuple[tuple[Any, ...], int]:
    """The values of ``form``; ``name`` is the first of them."""
    end = position + form.size
    if end > len(view):
        raise outside(name, view, position, form.size)
    return form.unpack_from(view, position), end


def get_varint(view: memoryview, position: int, name: str) -> tuple[int, int]:
    """An unsigned varint: seven bits a byte, low ones first, at most 32 bits in 5 bytes."""
    try:
        first = view[position]
        if first < _BYTE:
            return first, position + 1
        second = view[position + 1]
        if second < _BYTE:
            return first & 0x7F | second << 7, position + 2
        value, shift = first & 0x7F | (second & 0x7F) << 7, 14
        for byte in view[position + 2 : position + 5]:
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < _BYTE and value <= _VARINT_MAX:
                return value, position + shift // 7
    except IndexError:
        pass
    raise malformed(name, position, "varint is cut short or has more than 32 bits")


def _text(view: memoryview, position: int, end: int, name: str) -> str:
    if end - position > STRING_BYTES_MAX:
        raise malformed(name, position, f"string of {end - position} bytes is too long")
    try:
        return str(view[position:end], "utf-8")
    except UnicodeDecodeError as wrong:
        raise malformed(name, position, wrong) from None


def _get_length(form: Struct, view: memoryview, position: int, name: str) -> tuple[int, int]:
    """A length in its old form, or -1 for null, and where the bytes begin."""
    (length,), position = get_fixed(form, view, position, name)
    if not -1 <= length <= len(view) - position:
        raise outside(name, view, position, length)
    return length, position


def _get_compact_length(view: memoryview, position: int, name: str) -> tuple[int, int]:
    """A length in its compact form, or -1 for null, and where the bytes begin."""
    if position < len(view) and view[position] < _BYTE:
        length = view[position] - 1
        position += 1
    else:
        length, position = get_varint(view, position, name)
        length -= 1
    if length > len(view) - position:
        raise outside(name, view, position, length)
    return length, position


def get_string(view: memoryview, position: int, name: str) -> tuple[str, int]:
    """A string in its old form."""
    length, position = _get_length(_INT16, view, position, name)
    if length < 0:
        raise outside(name, view, position, length)
    end = position + length
    return _text(view, position, end, name), end


def get_nullable_string(view: memoryview, position: int, name: str) -> tuple[str | None, int]:
    """A string or null, in its old form."""
    length, position = _get_length(_INT16, view, position, name)
    if length < 0:
        return None, position
    end = position + length
    return _text(view, position, end, name), end


def get_compact_string(view: memoryview, position: int, name: str) -> tuple[str, int]:
    """A string in its compact form."""
    length, position = _get_compact_length(view, position, name)
    if length < 0:
        raise outside(name, view, position, length)
    end = position + length
    return _text(view, position, end, name), end


def get_compact_nullable_string(
    view: memoryview, position: int, name: str
) -> tuple[str | None, int]:
    """A string or null, in its compact form."""
    length, position = _get_compact_length(view, position, name)
    if length < 0:
        return None, position
    end = position + length
    return _text(view, position, end, name), end


def get_bytes(view: memoryview, position: int, name: str) -> tuple[memoryview, int]:
    """A byte string in its old form: a view of ``view``."""
    length, position = _get_length(_INT32, view, position, name)
    if length < 0:
        raise outside(name, view, position, length)
    end = position + length
    return view[position:end], end


def get_compact_bytes(view: memoryview, position: int, name: str) -> tuple[memoryview, int]:
    """A byte string in its compact form: a view of ``view``."""
    length, position = _get_compact_length(view, position, name)
    if length < 0:
        raise outside(name, view, position, length)
    end = position + length
    return view[position:end], end


def get_nullable_count(
    view: memoryview, position: int, item_bytes_min: int, name: str
) -> tuple[int, int]:
    """The count of an array in its old form, -1 for null; each item has ``item_bytes_min``."""
    (count,), position = get_fixed(_INT32, view, position, name)
    if not -1 <= count <= min(ITEMS_MAX, (len(view) - position) // item_bytes_min):
        raise crowded(name, view, position, count)
    return count, position


def get_count(view: memoryview, position: int, item_bytes_min: int, name: str) -> tuple[int, int]:
    """The count of an array in its old form; each item has at least ``item_bytes_min`` bytes."""
    count, position = get_nullable_count(view, position, item_bytes_min, name)
    if count < 0:
        raise crowded(name, view, position, count)
    return count, position


def get_compact_nullable_count(
    view: memoryview, position: int, item_bytes_min: int, name: str
) -> tuple[int, int]:
    """The count of an array in its compact form, -1 for null."""
    count, position = get_varint(view, position, name)
    if count - 1 > min(ITEMS_MAX, (len(view) - position) // item_bytes_min):
        raise crowded(name, view, position, count - 1)
    return count - 1, position


def get_compact_count(
    view: memoryview, position: int, item_bytes_min: int, name: str
) -> tuple[int, int]:
    """The count of an array in its compact form."""
    count, position = get_compact_nullable_count(view, position, item_bytes_min, name)
    if count < 0:
        raise crowded(name, view, position, count)
    return count, position


def get_structs(
    view: memoryview,
    position: int,
    count: int,
    get: Callable[[memoryview, int], tuple[ItemT, int]],
) -> tuple[list[ItemT], int]:
    """``count`` structures, which ``get`` reads."""
    items = []
    for _ in range(count):
        item, position = get(view, position)
        items.append(item)
    return items, position


def get_strings(
    view: memoryview,
    position: int,
    count: int,
    get: Callable[[memoryview, int, str], tuple[ItemT, int]],
    name: str,
) -> tuple[list[ItemT], int]:
    """``count`` strings, which ``get`` reads."""
    items = []
    for _ in range(count):
        item, position = get(view, position, name)
        items.append(item)
    return items, position


def get_numbers(
    view: memoryview, position: int, count: int, code: str, item_bytes: int
) -> tuple[list[Any], int]:
    """``count`` values of one format character, whose count was checked."""
    return list(unpack_from(f">{count}{code}", view, position)), position + count * item_bytes


def skip_tags(view: memoryview, position: int) -> int:
    """The position after the tagged fields of a structure that knows none."""
    if position < len(view) and view[position] == 0:
        return position + 1
    return get_tags(view, position, ())[1]


def get_tags(
    view: memoryview, position: int, known: Sequence[int]
) -> tuple[dict[int, memoryview], int]:
    """The bytes of the tagged fields in ``known``, by tag; others are skipped."""
    values: dict[int, memoryview] = {}
    name = "tagged fields"
    count, position = get_varint(view, position, name)
    if count > min(TAGS_MAX, (len(view) - position) // 2):
        raise crowded(name, view, position, count)
    for _ in range(count):
        tag, position = get_varint(view, position, name)
        length, position = get_varint(view, position, name)
        end = position + length
        if end > len(view):
            raise outside(name, view, position, length)
        if tag in known:
            values[tag] = view[position:end]
        position = end
    return values, position


def put_varint(out: bytearray, value: int) -> None:
    """An unsigned varint."""
    while value >= _BYTE:
        out.append(value & 0x7F | _BYTE)
        value >>= 7
    out.append(value)


def _utf8(value: str) -> bytes:
    """The bytes of a string; what is too long is cut, as only a text for people can be."""
    encoded = value.encode()
    if len(encoded) > STRING_BYTES_MAX:
        encoded = encoded[:STRING_BYTES_MAX].decode(errors="ignore").encode()
    return encoded


def put_string(out: bytearray, value: str) -> None:
    """A string in its old form, cut after ``STRING_BYTES_MAX``."""
    encoded = _utf8(value)
    out += _INT16.pack(len(encoded))
    out += encoded


def put_nullable_string(out: bytearray, value: str | None) -> None:
    """A string or null, in its old form."""
    if value is None:
        out += _NULL_INT16
    else:
        put_string(out, value)


def put_compact_string(out: bytearray, value: str) -> None:
    """A string in its compact form, cut after ``STRING_BYTES_MAX``."""
    put_compact_bytes(out, _utf8(value))


def put_compact_nullable_string(out: bytearray, value: str | None) -> None:
    """A string or null, in its compact form."""
    if value is None:
        out.append(0)
    else:
        put_compact_bytes(out, _utf8(value))


def put_bytes(out: bytearray, value: Buffer) -> None:
    """A byte string in its old form."""
    out += _INT32.pack(len(value))
    out += value


def put_compact_bytes(out: bytearray, value: Buffer) -> None:
    """A byte string in its compact form."""
    length = len(value) + 1
    if length < _BYTE:
        out.append(length)
    else:
        put_varint(out, length)
    out += value


def put_array(
    out: bytearray, items: Sequence[ItemT], put: Callable[[bytearray, ItemT], None]
) -> None:
    """An array in its old form, each item by ``put``."""
    out += _INT32.pack(len(items))
    for item in items:
        put(out, item)


def put_nullable_array(
    out: bytearray, items: Sequence[ItemT] | None, put: Callable[[bytearray, ItemT], None]
) -> None:
    """An array or null, in its old form."""
    if items is None:
        out += _NULL_INT32
    else:
        put_array(out, items, put)


def put_compact_array(
    out: bytearray, items: Sequence[ItemT], put: Callable[[bytearray, ItemT], None]
) -> None:
    """An array in its compact form, each item by ``put``."""
    put_varint(out, len(items) + 1)
    for item in items:
        put(out, item)


def put_compact_nullable_array(
    out: bytearray, items: Sequence[ItemT] | None, put: Callable[[bytearray, ItemT], None]
) -> None:
    """An array or null, in its compact form."""
    if items is None:
        out.append(0)
    else:
        put_compact_array(out, items, put)


def put_numbers(out: bytearray, items: Sequence[int], code: str) -> None:
    """An array of numbers of one format character, in its old form."""
    out += pack(f">i{len(items)}{code}", len(items), *items)


def put_compact_numbers(out: bytearray, items: Sequence[int], code: str) -> None:
    """An array of numbers of one format character, in its compact form."""
    put_varint(out, len(items) + 1)
    out += pack(f">{len(items)}{code}", *items)


def put_tags(out: bytearray, tags: Sequence[tuple[int, Buffer]]) -> None:
    """The tagged fields that end a structure, as (tag, bytes) in the order of tags."""
    put_varint(out, len(tags))
    for tag, value in tags:
        put_varint(out, tag)
        put_varint(out, len(value))
        out += value
