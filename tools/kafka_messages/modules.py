"""The text of a module: its lines, structs and imports."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from definitions import CODES, Field, Message, Shape

PACKAGE = "oncelog.actors.gateway.messages"
LINE_MAX = 100
FUNCTION_LINES_MAX = 60


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
