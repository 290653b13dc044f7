"""Messages as Kafka's own classes write them, for every version that the codec knows.

``kafka_messages.jsonl`` was printed once by a Java program with kafka-clients 4.4.0: for each line
``XDataJsonConverter.read(fields, version)``, then ``MessageUtil.toByteBufferAccessor`` in hex.
"""

from __future__ import annotations

import base64
import importlib
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from msgspec import Struct

from oncelog.actors.gateway.messages.apis import APIS, Api


@dataclass(frozen=True)
class Sample:
    """A message of one version: its bytes and the struct of its fields."""

    api: Api
    version: int
    is_request: bool
    data: bytes = field(repr=False)
    message: Struct = field(repr=False)

    @property
    def name(self) -> str:
        return f"{self.api.name}-{'request' if self.is_request else 'response'}-{self.version}"


def snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def struct_of(cls: type[Struct], fields: dict[str, Any]) -> Struct:
    hints = get_type_hints(cls)
    return cls(**{snake(name): value_of(hints[snake(name)], one) for name, one in fields.items()})


def value_of(hint: Any, value: Any) -> Any:
    kinds = [one for one in get_args(hint) or (hint,) if one is not type(None)]
    if get_origin(hint) is list:
        kinds = [hint]
    if value is None:
        return None
    if get_origin(kinds[0]) is list:
        (item,) = get_args(kinds[0])
        return [value_of(item, one) for one in value]
    if issubclass(kinds[0], Struct):
        return struct_of(kinds[0], value)
    if kinds == [bytes]:
        return base64.urlsafe_b64decode(f"{value}==")
    return base64.b64decode(value) if {bytes, memoryview} & set(kinds) else value


def read_samples() -> list[Sample]:
    samples = []
    by_name = {api.name: api for api in APIS.values()}
    text = Path(__file__).with_name("kafka_messages.jsonl").read_text(encoding="utf-8")
    for line in text.splitlines():
        row = json.loads(line)
        api_name, side = re.fullmatch(r"(\w+)(Request|Response)", row["message"]).groups()
        module = importlib.import_module(f"oncelog.actors.gateway.messages.{snake(api_name)}")
        cls = getattr(module, row["message"])
        samples += [
            Sample(
                by_name[api_name],
                version,
                side == "Request",
                bytes.fromhex(row["bytes"]),
                struct_of(cls, row["fields"]),
            )
            for version in row["versions"]
        ]
    return samples


SAMPLES = read_samples()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test of ``request_sample`` or ``response_sample`` runs for each version of each API."""
    for name, is_request in (("request_sample", True), ("response_sample", False)):
        if name in metafunc.fixturenames:
            chosen = [sample for sample in SAMPLES if sample.is_request == is_request]
            metafunc.parametrize(name, chosen, ids=lambda sample: sample.name)


@pytest.fixture(scope="session")
def samples() -> list[Sample]:
    return SAMPLES
