"""The fuzz of connections finds nothing, and would find what it is for."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import AsyncIterator
from dataclasses import replace
from random import Random
from typing import Any

import fuzz_attacks
import fuzz_main
import pytest
from deadlines import DEADLINE_S, to_its_end
from fuzz_attacks import ATTACKS, Attack, Field, Files, Listeners, Way
from fuzz_inputs import (
    CALLER_NONCE,
    CLIENT_HELLO,
    HELLO_FRAME,
    PROOF_MARK,
    SERVER_HELLO_FRAME,
    TOKEN,
    filled,
    frame,
    good_calls,
    is_tls_record,
    mutated,
    proves,
    proves_server,
)
from fuzz_report import GROWTH_MAX_MIB, Report, percentile, slope
from fuzz_target import Counts, watched
from fuzz_target import listening as both_listening

from oncelog.actors.rpc import handshake, listener, message_codec
from oncelog.actors.rpc.certificates import Certificates
from oncelog.actors.rpc.door import Named
from oncelog.actors.rpc.frames import HELLO
from oncelog.actors.rpc.handshake import NONCE_BYTES
from oncelog.actors.rpc.naming import ConfiguredNaming

SCALE = 0.02
RECORDING = {"replayed_handshakes"}
"""Attacks that send what has a nonce of the listener in it."""

issued: Files
"""Certificates for the tests of this module."""

ROUNDS = [(attack, way) for attack in ATTACKS for way in attack.ways]
ROUND_IDS = [f"{attack.name}-{way.value}" for attack, way in ROUNDS]


@pytest.fixture(scope="module", autouse=True)
def _issue(tmp_path_factory: pytest.TempPathFactory) -> None:
    global issued
    issued = Files.issue(tmp_path_factory.mktemp("certificates"))


@contextlib.asynccontextmanager
async def listening() -> AsyncIterator[tuple[Counts, Listeners]]:
    with watched() as counts:
        async with both_listening(counts, issued.known) as ports:
            yield counts, Listeners.at(ports, issued)


async def attacked(*attacks: Attack, way: Way = Way.PLAIN) -> Report:
    """A small round of each attack, in this process, with the figures of a whole run."""
    report = Report()
    async with listening() as (counts, listeners):
        for number, attack in enumerate(attacks):
            to = Field(listeners, way, Random(number), SCALE)
            await attack.do(to)
            report.add(attack.name, to)
    report.counts = counts
    for of_listeners in report.calls.values():
        for calls in of_listeners.values():
            calls.took.append(1.0)
    return report


def failures(report: Report) -> str:
    return "\n".join(report.failures(checks_latency=False))


@pytest.fixture
def _short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (listener, fuzz_attacks):
        monkeypatch.setattr(module, "FIRST_FRAME_TIMEOUT_S", 0.5)


@pytest.mark.usefixtures("_short_times")
@pytest.mark.parametrize(("attack", "way"), ROUNDS, ids=ROUND_IDS)
def test_a_listener_survives(attack, way):
    report = to_its_end(attacked(attack, way=way))
    assert failures(report) == ""
    assert report.answers


@pytest.mark.parametrize("way", [Way.PLAIN, Way.TLS])
def test_proved_callers_reach_the_server_and_others_do_not(way, monkeypatch):
    # Many handshakes at once keep this process busy for longer.
    monkeypatch.setattr(fuzz_attacks, "QUIET_S", 1.0)
    attacks = {attack.name: attack for attack in ATTACKS}
    proved = to_its_end(attacked(attacks["torn_calls"], attacks["mutated_calls"], way=way))
    assert proved.counts.decoded > 0
    assert proved.answers["reply"] > 0
    before = ("random_bytes", "wrong_proofs", "swapped_proofs", "calls_without_hello")
    strangers = to_its_end(attacked(*(attacks[name] for name in before), way=way))
    assert strangers.counts == Counts()
    assert set(strangers.answers) <= {"closed", "silence"}


def test_who_speaks_no_tls_hears_nothing_but_tls():
    bare = [attack for attack in ATTACKS if Way.BARE in attack.ways and not attack.lasts]
    report = to_its_end(attacked(*bare, way=Way.BARE))
    assert report.counts == Counts()
    heard = {name for name in report.answers if not name.startswith("TLS record")}
    assert heard <= {"closed", "silence", "held in silence"}


def test_a_good_first_message_of_tls_is_answered():
    async def first_record() -> bytes | None:
        async with contextlib.AsyncExitStack() as stack:
            _, listeners = await stack.enter_async_context(listening())
            to = Field(listeners, Way.BARE, Random(1))
            stranger = await stack.enter_async_context(to.stranger())
            assert stranger is not None
            stranger.writer.write(CLIENT_HELLO)
            return await stranger.answer(DEADLINE_S)

    record = to_its_end(first_record())
    assert record is not None
    assert is_tls_record(record)
    assert record[0] == 0x16


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


def test_a_listener_that_asks_for_no_certificate_is_found(monkeypatch):
    begin = ssl.SSLContext.wrap_bio

    def careless(self: ssl.SSLContext, *arguments: Any, **options: Any) -> ssl.SSLObject:
        if self.protocol is ssl.PROTOCOL_TLS_SERVER:
            self.verify_mode = ssl.CERT_NONE
        return begin(self, *arguments, **options)

    monkeypatch.setattr(ssl.SSLContext, "wrap_bio", careless)
    found = failures(to_its_end(attacked(attack_named("foreign_certificates"), way=Way.BARE)))
    assert "who is not certified was answered" in found


def test_a_certificate_that_names_anybody_is_found(monkeypatch):
    named = Named("honest", expires_at_ms=None)
    monkeypatch.setattr(ConfiguredNaming, "named_by", lambda *_: named)
    found = failures(to_its_end(attacked(attack_named("nameless_proofs"), way=Way.TLS)))
    assert "strangers were trusted" in found


def test_an_answer_without_tls_is_found(monkeypatch):
    monkeypatch.setattr(Certificates, "context", lambda *_, **__: None)
    found = failures(to_its_end(attacked(attack_named("random_bytes"), way=Way.BARE)))
    assert "an answer is none" in found


def good_report() -> Report:
    report = Report()
    for of_listeners in report.calls.values():
        for calls in of_listeners.values():
            calls.took += [1.0, 2.0, 3.0]
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
    report.calls["during"]["tls"].failed.append("call 3: late")
    report.calls["after"]["plain"].took.clear()
    assert "1 honest calls (tls) failed during the attacks: call 3: late" in failures(report)
    assert "no honest call (plain) was answered after the attacks" in failures(report)


def test_only_long_runs_judge_latency():
    report = good_report()
    report.calls["during"]["tls"].took = [11.1]
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


def test_what_listeners_with_certificates_say_is_told_from_frames():
    assert is_tls_record(CLIENT_HELLO)
    assert not is_tls_record(HELLO_FRAME)
    assert not is_tls_record(b"\x16\x03\x03\xff\xff")


def test_an_attack_that_is_over_begins_nothing():
    async def run() -> None:
        async with listening() as (counts, listeners):
            to = Field(listeners, Way.PLAIN, Random(1), end_s=0.0)
            await attack_named("torn_calls").do(to)
            assert not to.inputs
            assert counts == Counts()

    to_its_end(run())


@pytest.mark.usefixtures("_short_times")
@pytest.mark.parametrize(
    ("attack", "way"),
    # By TLS they are the same, but who is late for its handshake sends nothing.
    [one for one in ROUNDS if one[0].name not in RECORDING and one[1] is not Way.TLS],
)
def test_one_seed_gives_the_same_inputs(attack, way):
    async def sent() -> list[bytes]:
        async with listening() as (_, listeners):
            to = Field(listeners, way, Random(7), SCALE)
            await attack.do(to)
            return sorted(to.inputs)

    assert to_its_end(sent()) == to_its_end(sent())
