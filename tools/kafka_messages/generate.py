"""Writes ``actors/gateway/messages/`` from Kafka's own definitions of its messages.

    python tools/kafka_messages/generate.py                  writes the modules anew
    python tools/kafka_messages/generate.py --check          names each file that differs; exits 1
    python tools/kafka_messages/generate.py --from-jar JAR   takes definitions.json from a jar

``definitions.json`` has what is used of the files ``common/message/*.json`` in the jar of
kafka-clients, which the Apache Software Foundation licenses under the Apache License 2.0. It is
changed: comments, descriptions and whatever makes no bytes are left out. It names its version.

A structure becomes a msgspec struct with every field of every version. Requests are only decoded,
responses only encoded. Versions whose bytes have the same form share a function. What is sent with
every batch (``INLINED``) is read and written without a call per field.
"""

from __future__ import annotations

import argparse
import builtins
import json
import re
import struct
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DEFINITIONS = Path(__file__).with_name("definitions.json")
MODULES = ROOT / "actors/gateway/messages"
PACKAGE = "oncelog.actors.gateway.messages"
KEPT = {"apiKey", "name", "validVersions", "flexibleVersions", "fields", "commonStructs"} | {
    "type",
    "versions",
    "nullableVersions",
    "taggedVersions",
    "tag",
    "default",
}
LINE_MAX = 100
FUNCTION_LINES_MAX = 60
FILE_LINES_MAX = 500
NEVER = 32_768
"""Above every version: those that are flexible, if none is."""

APIS = {
    "ApiVersions": (0, 4),
    "Metadata": (0, 12),
    "Produce": (3, 12),
    "Fetch": (4, 16),
    "ListOffsets": (1, 10),
    "FindCoordinator": (0, 6),
    "JoinGroup": (0, 9),
    "SyncGroup": (0, 5),
    "Heartbeat": (0, 4),
    "LeaveGroup": (0, 5),
    "OffsetCommit": (2, 9),
    "OffsetFetch": (1, 9),
    "OffsetDelete": (0, 0),
    "DescribeGroups": (0, 6),
    "ListGroups": (0, 5),
    "DeleteGroups": (0, 2),
    "InitProducerId": (0, 5),
    "AddPartitionsToTxn": (0, 5),
    "AddOffsetsToTxn": (0, 4),
    "TxnOffsetCommit": (0, 5),
    "EndTxn": (0, 5),
    "CreateTopics": (2, 7),
    "DeleteTopics": (1, 6),
    "CreatePartitions": (0, 3),
    "DeleteRecords": (0, 2),
    "DescribeConfigs": (1, 4),
    "AlterConfigs": (0, 2),
    "IncrementalAlterConfigs": (0, 1),
    "DescribeCluster": (0, 2),
    "DescribeProducers": (0, 0),
    "ListTransactions": (0, 2),
    "DescribeTransactions": (0, 0),
    "DescribeAcls": (1, 3),
    "CreateAcls": (1, 3),
    "DeleteAcls": (1, 3),
    "SaslHandshake": (0, 1),
    "SaslAuthenticate": (0, 2),
    "DescribeLogDirs": (1, 5),
    "ElectLeaders": (0, 2),
}
"""The lowest and highest version of each API, by Kafka's name of it."""

INLINED = {
    "TopicProduceData",
    "PartitionProduceData",
    "FetchTopic",
    "FetchPartition",
    "TopicProduceResponse",
    "PartitionProduceResponse",
    "FetchableTopicResponse",
    "PartitionData",
}
"""Structures whose arrays are read and written in one function, in loops within loops."""

CODES = {
    "bool": ("?", 1, "bool"),
    "int8": ("b", 1, "int"),
    "int16": ("h", 2, "int"),
    "int32": ("i", 4, "int"),
    "int64": ("q", 8, "int"),
    "float64": ("d", 8, "float"),
    "uuid": ("16s", 16, "bytes"),
}
"""Of each type of a fixed size: its format, its bytes and its type in Python."""


def snake(name: str) -> str:
    """A name of Kafka's as Python writes it."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


# What the definitions say.


@dataclass(frozen=True)
class Versions:
    """A range such as ``3+``, ``0-12``, ``4`` or ``none``."""

    low: int
    high: int

    @classmethod
    def of(cls, text: str | None) -> Versions:
        """The range that ``text`` says."""
        if text in (None, "none"):
            return cls(NEVER, NEVER - 1)
        low, dash, high = text.partition("-")
        if low.endswith("+"):
            return cls(int(low[:-1]), NEVER)
        return cls(int(low), int(high if dash else low))

    def __contains__(self, version: int) -> bool:
        return self.low <= version <= self.high


@dataclass(frozen=True)
class Field:
    """A field: ``kind`` is its type, or the type of its items if it ``is_array``."""

    name: str
    kind: str
    is_array: bool
    versions: Versions
    nullable: Versions
    tagged: Versions
    tag: int
    default: str
    struct: Shape | None

    @property
    def is_fixed(self) -> bool:
        """Whether all its values have the same size."""
        return self.kind in CODES and not self.is_array

    @property
    def is_inlined(self) -> bool:
        """Whether it is an array whose items are read and written without a call."""
        return self.struct is not None and self.struct.name in INLINED

    @property
    def may_be_null(self) -> bool:
        """Whether it is null in any version."""
        return self.nullable.low != NEVER


@dataclass
class Shape:
    """A structure of one message: its fields in the order of the definition."""

    name: str
    fields: list[Field] = field(default_factory=list)
    about: str = ""

    def of(self, version: int) -> list[Field]:
        """The fields of ``version`` that are always there."""
        return [f for f in self.fields if version in f.versions and version not in f.tagged]

    def tags(self, version: int) -> list[Field]:
        """The tagged fields of ``version``, by tag."""
        found = [f for f in self.fields if version in f.versions and version in f.tagged]
        return sorted(found, key=lambda one: one.tag)


@dataclass
class Message:
    """A request or a response: its structures by name, the outermost last."""

    name: str
    key: int
    is_request: bool
    versions: range
    flexible: Versions
    shapes: dict[str, Shape]

    @property
    def shape(self) -> Shape:
        """The outermost structure."""
        return self.shapes[self.name]


def message_of(definition: dict[str, Any], api: str, *, is_request: bool) -> Message:
    """The message that ``definition`` has, in the versions of ``api`` that are wanted."""
    offered = Versions.of(definition["validVersions"])
    low, high = APIS[api]
    if not offered.low <= low <= high <= offered.high:
        raise SystemExit(f"{definition['name']} has versions {offered}, not {low} to {high}")
    shared = {one["name"]: one for one in definition.get("commonStructs", ())}
    shapes: dict[str, Shape] = {}
    name = definition["name"]
    shape = shape_of(name, definition["fields"], shared, shapes)
    shape.about = f"{api}, the {'request' if is_request else 'response'}."
    return Message(
        name,
        definition["apiKey"],
        is_request,
        range(low, high + 1),
        Versions.of(definition["flexibleVersions"]),
        shapes,
    )


def shape_of(
    name: str, fields: list[dict[str, Any]], shared: dict[str, Any], shapes: dict[str, Shape]
) -> Shape:
    """The structure ``name``, entered in ``shapes`` after those that it holds."""
    shape = Shape(name)
    for one in fields:
        is_array = one["type"].startswith("[]")
        kind = one["type"].removeprefix("[]")
        inner = one.get("fields") or shared.get(kind, {}).get("fields")
        held = None
        if inner:
            held = shapes.get(kind) or shape_of(kind, inner, shared, shapes)
            held.about = held.about or about(name, one, is_array=is_array)
            if not is_array and "tag" not in one:
                raise SystemExit(f"{name}.{one['name']} is a structure without a tag")
        elif kind not in CODES and kind not in ("string", "bytes", "records"):
            raise SystemExit(f"{name}.{one['name']} has the unknown type {kind}")
        default = str(one.get("default", ""))
        shape.fields.append(
            Field(
                snake(one["name"]),
                kind,
                is_array,
                Versions.of(one["versions"]),
                Versions.of(one.get("nullableVersions")),
                Versions.of(one.get("taggedVersions")),
                one.get("tag", -1),
                default,
                held,
            )
        )
    shapes[name] = shape
    return shape


def about(holder: str, one: dict[str, Any], *, is_array: bool) -> str:
    """A line about a structure: where it stands."""
    return f"{'One of' if is_array else 'The'} ``{snake(one['name'])}`` of ``{holder}``."


# Lines of Python.


class Lines:
    """Statements, wrapped as ruff wraps them."""

    def __init__(self) -> None:
        self.depth = 1
        self.lines: list[str] = []

    def add(self, text: str) -> None:
        """A statement, over several lines if it must be."""
        self.lines += wrap(text, self.depth * 4)

    def assign(self, names: list[str], value: str) -> None:
        """The unpacking of ``value`` into ``names``."""
        targets = ", ".join(names) if len(names) > 1 else f"({names[0]},)"
        indent = self.depth * 4
        if indent + len(f"{targets} = {value}") <= LINE_MAX:
            self.add(f"{targets} = {value}")
        elif indent + len(f"({targets}) = (") <= LINE_MAX and "(" in value:
            self.add(f"({targets}) = (")
            self.lines += [" " * indent + f"    {value}", " " * indent + ")"]
        else:
            self.lines += [" " * indent + "(", *(" " * indent + f"    {name}," for name in names)]
            self.add(f") = {value}")

    def either(self, conditions: list[str]) -> str:
        """The head of an ``if`` that one of the conditions enters."""
        text = f"if {' or '.join(conditions)}:"
        if self.depth * 4 + len(text) <= LINE_MAX:
            return text
        inner = "\n".join(
            " " * (self.depth * 4 + 4) + ("or " if place else "") + condition
            for place, condition in enumerate(conditions)
        )
        return f"if (\n{inner}\n{' ' * self.depth * 4}):"

    @contextmanager
    def under(self, text: str) -> Iterator[None]:
        """What follows belongs to ``text``."""
        self.add(text)
        self.depth += 1
        yield
        self.depth -= 1


def wrap(text: str, indent: int, tail: str = "") -> list[str]:
    """``text`` in lines of ``LINE_MAX``: what does not fit is split in its last brackets."""
    space = " " * indent
    if indent + len(text + tail) <= LINE_MAX or text[-1] not in ")]}":
        return [f"{space}{text}{tail}"]
    start = opening(text)
    parts = split(text[start + 1 : -1])
    inner = ", ".join(parts)
    is_call = text[start] == "(" and text[start - 1 : start].isidentifier()
    if len(parts) == 1 and is_call:
        body = wrap(inner, indent + 4)
    elif indent + 4 + len(inner) <= LINE_MAX and is_call:
        body = [f"{space}    {inner}"]
    else:
        body = [line for part in parts for line in wrap(part, indent + 4, ",")]
    return [f"{space}{text[: start + 1]}", *body, f"{space}{text[-1]}{tail}"]


def opening(text: str) -> int:
    """Where the bracket opens that closes at the end."""
    depth = 0
    for place in range(len(text) - 1, -1, -1):
        depth += (text[place] in ")]}") - (text[place] in "([{")
        if depth == 0:
            return place
    raise ValueError(f"no brackets to split: {text}")


def split(text: str) -> list[str]:
    """What commas divide, outside of brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


@dataclass
class Module:
    """One API: what its module imports, and the constants and functions that it has so far."""

    request: Message
    response: Message
    imports: set[str] = field(default_factory=set)
    formats: dict[str, str] = field(default_factory=dict)
    functions: list[str] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)

    def use(self, name: str) -> str:
        """``name`` of ``primitives.py``, which the module must import."""
        self.imports.add(name)
        return name

    def form(self, codes: str) -> str:
        """The constant for a format: its letters, with a count where one is repeated."""
        letters = codes.replace("16s", "u").replace("?", "t").replace("B", "c").upper()
        name = re.sub(r"(.)\1+", lambda run: f"{run[1]}{len(run[0])}", letters)
        self.formats[f"_{name}"] = codes
        return f"_{name}"

    def define(self, name: str, signature: str, body: Lines) -> str:
        """The name of the function with this body: another version's, if that has the same."""
        key = "\n".join([name.rstrip("0123456789"), *body.lines])
        if key not in self.names:
            self.names[key] = name
            head = f"def {name}{signature}:"
            if len(head) > LINE_MAX:
                inside, returned = signature[1:].split(") -> ")
                head = f"def {name}(\n    {inside}\n) -> {returned}:"
            if len(body.lines) + head.count("\n") + 1 > FUNCTION_LINES_MAX:
                head += "\n    # One thing: each field, in the order of its bytes."
            self.functions.append("\n".join([head, *body.lines]))
        return self.names[key]


# Structs.


def type_of(one: Field, *, is_request: bool) -> str:
    """The annotation of a field."""
    view = "memoryview" if is_request else "Buffer"
    if one.struct:
        text = one.struct.name
    elif one.kind in CODES:
        text = CODES[one.kind][2]
    else:
        text = "str" if one.kind == "string" else view
    if one.is_array:
        text = f"list[{text}]"
    elif one.struct and not is_request:
        return f"{text} | None"
    return f"{text} | None" if one.may_be_null else text


def default_of(one: Field, *, is_request: bool) -> str:
    """What a field is if nobody says it, as an expression."""
    if (one.may_be_null and one.default == "null") or one.kind == "records":
        return "None"
    if one.is_array:
        return "[]"
    if one.struct:
        return f"{one.struct.name}()" if is_request else "None"
    if one.kind == "string":
        return f'"{one.default}"'
    if one.kind == "bytes":
        return "NO_BYTES" if is_request else 'b""'
    if one.kind == "bool":
        return str(one.default.lower() == "true")
    if one.kind == "uuid":
        return "NO_UUID"
    return str(float(one.default or 0) if one.kind == "float64" else int(one.default or "0", 0))


def struct_of(shape: Shape, module: Module, *, is_request: bool) -> str:
    """The class of a structure."""
    lines = [f"class {shape.name}(Struct, gc=False):", f'    """{shape.about}"""']
    if shape.fields:
        lines.append("")
    for one in shape.fields:
        default = default_of(one, is_request=is_request)
        annotation = type_of(one, is_request=is_request)
        for name in {default, *re.findall(r"\w+", annotation)} & {"NO_BYTES", "NO_UUID", "Buffer"}:
            module.use(name)
        if one.struct and is_request and not one.is_array:
            default = f"msgspec.field(default_factory={one.struct.name})"
        lines += wrap(f"{one.name}: {annotation} = {default}", 4)
    return "\n".join(lines)


# Requests: bytes become structs.


def bytes_min(shape: Shape, version: int, *, is_flexible: bool) -> int:
    """The fewest bytes that a structure takes."""
    fields = shape.of(version)
    return is_flexible + sum(field_bytes_min(one, is_flexible=is_flexible) for one in fields)


def field_bytes_min(one: Field, *, is_flexible: bool) -> int:
    """The fewest bytes that a field takes."""
    if one.is_fixed:
        return CODES[one.kind][1]
    return 1 if is_flexible else 2 if one.kind == "string" and not one.is_array else 4


def item_bytes_min(one: Field, version: int, *, is_flexible: bool) -> int:
    """The fewest bytes that an item of an array takes."""
    if one.struct:
        return bytes_min(one.struct, version, is_flexible=is_flexible)
    return CODES[one.kind][1] if one.kind in CODES else 1 if is_flexible else 2


def form_of(what: str, one: Field, version: int, *, is_flexible: bool) -> str:
    """A function of ``primitives.py`` for a field, such as ``get_compact_nullable_string``."""
    verb, _, noun = what.partition("_")
    compact = "compact_" if is_flexible else ""
    nullable = "nullable_" if version in one.nullable else ""
    return f"{verb}_{compact}{nullable}{noun}"


class Decoder:
    """Writes the functions that read one version of a request."""

    def __init__(self, module: Module, version: int) -> None:
        self.module = module
        self.use = module.use
        self.version = version
        self.is_flexible = version in module.request.flexible
        self.lines = Lines()
        self.add = self.lines.add
        self.together: list[str] = []
        """The fields that stand in ``values``, in its order."""

    def request(self) -> str:
        """The function that reads the whole request; its name."""
        shape = self.module.request.shape
        self.fields(shape)
        # Bytes may follow: librdkafka sends three too many of Metadata 12, and Kafka takes them.
        self.add(f"return {self.built(shape)}")
        is_empty = len(self.lines.lines) == 1
        unused = "_" if is_empty else ""
        arguments = f"{unused}view: memoryview, {unused}position: int"
        return self.module.define(
            f"_decode_{self.version}", f"({arguments}) -> {shape.name}", self.lines
        )

    def nested(self, shape: Shape) -> str:
        """The function that reads a structure inside another; its name."""
        if self.is_plain(shape):
            built = f"{shape.name}(*values)"
            self.values(shape)
        else:
            self.fields(shape)
            built = self.built(shape)
        if len(built) + len("    return , position") <= LINE_MAX:
            self.add(f"return {built}, position")
        else:
            self.add(f"item = {built}")
            self.add("return item, position")
        return self.module.define(
            f"_get_{snake(shape.name)}_{self.version}",
            f"(view: memoryview, position: int) -> tuple[{shape.name}, int]",
            self.lines,
        )

    def spread(self, names: list[str], given: list[str]) -> list[str]:
        """The arguments, with slices of ``values`` for those of them that stand there."""
        found: list[str] = []
        start = end = 0
        for name, argument in zip([*names[: len(given)], ""], [*given, ""], strict=True):
            if name not in self.together[end:]:
                if end > start:
                    found.append(part_of(start, end, len(self.together)))
                    start = end
                found.append(argument)
            else:
                end += 1
        return found[:-1]

    def is_plain(self, shape: Shape) -> bool:
        """Whether it has no other fields than its first ones, all of fixed sizes."""
        read = shape.of(self.version)
        fixed = all(one.is_fixed for one in read) and not shape.tags(self.version)
        return fixed and read == shape.fields[: len(read)]

    def built(self, shape: Shape) -> str:
        """The struct of the fields that were read; those of other versions have their defaults."""
        read = {one.name for one in (*shape.of(self.version), *shape.tags(self.version))}
        given = [
            local(one.name) if one.name in read else default_of(one, is_request=True)
            for one in shape.fields
        ]
        while given and shape.fields[len(given) - 1].name not in read:
            given.pop()
        given = self.spread([one.name for one in shape.fields], given)
        if "NO_UUID" in given:
            self.use("NO_UUID")
        return f"{shape.name}({', '.join(given)})"

    def fields(self, shape: Shape) -> None:
        """Read each field of a structure, and its tagged fields."""
        run: list[Field] = []
        for one in shape.of(self.version):
            if one.is_fixed:
                run.append(one)
            else:
                self.fixed(run)
                self.variable(one)
        self.fixed(run)
        if not self.is_flexible:
            return
        if shape.tags(self.version):
            self.tags(shape)
        else:
            self.add(f"position = {self.use('skip_tags')}(view, position)")

    def values(self, shape: Shape) -> None:
        """Read all fields of a plain structure at once."""
        read = shape.of(self.version)
        form = self.module.form(codes_of(read))
        call = f'{self.use("get_fixed")}({form}, view, position, "{read[0].name}")'
        self.add(f"values, position = {call}")
        if self.is_flexible:
            self.add(f"position = {self.use('skip_tags')}(view, position)")

    def fixed(self, run: list[Field]) -> None:
        """Read neighbours of fixed sizes at once."""
        if run:
            form = self.module.form(codes_of(run))
            names = ", ".join(local(one.name) for one in run) + "," * (len(run) == 1)
            call = f'{self.use("get_fixed")}({form}, view, position, "{run[0].name}")'
            if len(f"    ({names}), position = get_fixed(") <= LINE_MAX or self.together:
                self.add(f"({names}), position = {call}")
            else:
                self.add(f"values: tuple[{', '.join(CODES[one.kind][2] for one in run)}]")
                self.add(f"values, position = {call}")
                self.together = [one.name for one in run]
            run.clear()

    def variable(self, one: Field) -> None:
        """Read a field whose size its bytes say."""
        path = f'"{one.name}"'
        target = local(one.name)
        if one.is_inlined:
            get = Inlined(self.module, self.version).whole(one)
            self.add(f"{target}, position = {get}(view, position)")
            return
        if not one.is_array:
            noun = "string" if one.kind == "string" else "bytes"
            get = form_of(f"get_{noun}", one, self.version, is_flexible=self.is_flexible)
            self.add(f"{target}, position = {self.use(get)}(view, position, {path})")
            return
        least = item_bytes_min(one, self.version, is_flexible=self.is_flexible)
        get = form_of("get_count", one, self.version, is_flexible=self.is_flexible)
        self.add(f"count, position = {self.use(get)}(view, position, {least}, {path})")
        if self.version in one.nullable:
            self.add(f"{target}: {type_of(one, is_request=True)} = None")
            with self.lines.under("if count >= 0:"):
                self.items(one, target, path)
        else:
            self.items(one, target, path)

    def items(self, one: Field, target: str, path: str) -> None:
        """Read ``count`` items of an array."""
        if one.struct:
            get = Decoder(self.module, self.version).nested(one.struct)
            call = f"{self.use('get_structs')}(view, position, count, {get})"
        elif one.kind in CODES:
            code, size, _ = CODES[one.kind]
            call = f'{self.use("get_numbers")}(view, position, count, "{code}", {size})'
        else:
            get = self.use("get_compact_string" if self.is_flexible else "get_string")
            call = f"{self.use('get_strings')}(view, position, count, {get}, {path})"
        self.add(f"{target}, position = {call}")

    def tags(self, shape: Shape) -> None:
        """Read the tagged fields that are known; the others keep their defaults."""
        found = shape.tags(self.version)
        for one in found:
            default = default_of(one, is_request=True)
            self.add(f"{local(one.name)}: {type_of(one, is_request=True)} = {default}")
        known = ", ".join(str(one.tag) for one in found) + "," * (len(found) == 1)
        self.add(f"tagged, position = {self.use('get_tags')}(view, position, ({known}))")
        for one in found:
            target, path = local(one.name), f'"{one.name}"'
            with self.lines.under(f"if {one.tag} in tagged:"):
                if one.struct:
                    call = f"{Decoder(self.module, self.version).nested(one.struct)}(value, 0)"
                elif one.kind == "string" and not one.is_array:
                    get = form_of("get_string", one, self.version, is_flexible=True)
                    call = f"{self.use(get)}(value, 0, {path})"
                else:
                    raise SystemExit(f"{path}: such a tagged field of a request is not known here")
                self.add(f"value = tagged[{one.tag}]")
                self.add(f"{target}, _ = {call}")


def part_of(start: int, end: int, size: int) -> str:
    """A slice of ``values`` as arguments."""
    if (start, end) == (0, size):
        return "*values"
    if end == start + 1:
        return f"values[{start}]"
    return f"*values[{start or ''}:{end if end < size else ''}]"


def codes_of(run: list[Field]) -> str:
    """The format of neighbours of fixed sizes."""
    return "".join(CODES[one.kind][0] for one in run)


def local(name: str) -> str:
    """The name of a local variable: not that of a builtin, nor of one that functions use."""
    taken = {"view", "position", "count", "tagged", "value", "end", "size", "length", "at", "out"}
    return f"{name}_" if hasattr(builtins, name) or name in taken else name


class Inlined(Decoder):
    """Reads an array of structures in one function: no call per field, but for what is rare."""

    def __init__(self, module: Module, version: int) -> None:
        super().__init__(module, version)
        self.run: list[tuple[str, str]] = []
        self.at = ""

    def whole(self, one: Field) -> str:
        """The function that reads the array; its name."""
        self.add("size = len(view)")
        with self.lines.under("try:"):
            self.length(one)
            self.array(one)
        with self.lines.under(f"except {self.use('SHORT_READS')} as wrong:"):
            self.add(f"raise {self.use('malformed')}(at, position, wrong) from None")
        self.add(f"return {local(one.name)}, position")
        return self.module.define(
            f"_get_{one.name}_{self.version}",
            f"(view: memoryview, position: int) -> tuple[{type_of(one, is_request=True)}, int]",
            self.lines,
        )

    def fields(self, shape: Shape) -> None:
        """Read each field of a structure; a length is read with the fields before it."""
        for one in shape.of(self.version):
            if one.is_fixed:
                self.put(CODES[one.kind][0], local(one.name), one.name)
                continue
            if one.kind == "string":
                self.flush()
                self.variable(one)
                continue
            self.length(one)
            if one.is_array:
                self.array(one)
            elif self.version in one.nullable:
                self.add(f"{local(one.name)} = None")
                with self.lines.under("if length:" if self.is_flexible else "if length != -1:"):
                    self.slice(one)
            else:
                self.slice(one)
        if self.is_flexible:
            self.put("B", "length", "tagged fields")
        self.flush()
        if self.is_flexible:
            self.skip()

    def values(self, shape: Shape) -> None:
        """Read all fields of a plain structure at once."""
        codes = codes_of(shape.of(self.version))
        self.name(shape.fields[0].name)
        self.add(f"values = {self.module.form(codes)}.unpack_from(view, position)")
        self.add(f"position += {struct.calcsize('>' + codes)}")
        if self.is_flexible:
            self.put("B", "length", "tagged fields")
            self.flush()
            self.skip()

    def skip(self) -> None:
        """Skip tagged fields, whose count is read."""
        with self.lines.under("if length:"):
            self.add(f"position = {self.use('skip_tags')}(view, position - 1)")

    def name(self, name: str) -> None:
        """Tell which field an error would be about."""
        if name != self.at:
            self.add(f'at = "{name}"')
            self.at = name

    def put(self, code: str, target: str, name: str) -> None:
        """Read ``target`` with the next run of neighbours."""
        if not self.run:
            self.name(name)
        self.run.append((code, target))

    def flush(self) -> None:
        """Read the neighbours at once."""
        if not self.run:
            return
        codes = "".join(code for code, _ in self.run)
        names = [target for _, target in self.run]
        if codes == "B":
            self.add(f"{names[0]} = view[position]")
        else:
            self.lines.assign(names, f"{self.module.form(codes)}.unpack_from(view, position)")
        self.add(f"position += {struct.calcsize('>' + codes)}")
        self.run.clear()

    def length(self, one: Field) -> None:
        """Read the size of records or the count of an array, with neighbours of fixed sizes."""
        self.put("B" if self.is_flexible else "i", "length", one.name)
        self.flush()
        if self.is_flexible:
            with self.lines.under("if length > 0x7F:"):
                call = f'{self.use("get_varint")}(view, position - 1, "{one.name}")'
                self.add(f"length, position = {call}")

    def check(self, one: Field, length: str, condition: str, error: str) -> None:
        """Raise what ``error`` makes unless ``condition`` holds."""
        with self.lines.under(f"if not {condition}:"):
            self.add(f'raise {self.use(error)}("{one.name}", view, position, {length})')

    def slice(self, one: Field) -> None:
        """Take the bytes of records."""
        length = "length - 1" if self.is_flexible else "length"
        self.add(f"end = position + {length}")
        self.check(one, length, "position <= end <= size", "outside")
        self.add(f"{local(one.name)} = view[position:end]")
        self.add("position = end")

    def array(self, one: Field) -> None:
        """Read the items of an array of structures."""
        if self.version in one.nullable or not one.struct or one.struct.tags(self.version):
            raise SystemExit(f"{one.name} cannot be inlined")
        least = item_bytes_min(one, self.version, is_flexible=self.is_flexible)
        length = "length - 1" if self.is_flexible else "length"
        self.check(one, length, f"0 <= {length} <= (size - position) // {least}", "crowded")
        self.add(f"{local(one.name)} = []")
        with self.lines.under(f"for _ in range({length}):"):
            self.at = ""
            if self.is_plain(one.struct):
                self.values(one.struct)
                self.add(f"{local(one.name)}.append({one.struct.name}(*values))")
            else:
                self.fields(one.struct)
                self.add(f"{local(one.name)}.append({self.built(one.struct)})")
        self.at = ""


# Responses: structs become bytes.


class Encoder:
    """Writes the functions that write one version of a response."""

    def __init__(self, module: Module, version: int, lines: Lines | None = None) -> None:
        self.module = module
        self.use = module.use
        self.version = version
        self.is_flexible = version in module.response.flexible
        self.lines = lines or Lines()
        self.add = self.lines.add
        self.run: list[tuple[str, str]] = []

    def response(self) -> str:
        """The function that writes the whole response; its name."""
        shape = self.module.response.shape
        self.use("Buffer")
        if self.has_records:
            self.add("parts: list[Buffer] = []")
        self.add("out = bytearray()")
        self.fields(shape, "response")
        self.add("return [*parts, out]" if self.has_records else "return [out]")
        return self.module.define(
            f"_encode_{self.version}", f"(response: {shape.name}) -> list[Buffer]", self.lines
        )

    @property
    def has_records(self) -> bool:
        """Whether the response has records, which become parts of their own."""
        shapes = self.module.response.shapes.values()
        return any(one.kind == "records" for shape in shapes for one in shape.fields)

    def whole(self, one: Field) -> str:
        """The function that writes an array of structures in loops within loops; its name."""
        self.inline(one, "items")
        parts, returned = "", "None"
        if self.has_records:
            parts, returned = "parts: list[Buffer], ", "bytearray"
            self.add("return out")
        return self.module.define(
            f"_put_{one.name}_{self.version}",
            f"({parts}out: bytearray, items: {type_of(one, is_request=False)}) -> {returned}",
            self.lines,
        )

    def nested(self, shape: Shape) -> str:
        """The function that writes a structure inside another; its name."""
        self.fields(shape, "item")
        return self.module.define(
            f"_put_{snake(shape.name)}_{self.version}",
            f"(out: bytearray, item: {shape.name}) -> None",
            self.lines,
        )

    def fields(self, shape: Shape, holder: str) -> None:
        """Write each field of ``holder``, and its tagged fields."""
        for one in shape.of(self.version):
            if one.is_fixed:
                self.run.append((CODES[one.kind][0], f"{holder}.{one.name}"))
            else:
                self.flush()
                self.variable(one, f"{holder}.{one.name}")
        self.flush()
        if self.is_flexible and shape.tags(self.version):
            self.tags(shape, holder)
        elif self.is_flexible:
            self.add("out.append(0)")

    def flush(self) -> None:
        """Write neighbours of fixed sizes at once."""
        if self.run:
            form = self.module.form("".join(code for code, _ in self.run))
            self.add(f"out += {form}.pack({', '.join(value for _, value in self.run)})")
            self.run.clear()

    def variable(self, one: Field, value: str) -> None:
        """Write a field whose size its bytes say; where a version has no null, it is empty."""
        if one.may_be_null and self.version not in one.nullable and one.kind != "records":
            empty = "()" if one.is_array else '""' if one.kind == "string" else 'b""'
            value = f"{value} or {empty}"
        if one.kind == "records":
            self.records(value)
        elif one.is_inlined and value.startswith("response."):
            put = Encoder(self.module, self.version).whole(one)
            given = f"parts, out, {value}" if self.has_records else f"out, {value}"
            self.add(f"{'out = ' if self.has_records else ''}{put}({given})")
        elif one.is_inlined:
            self.inline(one, value)
        elif one.is_array:
            self.array(one, value)
        else:
            put = form_of(f"put_{one.kind}", one, self.version, is_flexible=self.is_flexible)
            self.add(f"{self.use(put)}(out, {value})")

    def array(self, one: Field, value: str) -> None:
        """Write an array by a call per item."""
        if one.kind in CODES:
            put = form_of("put_numbers", one, self.version, is_flexible=self.is_flexible)
            self.add(f'{self.use(put)}(out, {value}, "{CODES[one.kind][0]}")')
            return
        if one.struct:
            item = Encoder(self.module, self.version).nested(one.struct)
        else:
            item = self.use("put_compact_string" if self.is_flexible else "put_string")
        put = form_of("put_array", one, self.version, is_flexible=self.is_flexible)
        self.add(f"{self.use(put)}(out, {value}, {item})")

    def inline(self, one: Field, value: str) -> None:
        """Write an array of structures without a call per item."""
        if self.version in one.nullable or not one.struct:
            raise SystemExit(f"{value} cannot be inlined")
        if self.is_flexible:
            self.add(f"{self.use('put_varint')}(out, len({value}) + 1)")
        else:
            self.add(f"out += {self.module.form('i')}.pack(len({value}))")
        item = "topic" if value == "items" else "partition"
        with self.lines.under(f"for {item} in {value}:"):
            self.fields(one.struct, item)

    def records(self, value: str) -> None:
        """Write records as a part of their own."""
        self.add(f"records = {value}")
        null = "out.append(0)" if self.is_flexible else f"out += {self.module.form('i')}.pack(-1)"
        with self.lines.under("if records is None:"):
            self.add(null)
        with self.lines.under("else:"):
            if self.is_flexible:
                self.add(f"{self.use('put_varint')}(out, len(records) + 1)")
            else:
                self.add(f"out += {self.module.form('i')}.pack(len(records))")
            with self.lines.under("if records:"):
                self.add("parts += (out, records)")
                self.add("out = bytearray()")

    def tags(self, shape: Shape, holder: str) -> None:
        """Write the tagged fields, of which there are nearly always none."""
        found = shape.tags(self.version)
        with self.lines.under(self.lines.either([is_set(one, holder) for one in found])):
            self.add(f"{Encoder(self.module, self.version).tagged(shape)}(out, {holder})")
        with self.lines.under("else:"):
            self.add("out.append(0)")

    def tagged(self, shape: Shape) -> str:
        """The function that writes those tagged fields that differ from their defaults."""
        self.add(f"tags: list[tuple[int, {self.use('Buffer')}]] = []")
        for one in shape.tags(self.version):
            value = f"item.{one.name}"
            with self.lines.under(f"if {is_set(one, 'item')}:"):
                if one.is_fixed:
                    form = self.module.form(CODES[one.kind][0])
                    self.add(f"tags.append(({one.tag}, {form}.pack({value})))")
                    continue
                if not one.struct:
                    raise SystemExit(f"{value}: such a tagged field is not known here")
                put = Encoder(self.module, self.version).nested(one.struct)
                self.add("part = bytearray()")
                if one.is_array:
                    array = form_of("put_array", one, self.version, is_flexible=True)
                    self.add(f"{self.use(array)}(part, {value}, {put})")
                else:
                    self.add(f"{put}(part, {value})")
                self.add(f"tags.append(({one.tag}, part))")
        self.add(f"{self.use('put_tags')}(out, tags)")
        return self.module.define(
            f"_put_tags_of_{snake(shape.name)}_{self.version}",
            f"(out: bytearray, item: {shape.name}) -> None",
            self.lines,
        )


def is_set(one: Field, holder: str) -> str:
    """Whether a tagged field differs from its default, as an expression."""
    default = default_of(one, is_request=False)
    value = f"{holder}.{one.name}"
    return value if default in ("None", "[]", "False", "0") else f"{value} != {default}"


# Files.


def table(name: str, functions: dict[int, str]) -> list[str]:
    """The functions by version, as a constant."""
    runs: list[tuple[str, int, int]] = []
    for version, function in functions.items():
        if runs and runs[-1][0] == function:
            runs[-1] = (function, runs[-1][1], version + 1)
        else:
            runs.append((function, version, version + 1))
    items = [
        f"{low}: {function}"
        if high == low + 1
        else f"**dict.fromkeys(range({f'{low}, ' if low else ''}{high}), {function})"
        for function, low, high in runs
    ]
    return wrap(f"{name}: Final = {{{', '.join(items)}}}", 0)


def module_of(api: str, messages: dict[str, Message]) -> str:
    """The text of the module of one API."""
    request, response = messages[f"{api}Request"], messages[f"{api}Response"]
    module = Module(request, response)
    if twice := set(request.shapes) & set(response.shapes):
        raise SystemExit(f"{api} has {twice} in its request and in its response")
    versions = request.versions
    classes = [
        struct_of(shape, module, is_request=message.is_request)
        for message in (request, response)
        for shape in message.shapes.values()
    ]
    decode = {version: Decoder(module, version).request() for version in versions}
    encode = {version: Encoder(module, version).response() for version in versions}
    text = "\n\n\n".join([*classes, *module.functions])
    several = f"versions {versions[0]} to {versions[-1]}"
    which = several if len(versions) > 1 else f"version {versions[0]}"
    doc = f'"""Kafka\'s {api} in {which}; generated, do not edit.\n'
    why = "\nOne file: the structs and the bytes of one API.\n"
    lines = ["from __future__ import annotations", ""]
    if module.formats:
        lines.append("from struct import Struct as Form")
    lines += ["from typing import Final", ""]
    if "msgspec.field" in text:
        lines.append("import msgspec")
    lines += ["from msgspec import Struct", ""]
    lines += imported(f"{PACKAGE}.primitives", module.imports)
    forms = [f'{name} = Form(">{codes}")' for name, codes in sorted(module.formats.items())]
    head = "\n".join(lines)
    tables = "\n".join([*table("DECODE", decode), *table("ENCODE", encode)])
    body = "\n\n\n".join([head + "\n\n" + "\n".join(forms), text, tables]) + "\n"
    body = body.replace("\n\n\n\n", "\n\n\n")
    is_long = (doc + body).count("\n") + 2 > FILE_LINES_MAX
    return (doc + why if is_long else doc.rstrip("\n")) + '"""\n\n' + body


def imported(module: str, names: set[str]) -> list[str]:
    """The import of names: constants, classes, functions."""
    kinds = [(0 if name.isupper() else 1 if name[0].isupper() else 2, name) for name in names]
    line = f"from {module} import {', '.join(name for _, name in sorted(kinds))}"
    if len(line) <= LINE_MAX:
        return [line]
    return [f"from {module} import (", *(f"    {name}," for _, name in sorted(kinds)), ")"]


def apis(messages: dict[str, Message]) -> str:
    """The text of ``apis.py``: every API by its key."""
    rows = sorted((messages[f"{api}Request"].key, api) for api in APIS)
    lines = APIS_HEAD.splitlines()
    at = lines.index("IMPORTS")
    lines[at : at + 1] = imported(PACKAGE, {snake(api) for api in APIS})
    at = lines.index("    KEYS")
    lines[at : at + 1] = [f"    {snake(api).upper()} = {key}" for key, api in rows]
    lines += ["", "", "APIS: Final[dict[int, Api]] = {", "    api.key: api", "    for api in ("]
    for _, api in rows:
        low = messages[f"{api}Request"].flexible.low
        never = "NEVER_FLEXIBLE" if low == NEVER else low
        lines.append(f"        _api(ApiKey.{snake(api).upper()}, {never}, {snake(api)}),")
    lines += ["    )", "}", '"""Every API that the codec knows, by its key."""', ""]
    return "\n".join(lines)


APIS_HEAD = '''"""Every API of Kafka that the gateway can read and write; generated, do not edit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from types import ModuleType
from typing import Any, Final

IMPORTS
from oncelog.actors.gateway.messages.primitives import Buffer

NEVER_FLEXIBLE: Final = 32_768
"""Above every version."""


class ApiKey(IntEnum):
    """The number of an API in the header of its requests."""

    KEYS


@dataclass(frozen=True, slots=True)
class Api:
    """One API: its versions, and by version how its requests are read and responses written.

    ``decode[version](view, position)`` reads the request in ``view`` from ``position`` to the end
    of ``view`` and raises ``MalformedError``. ``encode[version](response)`` gives the response in
    parts, without a header; fields that the version lacks are left out.
    """

    key: ApiKey
    name: str
    versions: range
    flexible_from: int
    """From this version on it has compact forms and tagged fields, also in its headers."""
    decode: Mapping[int, Callable[[memoryview, int], Any]] = field(repr=False)
    encode: Mapping[int, Callable[[Any], list[Buffer]]] = field(repr=False)


def _api(key: ApiKey, flexible_from: int, module: ModuleType) -> Api:
    decode, encode = module.DECODE, module.ENCODE
    versions = range(min(decode), max(decode) + 1)
    return Api(key, key.name.title().replace("_", ""), versions, flexible_from, decode, encode)
'''


def files(definitions: dict[str, Any]) -> dict[Path, str]:
    """The text of each generated file."""
    messages = {
        f"{api}{side}": message_of(
            definitions["messages"][f"{api}{side}"], api, is_request=side == "Request"
        )
        for api in APIS
        for side in ("Request", "Response")
    }
    texts = {MODULES / f"{snake(api)}.py": module_of(api, messages) for api in APIS}
    return {**texts, MODULES / "apis.py": apis(messages)}


def from_jar(jar: Path) -> str:
    """The text of ``definitions.json`` from the jar of kafka-clients."""
    with zipfile.ZipFile(jar) as opened:
        properties = opened.read("kafka/kafka-version.properties").decode()
        found = {
            f"{api}{side}": stripped(opened.read(f"common/message/{api}{side}.json").decode())
            for api in APIS
            for side in ("Request", "Response")
        }
    version = re.search(r"^version=(.*)$", properties, re.MULTILINE)
    if version is None:
        raise SystemExit(f"{jar} does not name its version")
    about = {"source": "Apache Kafka, clients/src/main/resources/common/message, shortened"}
    about |= {"version": version[1].strip(), "licence": "Apache-2.0"}
    rows = [f'  "{name}": {json.dumps(one, separators=(",", ":"))}' for name, one in found.items()]
    head = json.dumps(about)[:-1]
    return head + ', "messages": {\n' + ",\n".join(rows) + "\n}}\n"


def stripped(text: str) -> Any:
    """A definition without comments and without what makes no bytes."""
    return json.loads(
        re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE),
        object_pairs_hook=lambda pairs: {name: value for name, value in pairs if name in KEPT},
    )


def main() -> int:
    """Write the modules, or compare them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="only compare; 1 if a file differs")
    parser.add_argument("--from-jar", type=Path, metavar="JAR", help="take the definitions anew")
    given = parser.parse_args()
    if given.from_jar:
        DEFINITIONS.write_text(from_jar(given.from_jar), encoding="utf-8")
    texts = files(json.loads(DEFINITIONS.read_text(encoding="utf-8")))
    written = {path: path.read_text("utf-8") if path.exists() else None for path in texts}
    different = [path for path, text in texts.items() if written[path] != text]
    for path in different:
        if given.check:
            sys.stderr.write(f"{path.relative_to(ROOT)} is not what generate.py writes\n")
        else:
            path.write_text(texts[path], encoding="utf-8")
    return int(given.check and bool(different))


if __name__ == "__main__":
    sys.exit(main())
