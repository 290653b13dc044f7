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
import json
import sys
from pathlib import Path
from typing import Any

from decoders import Decoder
from definitions import APIS, NEVER, Message, from_jar, message_of, snake
from encoders import Encoder
from modules import LINE_MAX, PACKAGE, Module, struct_of, wrap

ROOT = Path(__file__).resolve().parents[2]
DEFINITIONS = Path(__file__).with_name("definitions.json")
MODULES = ROOT / "actors/gateway/messages"
FILE_LINES_MAX = 500


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
