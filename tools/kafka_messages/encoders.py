"""Functions that write a response, as text; one per form of bytes."""

from __future__ import annotations

from definitions import CODES, Field, Shape, form_of, snake
from modules import Lines, Module, default_of, type_of


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
