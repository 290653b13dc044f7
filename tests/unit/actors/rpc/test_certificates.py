"""Which certificates count, that they are reloaded, and what is said of those that expire."""

from __future__ import annotations

import asyncio
import datetime
import logging
import os
import ssl
from pathlib import Path
from typing import Any

import pytest
from called_server import TIMEOUT_MS, Server, fetch, listener_of
from cryptography import x509
from issued_certificates import Authority

from oncelog.actors.process.clock import SystemClock
from oncelog.actors.rpc.actor_transport import FAILURES_BEFORE_RAY, ActorTransport, connect
from oncelog.actors.rpc.certificates import (
    FILES,
    IN_USE,
    OUR_FILES,
    Certificates,
    expires_at_ms,
    is_ray_plain,
)
from oncelog.actors.rpc.listener import ListenerAddress
from oncelog.actors.rpc.reloaded_files import LOOK_AGAIN_MS, WARN_AGAIN_MS
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import InvalidSettingError

HERE = "127.0.0.1"
DAY_MS = 86_400_000


class SetClock:
    """The time of day, and what a test adds to it."""

    def __init__(self) -> None:
        self.ahead_ms = 0

    def now_ms(self) -> int:
        return SystemClock().now_ms() + self.ahead_ms


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (IN_USE, *FILES, *OUR_FILES):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "ours")


def ours(issued: dict[str, str]) -> dict[str, str]:
    """Our own variables for what was issued."""
    return {our: issued[rays] for our, rays in zip(OUR_FILES, FILES, strict=True)}


def give(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    for name, text in variables.items():
        monkeypatch.setenv(name, text)


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]


def test_our_own_certificates_secure_connections_where_ray_has_none(authority, monkeypatch):
    give(monkeypatch, ours(authority.issue(HERE)))
    assert is_ray_plain()

    async def body() -> None:
        listener = listener_of(Server())
        connection = await connect(await listener.address(), timeout_ms=TIMEOUT_MS)
        assert connection is not None
        assert connection.transport is not None
        assert connection.transport.get_extra_info("ssl_object").version() == "TLSv1.3"
        connection.close()
        await listener.close()

    asyncio.run(body())


def test_with_our_own_only_what_cannot_be_connected_is_never_called_through_ray(
    authority, monkeypatch
):
    give(monkeypatch, ours(authority.issue("127.0.0.9")))

    class OnlyTells:
        """Ray, which tells where an actor listens, and has no method to carry a call."""

        async def listener_of(self, actor: str, *, timeout_ms: int) -> ListenerAddress:
            return address

    async def body() -> None:
        nonlocal address
        listener = listener_of(Server())
        address = await listener.address()
        rays: Any = OnlyTells()
        transport = ActorTransport(rays)
        for _ in range(FAILURES_BEFORE_RAY + 2):
            reply = await transport.call("partition:t-0@0", fetch(1), timeout_ms=TIMEOUT_MS)
            assert reply.error is ErrorCode.NETWORK_EXCEPTION
        await listener.close()

    address: Any = None
    asyncio.run(body())


def test_our_own_certificates_win_over_rays(authority, monkeypatch):
    give(monkeypatch, {IN_USE: "1", **dict.fromkeys(FILES, "/no/such/file")})
    with pytest.raises(InvalidSettingError, match=FILES[0]):
        Certificates(SystemClock()).context(is_caller=True)
    give(monkeypatch, ours(authority.issue(HERE)))
    assert Certificates(SystemClock()).context(is_caller=True) is not None
    assert not is_ray_plain()


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        (OUR_FILES[:1], "ONCELOG_TLS_KEY and ONCELOG_TLS_CA are not set"),
        (OUR_FILES[1:], "ONCELOG_TLS_CERT is not set, and ONCELOG_TLS_KEY='"),
        (OUR_FILES[::2], "ONCELOG_TLS_KEY is not set, and ONCELOG_TLS_CERT='"),
    ],
)
def test_some_of_our_three_settings_are_an_error_that_names_the_others(
    authority, monkeypatch, given, missing
):
    issued = authority.issue(HERE)
    give(monkeypatch, issued | {name: ours(issued)[name] for name in given})
    certificates = Certificates(SystemClock())
    with pytest.raises(InvalidSettingError, match=missing) as caught:
        certificates.context(is_caller=False)
    # The reason of a connection that fails says the same, and does not fail itself.
    assert missing in certificates.reason(caught.value)


def test_a_renewed_certificate_is_used_without_a_restart(authority, monkeypatch):
    give(monkeypatch, ours(authority.issue(HERE, days=1)))
    clock = SetClock()
    certificates = Certificates(clock)
    before = certificates.context(is_caller=False)
    expiry_ms = certificates.expires_at_ms()
    authority.issue(HERE, days=40)
    assert certificates.context(is_caller=False) is before
    clock.ahead_ms = LOOK_AGAIN_MS
    assert certificates.context(is_caller=False) is not before
    assert certificates.expires_at_ms() - expiry_ms == pytest.approx(39 * DAY_MS, abs=60_000)


def test_files_are_looked_at_once_a_second_and_kept_while_they_do_not_change(
    authority, monkeypatch
):
    give(monkeypatch, ours(authority.issue(HERE)))
    clock = SetClock()
    certificates = Certificates(clock)
    before = certificates.context(is_caller=True)
    clock.ahead_ms = 10 * LOOK_AGAIN_MS
    assert certificates.context(is_caller=True) is before
    # The clock steps back, and a file changes.
    clock.ahead_ms = -10 * LOOK_AGAIN_MS
    authority.issue(HERE)
    assert certificates.context(is_caller=True) is not before


@pytest.mark.parametrize("wrong", ["no PEM", "gone", "another key", "expired"])
def test_new_files_that_cannot_be_used_change_nothing_and_are_warned_of_once_a_minute(
    authority, monkeypatch, caplog, wrong
):
    issued = authority.issue(HERE)
    give(monkeypatch, ours(issued))
    clock = SetClock()
    certificates = Certificates(clock)
    before = certificates.context(is_caller=True)
    certificate, key = Path(issued[FILES[0]]), Path(issued[FILES[1]])
    if wrong == "no PEM":
        certificate.write_text("no PEM")
    elif wrong == "gone":
        certificate.unlink()
    elif wrong == "another key":
        key.write_text(Path(authority.issue("127.0.0.9")[FILES[1]]).read_text())
    else:
        authority.issue(HERE, days=-1)
    for ahead_s in range(2, 60, 7):
        clock.ahead_ms = 1_000 * ahead_s
        assert certificates.context(is_caller=True) is before
    (warning,) = warnings_of(caplog)
    assert f"{OUR_FILES[0]}='{certificate}'" in warning
    assert ("expired on" in warning) is (wrong == "expired")
    clock.ahead_ms += WARN_AGAIN_MS
    assert certificates.context(is_caller=True) is before
    assert len(warnings_of(caplog)) == 2
    authority.issue(HERE)
    clock.ahead_ms += LOOK_AGAIN_MS
    assert certificates.context(is_caller=True) is not before


def test_connections_use_the_certificate_that_replaced_the_one_they_began_with(
    authority, monkeypatch
):
    give(monkeypatch, ours(authority.issue(HERE)))

    async def serial_number(listener, address) -> int:
        connection = await connect(address, timeout_ms=TIMEOUT_MS)
        assert connection is not None
        assert connection.transport is not None
        secured = connection.transport.get_extra_info("ssl_object")
        connection.close()
        return x509.load_der_x509_certificate(secured.getpeercert(True)).serial_number

    async def body() -> None:
        listener = listener_of(Server())
        clock = SetClock()
        listener.certificates = Certificates(clock)
        address = await listener.address()
        first = await serial_number(listener, address)
        assert await serial_number(listener, address) == first
        authority.issue(HERE)
        clock.ahead_ms = LOOK_AGAIN_MS
        assert await serial_number(listener, address) != first
        await listener.close()

    asyncio.run(body())


# --- expiry -----------------------------------------------------------------------------------


def test_an_expired_certificate_of_our_own_is_told_with_its_date_and_file(authority, monkeypatch):
    issued = authority.issue(HERE, days=-1)
    give(monkeypatch, issued)
    day = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(days=1)
    with pytest.raises(InvalidSettingError) as caught:
        Certificates(SystemClock()).context(is_caller=True)
    assert f"{FILES[0]}='{issued[FILES[0]]}' expired on {day:%Y-%m-%d}" in str(caught.value)


def test_an_authority_that_has_expired_is_told_with_its_date_and_file(authority, monkeypatch):
    give(monkeypatch, authority.issue(HERE, days=9))
    clock = SetClock()
    clock.ahead_ms = 2 * DAY_MS
    with pytest.raises(InvalidSettingError, match=f"{FILES[2]}=.*expired on "):
        Certificates(clock).context(is_caller=True)


def test_of_several_authorities_one_that_is_valid_suffices(tmp_path, authority, monkeypatch):
    issued = authority.issue(HERE, days=9)
    other = Authority(tmp_path, "old", days=-1)
    Path(issued[FILES[2]]).write_bytes(other.path.read_bytes() + authority.path.read_bytes())
    give(monkeypatch, issued)
    assert Certificates(SystemClock()).context(is_caller=True) is not None


@pytest.mark.parametrize("expired", ["actor", "caller"])
def test_a_certificate_that_expires_while_it_is_in_use_is_told_by_whoever_has_it(
    authority, monkeypatch, caplog, expired
):
    valid, old = authority.issue(HERE), authority.issue(HERE, "127.0.0.2", days=-0.5)
    clock = SetClock()
    clock.ahead_ms = -DAY_MS

    def certificates(which: str) -> Certificates:
        give(monkeypatch, ours(old if which == expired else valid))
        held = Certificates(clock)
        assert held.context(is_caller=True) is not None
        return held

    async def body() -> None:
        listener = listener_of(Server())
        listener.certificates = certificates("actor")
        address = await listener.address()
        callers = certificates("caller")
        clock.ahead_ms = 0
        connection = await connect(address, timeout_ms=TIMEOUT_MS, certificates=callers)
        assert connection is None
        await listener.close()

    asyncio.run(body())
    told = [line for line in warnings_of(caplog) if f"{OUR_FILES[0]}='{old[FILES[0]]}' exp" in line]
    (line,) = told
    assert ("TLS handshake" in line) is (expired == "actor")
    assert any("that of the other side" in line for line in warnings_of(caplog))


@pytest.mark.parametrize("days", [1, 10_000])
def test_the_expiry_is_that_in_the_certificate(authority, days):
    """The second lies beyond 2049, and has years of four digits."""
    path = Path(authority.issue(HERE, days=days)[FILES[0]])
    certificate = x509.load_pem_x509_certificate(path.read_bytes())
    der = ssl.PEM_cert_to_DER_cert(path.read_text())
    expected = certificate.not_valid_after_utc
    assert expires_at_ms(der) == expected.timestamp() * 1_000


def test_bytes_that_are_no_certificate_have_no_expiry(authority):
    der = ssl.PEM_cert_to_DER_cert(Path(authority.issue(HERE)[FILES[0]]).read_text())
    for end in range(200):
        with pytest.raises(ValueError, match=r"\w"):
            expires_at_ms(der[:end])
    for place in range(250):
        for _ in range(4):
            damaged = bytearray(der)
            damaged[place] = os.urandom(1)[0]
            try:
                expires_at_ms(bytes(damaged))
            except ValueError:
                continue


def test_without_certificates_nothing_expires():
    assert Certificates(SystemClock()).expires_at_ms() is None
