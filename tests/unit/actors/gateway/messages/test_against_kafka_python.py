"""kafka-python writes our requests and reads our responses, with values of all sizes.

What a version has is asked of kafka-python, which has definitions of its own.
"""

from __future__ import annotations

import importlib
import re
from typing import Any, get_args, get_type_hints
from uuid import UUID

import kafka.protocol.admin
import kafka.protocol.consumer
import kafka.protocol.metadata
import kafka.protocol.producer
import kafka.protocol.sasl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from oncelog.actors.gateway.messages.apis import APIS, ApiKey
from oncelog.actors.gateway.messages.headers import decode_request_header

ROOMS = (
    kafka.protocol.admin,
    kafka.protocol.consumer,
    kafka.protocol.metadata,
    kafka.protocol.producer,
    kafka.protocol.sasl,
)
NO_BITS = -(2**31)
"""What kafka-python takes for no bits at all: only the highest is set."""

NUMBERS = {
    f"int{bits}": st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32, 64)
}
LONG = st.integers(120, 140) | st.integers(16_370, 16_390)
"""Lengths about which a varint grows by a byte."""
VALUES = {
    **NUMBERS,
    "bool": st.booleans(),
    "float64": st.floats(allow_nan=False),
    "bitfield": NUMBERS["int32"].filter(lambda number: number != NO_BITS),
    "uuid": st.binary(min_size=16, max_size=16).filter(any),
    "string": st.text(st.characters(codec="utf-8"), max_size=6) | LONG.map(lambda n: "s" * n),
    "bytes": st.binary(max_size=6) | LONG.map(bytes),
    "records": st.binary(max_size=6) | LONG.map(bytes),
}


def theirs(name: str) -> Any:
    """kafka-python's class of a message."""
    return next(getattr(room, name) for room in ROOMS if hasattr(room, name))


def ours(name: str) -> type[Struct]:
    api = re.sub(r"(Request|Response)$", "", name)
    module = re.sub(r"(?<!^)(?=[A-Z])", "_", api).lower()
    return getattr(importlib.import_module(f"oncelog.actors.gateway.messages.{module}"), name)


def our_name(cls: type[Struct], field: Any) -> str:
    """kafka-python has a shorter or an older name of a few fields."""
    names = cls.__struct_fields__
    if field.name in names:
        return field.name
    (name,) = (one for one in names if one.startswith(field.name) or one.endswith(field.name))
    return name


def inner(cls: type[Struct], name: str) -> type[Struct]:
    """The struct of a field, of an array's items or of what may be null."""
    hint = get_type_hints(cls)[name]
    while not (isinstance(hint, type) and issubclass(hint, Struct)):
        hint = get_args(hint)[0]
    return hint


def fields_of(message: Any, version: int) -> list[Any]:
    return [one for one in message._struct.fields.values() if one.for_version_q(version)]


@st.composite
def pairs(draw, message: Any, cls: type[Struct], version: int) -> tuple[Any, Struct]:
    """The same message twice: as kafka-python has it, and as our struct."""
    their_values, our_values = {}, {}
    for one in fields_of(message, version):
        name = our_name(cls, one)
        if one.nullable_for_version_q(version) and draw(st.integers(0, 3)) == 0:
            if not one.tagged_field_q(version):
                their_values[one.name] = our_values[name] = None
            continue
        if one.is_struct() or one.is_struct_array():
            item = pairs(one.data_class, inner(cls, name), version)
        else:
            kind = one._type_str.removeprefix("[]")
            item = VALUES[kind].map(lambda value, kind=kind: (as_theirs(kind, value), value))
        if one.is_array():
            items = draw(st.lists(item, max_size=2))
            their_values[one.name] = [their for their, _ in items]
            our_values[name] = [our for _, our in items]
        else:
            their_values[one.name], our_values[name] = draw(item)
    return message(version=version, **their_values), cls(**our_values)


def as_theirs(kind: str, value: Any) -> Any:
    if kind == "uuid":
        return UUID(bytes=value)
    if kind == "bitfield":
        return {bit for bit in range(32) if value >> bit & 1}
    return value


def plain(message: Any, version: int) -> dict[str, Any]:
    """What kafka-python read, as values that can be compared."""
    return {
        one.name: plain_value(one, getattr(message, one.name), version)
        for one in fields_of(message, version)
    }


def plain_value(one: Any, value: Any, version: int) -> Any:
    if one.is_struct_array() and value is not None:
        return [plain(item, version) for item in value]
    if one.is_struct() and value is not None:
        return plain(value, version)
    return bytes(value) if isinstance(value, (bytearray, memoryview)) else value


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
@given(st.data())
def test_what_kafka_python_sends_is_read(api, data):
    version = data.draw(st.sampled_from(api.versions))
    name = f"{api.name}Request"
    their, our = data.draw(pairs(theirs(name), ours(name), version))
    their.with_header(correlation_id=77, client_id="me")
    view = memoryview(bytes(their.encode(version=version, header=True)))
    header, position = decode_request_header(view)
    assert (header.api_key, header.api_version) == (api.key, version)
    assert (header.correlation_id, header.client_id) == (77, "me")
    assert api.decode[version](view, position) == our


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
@given(st.data())
def test_kafka_python_reads_what_we_answer(api, data):
    version = data.draw(st.sampled_from(api.versions))
    name = f"{api.name}Response"
    their, our = data.draw(pairs(theirs(name), ours(name), version))
    if api.key == ApiKey.API_VERSIONS:  # it reads an error in the form of version 0
        their.error_code = our.error_code = 0
    encoded = b"".join(api.encode[version](our))
    assert plain(theirs(name).decode(encoded, version=version), version) == plain(their, version)
