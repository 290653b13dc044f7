"""Serializers: how keys and values of an application become the bytes of records, and back.

A *serializer* is a function of an object and a ``SerializationContext``, as in confluent-kafka,
whose serializers for Avro, JSON schema and Protobuf with a schema registry can be given as they are
(``pip install oncelog[registry]``). Some have names. ``None`` is never serialized: it is a record
without a key, or a tombstone. Source: Kafka's ``Serializer``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import msgspec

from oncelog.storage.exceptions import SerializationError

SerializerName = Literal["bytes", "str", "json", "msgpack", "arrow"]
SerializerFunction: TypeAlias = Callable[[Any, Any], Any]
"""Gets an object, or bytes, and a ``SerializationContext``; gives bytes, or an object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SerializationContext:
    """What a serializer is told: the topic, whether it is the "key" or the "value", the headers.

    The names are those of confluent-kafka, whose serializers read them.
    """

    topic: str
    field: str
    headers: Sequence[tuple[str, bytes | None]] = ()


class _Pair(NamedTuple):
    to_bytes: SerializerFunction
    from_bytes: SerializerFunction


def _as_it_is(value: Any, _: object) -> Any:
    return value


def _text_to_bytes(value: Any, _: object) -> bytes:
    if not isinstance(value, str):
        raise TypeError(f"a str is needed, not {type(value).__name__}")
    return value.encode()


def _arrow_to_bytes(value: Any, _: object) -> bytes:
    import pyarrow as pa

    if not isinstance(value, pa.Table | pa.RecordBatch):
        raise TypeError(f"a pyarrow Table or RecordBatch is needed, not {type(value).__name__}")
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, value.schema) as writer:
        writer.write(value)
    written: bytes = sink.getvalue().to_pybytes()
    return written


def _arrow_from_bytes(data: bytes, _: object) -> Any:
    import pyarrow as pa

    with pa.ipc.open_stream(data) as reader:
        return reader.read_all()


_NAMED: Final[Mapping[str, _Pair]] = MappingProxyType(
    {
        "bytes": _Pair(_as_it_is, _as_it_is),
        "str": _Pair(_text_to_bytes, lambda data, _: data.decode()),
        "json": _Pair(
            lambda value, _: msgspec.json.encode(value), lambda data, _: msgspec.json.decode(data)
        ),
        "msgpack": _Pair(
            lambda value, _: msgspec.msgpack.encode(value),
            lambda data, _: msgspec.msgpack.decode(data),
        ),
        "arrow": _Pair(_arrow_to_bytes, _arrow_from_bytes),
    }
)


class Serializers:
    """The two serializers of a producer, or deserializers of a consumer; ``None`` is bytes."""

    __slots__ = ("_key", "_value", "_verb")

    def __init__(
        self,
        key: SerializerName | SerializerFunction | None,
        value: SerializerName | SerializerFunction | None,
        *,
        is_reading: bool = False,
    ) -> None:
        self._key, self._value = (_function(one, is_reading) for one in (key, value))
        self._verb = "deserialized" if is_reading else "serialized"

    def __bool__(self) -> bool:
        """Whether there is anything to do."""
        return self._key is not None or self._value is not None

    def apply(
        self,
        topic: str,
        value: Any,
        key: Any,
        headers: Sequence[tuple[str, bytes | None]],
        *,
        place: str = "",
    ) -> tuple[Any, Any]:
        """Value and key, converted. ``SerializationError`` names topic, field and ``place``."""
        if self._key is not None and key is not None:
            key = self._converted(self._key, topic, "key", key, headers, place)
        if self._value is not None and value is not None:
            value = self._converted(self._value, topic, "value", value, headers, place)
        return value, key

    def _converted(
        self,
        function: SerializerFunction,
        topic: str,
        field: str,
        given: Any,
        headers: Sequence[tuple[str, bytes | None]],
        place: str,
    ) -> Any:
        context = SerializationContext(topic=topic, field=field, headers=headers)
        try:
            return function(given, context)
        except Exception as error:
            raise SerializationError(
                f"the {field} of a record of topic {topic!r}{place} cannot be {self._verb}: "
                f"{error!r:.500}"
            ) from error


def _function(
    choice: SerializerName | SerializerFunction | None, is_reading: bool
) -> SerializerFunction | None:
    if choice is None or choice == "bytes":
        return None
    if callable(choice):
        return choice
    pair = _NAMED[choice]
    return pair.from_bytes if is_reading else pair.to_bytes
