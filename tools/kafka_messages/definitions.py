"""Kafka's definitions of its messages: what fields there are, of which type, in which versions."""

from __future__ import annotations

import json
import re
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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

KEPT = {"apiKey", "name", "validVersions", "flexibleVersions", "fields", "commonStructs"} | {
    "type",
    "versions",
    "nullableVersions",
    "taggedVersions",
    "tag",
    "default",
}

NEVER = 32_768
"""Above every version: those that are flexible, if none is."""
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
