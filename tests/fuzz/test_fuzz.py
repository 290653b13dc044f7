"""The fuzz of connections finds nothing, and would find what it is for."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from random import Random
from typing import Any

import fuzz_attacks
import fuzz_main
import pytest
from deadlines import to_its_end
from fuzz_attacks import ATTACKS, Attack, Field
from fuzz_caller import Calls
from fuzz_inputs import (
    CALLER_NONCE,
    HELLO_FRAME,
    PROOF_MARK,
    SERVER_HELLO_FRAME,
    TOKEN,
    filled,
    frame,
    good_calls,
    mutated,
    proves,
    proves_server,
)
from fuzz_report import GROWTH_MAX_MIB, Report, percentile, slope
from fuzz_target import Counts, WatchedListener, watched

from oncelog.actors.rpc import handshake, listener, message_codec
from oncelog.actors.rpc.frames import HELLO
from oncelog.actors.rpc.handshake import NONCE_BYTES

SCALE = 0.02
RECORDING = {"replayed_handshakes"}
"""Attacks that send what has a nonce of the listener in it."""


@contextlib.asynccontextmanager
async def listening() -> AsyncIterator[tuple[Counts, int]]:
    with watched() as counts:
        target = WatchedListener(counts)
        yield counts, (await target.address()).port
        await target.close()


async def attacked(*attacks: Attack, scale: float = SCALE) -> Report:
    """A small round of each attack, in this process, with the figures of a whole run."""
    report = Report()
    async with listening() as (counts, port):
        for number, attack in enumerate(attacks):
            to = Field(port, Random(number), scale)
            await attack.do(to)
            report.add(attack.name, to)
    report.counts = counts
    for calls in report.calls.values():
        calls.took.append(1.0)
    return report


def failures(report: Report) -> str:
    return "\n".join(report.failures(checks_latency=False))


@pytest.fixture
def _short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (listener, fuzz_attacks):
        monkeypatch.setattr(module, "FIRST_FRAME_TIMEOUT_S", 0.2)


@pytest.mark.usefixtures("_short_times")
@pytest.mark.parametrize("attack", ATTACKS, ids=[attack.name for attack in ATTACKS])
def test_a_listener_survives(attack):
    report = to_its_end(attacked(attack))
    assert failures(report) == ""
    assert report.answers


def test_proved_callers_reach_the_server_and_others_do_not():
    attacks = {attack.name: attack for attack in ATTACKS}
    proved = to_its_end(attacked(attacks["torn_calls"], attacks["mutated_calls"]))
    assert proved.counts.decoded > 0
    assert proved.answers["reply"] > 0
    before = ("random_bytes", "wrong_proofs", "swapped_proofs", "calls_without_hello")
    strangers = to_its_end(attacked(*(attacks[name] for name in before)))
    assert strangers.counts == Counts()
    assert set(strangers.answers) <= {"closed", "silence"}


@pytest.mark.slow
def test_a_listener_survives_all_attacks_beside_an_honest_caller(seed, capfd):
    status = fuzz_main.main(["--seconds", "45", "--seed", str(seed)])
    assert status == 0, capfd.readouterr().out


# --- what it would find -------------------------------------------------------------------------


def attack_named(name: str) -> Attack:
    return next(attack for attack in ATTACKS if attack.name == name)


def test_a_request_that_begins_before_a_proof_is_found(monkeypatch):
    admit = listener._Caller._admit

    def careless(self: Any, correlation_id: int, method: str, message: memoryview) -> None:
        if method == HELLO:
            admit(self, correlation_id, method, message)
        else:
            self._listener.begin(self, correlation_id, method, message)

    monkeypatch.setattr(listener._Caller, "_admit", careless)
    found = failures(to_its_end(attacked(attack_named("calls_without_hello"))))
    assert "requests began on connections without a proof" in found


def test_a_request_that_is_decoded_before_it_begins_is_found(monkeypatch):
    received = listener._Caller.received

    def curious(self: Any, correlation_id: int, kind: int, body: memoryview) -> None:
        with contextlib.suppress(ValueError, KeyError):
            message_codec.decode_request(bytes(body[:kind]).decode("ascii"), body[kind:])
        received(self, correlation_id, kind, body)

    monkeypatch.setattr(listener._Caller, "received", curious)
    found = failures(to_its_end(attacked(attack_named("calls_without_hello"))))
    assert "requests were decoded" in found


@pytest.mark.parametrize("attack", ["wrong_proofs", "replayed_handshakes", "swapped_proofs"])
def test_a_proof_that_is_not_checked_is_found(monkeypatch, attack):
    monkeypatch.setattr(handshake, "is_caller_proof", lambda *_: True)
    found = failures(to_its_end(attacked(attack_named(attack))))
    assert "strangers were trusted" in found


def test_a_proof_of_a_server_that_is_not_checked_is_found(monkeypatch):
    monkeypatch.setattr(handshake, "is_server_proof", lambda *_: True)
    found = failures(to_its_end(attacked(attack_named("torn_calls"))))
    assert "as servers" in found


def test_a_nonce_that_is_used_twice_is_found(monkeypatch):
    monkeypatch.setattr(handshake, "new_nonce", lambda: b"n" * NONCE_BYTES)
    found = failures(to_its_end(attacked(attack_named("replayed_handshakes"))))
    assert "a recorded handshake was answered" in found


def test_a_bug_that_bytes_reach_is_found(monkeypatch):
    def broken(*_: Any) -> bool:
        raise IndexError("a length that is not checked")

    monkeypatch.setattr(handshake, "is_caller_proof", broken)

    async def run() -> Report:
        # In a target asyncio logs it; here that would fail the test.
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: logging.getLogger("oncelog").error("%r", context["exception"])
        )
        return await attacked(attack_named("wrong_proofs"))

    assert "a length that is not checked" in failures(to_its_end(run()))


@pytest.mark.usefixtures("_short_times")
def test_a_hello_without_a_deadline_is_found(monkeypatch):
    monkeypatch.setattr(fuzz_attacks, "CLOSING_SLACK_S", 0.2)
    monkeypatch.setattr(listener, "FIRST_FRAME_TIMEOUT_S", 60.0)
    found = failures(to_its_end(attacked(attack_named("half_hellos"))))
    assert "a connection without a proof is still open" in found


def good_report() -> Report:
    report = Report(
        calls={name: Calls(took=[1.0, 2.0, 3.0]) for name in ("before", "during", "after")}
    )
    report.memory = {
        "before": [(0.0, 30.0), (1.0, 31.0)],
        "during": [(2.0, 40.0), (3.0, 90.0)],
        "after": [(4.0, 35.0), (5.0, 36.0)],
    }
    return report


def test_the_judge_finds_nothing_in_a_good_run():
    assert good_report().failures(checks_latency=True) == []
    assert good_report().growth_mib == 5.0


def test_the_judge_finds_memory_that_grows():
    report = good_report()
    report.memory["after"] = [(4.0, 31.6 + GROWTH_MAX_MIB)]
    assert "memory grew by 65 MiB" in failures(report)


def test_the_judge_finds_honest_calls_that_fail_or_do_not_come():
    report = good_report()
    report.calls["during"].failed.append("call 3: late")
    report.calls["after"].took.clear()
    assert "1 honest calls failed during the attacks: call 3: late" in failures(report)
    assert "no honest call was answered after the attacks" in failures(report)


def test_only_long_runs_judge_latency():
    report = good_report()
    report.calls["during"].took = [11.1]
    assert report.failures(checks_latency=False) == []
    (failure,) = report.failures(checks_latency=True)
    assert "11.1 ms in the median, over 11.0 ms" in failure


@pytest.mark.parametrize(
    "counts",
    [Counts(error_count=1, errors=["why"]), Counts(early=1, begun=1), Counts(decoded=1)],
)
def test_the_judge_finds_what_a_target_counts(counts):
    assert not counts.is_clean
    report = replace(good_report(), counts=counts)
    assert len(report.failures(checks_latency=False)) == 1


def test_percentiles_and_slopes():
    assert percentile([], 50) == 0.0
    assert percentile(list(range(101)), 99) == 99
    assert slope([(0.0, 1.0), (30.0, 2.0), (60.0, 3.0)]) == pytest.approx(2.0)


# --- inputs -------------------------------------------------------------------------------------


def test_only_a_whole_good_hello_proves_anything():
    assert proves(HELLO_FRAME)
    assert proves(SERVER_HELLO_FRAME + good_calls()[0])
    for data in (b"", HELLO_FRAME[:-1], good_calls()[0] + HELLO_FRAME, b"\0" + HELLO_FRAME):
        assert not proves(data)
    assert not proves(frame(0, HELLO, CALLER_NONCE + PROOF_MARK[::-1]))
    assert proves(frame(9, HELLO, CALLER_NONCE + PROOF_MARK))
    assert proves_server(SERVER_HELLO_FRAME + good_calls()[0])
    assert not proves_server(HELLO_FRAME + SERVER_HELLO_FRAME)


def test_a_listener_accepts_what_proves_and_nothing_else():
    challenge, chance = b"c" * NONCE_BYTES, Random(5)
    for _ in range(3_000):
        data = mutated(chance, chance.choice((HELLO_FRAME, SERVER_HELLO_FRAME)))
        sent = filled(data, challenge)
        length = int.from_bytes(sent[:4], "big")
        body = sent[4 : 4 + length]
        is_hello = 9 <= length == len(body) and body[9 : 9 + body[8]] == HELLO.encode()
        is_short = length <= listener.FIRST_FRAME_MAX_BYTES
        accepted = is_hello and handshake.is_caller_proof(TOKEN, challenge, body[9 + body[8] :])
        assert proves(data) == (accepted and is_short), data.hex()


def test_an_attack_that_is_over_begins_nothing():
    async def run() -> None:
        async with listening() as (counts, port):
            to = Field(port, Random(1), end_s=0.0)
            await attack_named("torn_calls").do(to)
            assert not to.inputs
            assert counts == Counts()

    to_its_end(run())


@pytest.mark.usefixtures("_short_times")
@pytest.mark.parametrize("name", sorted({attack.name for attack in ATTACKS} - RECORDING))
def test_one_seed_gives_the_same_inputs(name):

    async def sent() -> list[bytes]:
        async with listening() as (_, port):
            to = Field(port, Random(7), SCALE)
            await attack_named(name).do(to)
            return sorted(to.inputs)

    assert to_its_end(sent()) == to_its_end(sent())
