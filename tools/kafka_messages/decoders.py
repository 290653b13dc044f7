"""Functions that read a request, as text; one per form of bytes."""

from __future__ import annotations

import builtins
import struct

from definitions import CODES, Field, Shape, form_of, item_bytes_min, snake
from modules import LINE_MAX, Lines, Module, default_of, type_of


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
