"""The fuzz of a gateway finds nothing, and would find what it is for."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import fuzz_kafka_attacks
import fuzz_main
import pytest
from deadlines import to_its_end, until
from fuzz_attacks import Attack, Files, Listeners, Way
from fuzz_kafka_attacks import KAFKA_ATTACKS, KafkaField, good_requests
from fuzz_kafka_target import counted, left_of_strangers, listening
from fuzz_report import Report
from fuzz_target import Counts, watched

from oncelog.actors.gateway import door, listener
from oncelog.actors.gateway.listener import KafkaConnection
from oncelog.actors.gateway.messages import metadata
from oncelog.actors.gateway.messages.apis import APIS, ApiKey

SCALE = 0.02
ROUNDS = [(attack, way) for attack in KAFKA_ATTACKS for way in attack.ways]

issued: Files
"""Certificates for the tests of this module."""


@pytest.fixture(scope="module", autouse=True)
def _issue(tmp_path_factory: pytest.TempPathFactory) -> None:
    global issued
    issued = Files.issue(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(autouse=True)
def _short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (listener, fuzz_kafka_attacks):
        monkeypatch.setattr(module, "FIRST_FRAME_TIMEOUT_S", 0.5)
    monkeypatch.setattr(listener, "REFUSAL_DELAY_S", 0.05)


async def attacked(attack: Attack, way: Way, *, is_left_allowed: bool = False) -> Report:
    """A small round of an attack, in this process, with the figures of a whole run."""
    report = Report()
    with watched() as counts:
        async with listening(issued.known) as listeners:
            ports = {name: one.port for name, one in listeners.items()}
            to = KafkaField(Listeners.at(ports, issued), way, Random(1), SCALE)
            await attack.do(to)
            report.add(attack.name, to)
            if not is_left_allowed:
                await until(lambda: not any(map(left_of_strangers, listeners.values())))
                assert not any(one.room.used_bytes for one in listeners.values())
                assert not any(one.progress.count for one in listeners.values())
            report.counts = counted(counts, listeners)
    for of_listeners in report.calls.values():
        for calls in of_listeners.values():
            calls.took.append(1.0)
    return report


def failures(report: Report) -> str:
    return "\n".join(report.failures(checks_latency=False))


def attack_named(name: str) -> Attack:
    return next(attack for attack in KAFKA_ATTACKS if attack.name == name)


@pytest.mark.parametrize(
    ("attack", "way"), ROUNDS, ids=[f"{attack.name}-{way.value}" for attack, way in ROUNDS]
)
def test_a_gateway_survives(attack, way):
    report = to_its_end(attacked(attack, way))
    assert failures(report) == ""
    assert report.answers


@pytest.mark.slow
def test_a_gateway_survives_all_attacks_beside_an_honest_client(seed, capfd):
    status = fuzz_main.main(["--door", "kafka", "--seconds", "25", "--seed", str(seed)])
    assert status == 0, capfd.readouterr().out


# --- what it would find -----------------------------------------------------------------------


def test_all_that_is_served_is_sent():
    sent = {(key, version) for key, version, _ in good_requests()}
    assert sent >= {(api.key, version) for api in APIS.values() for version in api.versions}


def test_an_error_that_bytes_reach_is_found(monkeypatch):
    def broken(*_: Any) -> Any:
        raise IndexError("a length that is not checked")

    monkeypatch.setitem(metadata.DECODE, 5, broken)
    report = to_its_end(attacked(attack_named("pipelined"), Way.PLAIN))
    assert "a length that is not checked" in failures(report)


def test_answers_in_a_wrong_order_are_found(monkeypatch):
    monkeypatch.setitem(listener._LANES, ApiKey.METADATA, None)
    answer = door.KafkaDoor.answer

    async def uneven(self: Any, client: Any, header: Any, *arguments: Any) -> Any:
        swapped = type(header)(
            header.api_key, header.api_version, header.correlation_id ^ 1, header.client_id
        )
        return await answer(self, client, swapped, *arguments)

    monkeypatch.setattr(door.KafkaDoor, "answer", uneven)
    report = to_its_end(attacked(attack_named("pipelined"), Way.PLAIN))
    assert "answer 0 of" in failures(report)


def test_a_login_that_never_ends_is_found(monkeypatch):
    monkeypatch.setattr(listener, "FIRST_FRAME_TIMEOUT_S", 60.0)
    monkeypatch.setattr(listener, "STRANGER_REQUESTS_MAX", 10**9)
    monkeypatch.setattr(fuzz_kafka_attacks, "CLOSING_SLACK_S", 0.5)
    found = to_its_end(attacked(attack_named("endless_login"), Way.PLAIN))
    assert "a login without an end is still open" in failures(found)


def test_requests_that_are_left_are_found(monkeypatch):
    monkeypatch.setattr(KafkaConnection, "_drop", lambda *_: None)

    async def run() -> Report:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        return await attacked(attack_named("leaving_requests"), Way.PLAIN, is_left_allowed=True)

    report = to_its_end(run())
    assert "are left at the end" in failures(report)


def test_the_judge_finds_what_is_left():
    report = Report(counts=Counts(left=1))
    assert any("1 connections or requests" in one for one in report.failures(checks_latency=False))
