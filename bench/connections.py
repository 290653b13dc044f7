"""Connections a second that one listener accepts, each until its caller has proved who it is.

``./run bench connections [--rounds N]``. Some are plain, others secured by TLS with certificates of
ECDSA P-256. Listener and callers are a process each, so on two cores each has one. Beside the rate
it tells how long each side computes for a connection, and what of that is TLS alone: the same
handshake in memory, without asyncio. The run is appended to ``bench/results/connections.jsonl``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import json
import os
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import uvloop

from measuring.report import ROUNDS, Report, save
from oncelog.actors.process.clock import SystemClock
from oncelog.actors.protocol.messages.access import Access, User
from oncelog.actors.protocol.scram import DEFAULT_ITERATIONS, make_credential
from oncelog.actors.rpc.actor_transport import ActorConnection, connect
from oncelog.actors.rpc.certificates import OUR_FILES, Certificates
from oncelog.actors.rpc.dispatch import Dispatch
from oncelog.actors.rpc.door import Door
from oncelog.actors.rpc.handshake import (
    CertificateIdentity,
    Identity,
    ProgramIdentity,
    UserIdentity,
)
from oncelog.actors.rpc.listener import Listener, ListenerAddress
from oncelog.actors.rpc.naming import ConfiguredNaming

ROOT: Final = Path(__file__).resolve().parents[1]
RESULTS: Final = ROOT / "bench" / "results" / "connections.jsonl"
HOST: Final = "127.0.0.1"
TOKEN: Final = b"t" * 32
USER: Final = "alice"
PASSWORD: Final = "of the bench"
CONNECTIONS: Final = 1_000
AT_ONCE: Final = 50
HANDSHAKES: Final = 300
TIMEOUT_MS: Final = 30_000
AT_LEAST: Final = 1_000.0


# --- the listener -----------------------------------------------------------------------------


async def _serve() -> None:
    """Listen; tell the port, and for each line of input the CPU seconds so far."""
    credential = make_credential(PASSWORD, b"s" * 16, DEFAULT_ITERATIONS)
    door = Door(
        Access(users=(User(name=USER, credential=credential),)),
        naming=ConfiguredNaming("DEFAULT"),
    )
    listener = Listener(Dispatch(object(), on_bug=_end, door=door), host=HOST, token=TOKEN)
    _tell((await listener.address()).port)
    lines = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while await lines.readline():
        _tell(time.process_time())


def _end(bug: BaseException) -> None:
    raise bug


def _tell(number: float) -> None:
    sys.stdout.write(json.dumps(number) + "\n")
    sys.stdout.flush()


class _ListenerProcess:
    """A listener in a process of its own; it ends with its input."""

    def __init__(self, variables: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **variables},
        )
        self.address = ListenerAddress(host=HOST, port=int(self._told()), token=TOKEN)

    def _told(self) -> float:
        assert self._process.stdout is not None
        told: float = json.loads(self._process.stdout.readline())
        return told

    def cpu_s(self) -> float:
        """What it has computed so far."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self._told()

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


# --- its callers ------------------------------------------------------------------------------


async def _connect_all(address: ListenerAddress, identity: Identity, count: int) -> None:
    # One for all, as a program has it.
    certificates = identity.certificates(SystemClock())
    left = count

    async def caller() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            made = await connect(
                address, timeout_ms=TIMEOUT_MS, identity=identity, certificates=certificates
            )
            assert isinstance(made, ActorConnection), made
            made.close()

    await asyncio.gather(*(caller() for _ in range(min(AT_ONCE, count))))


@contextlib.contextmanager
def _secured(variables: dict[str, str]) -> Iterator[None]:
    """Within, this process has these certificates; without any its connections are plain."""
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]


class _Way:
    """One way to connect, and the samples of its rounds."""

    def __init__(
        self, process: _ListenerProcess, identity: Identity, variables: dict[str, str]
    ) -> None:
        self._process, self._identity, self._variables = process, identity, variables
        self.per_s: list[float] = []
        self.listener_ms: list[float] = []
        self.caller_ms: list[float] = []

    def connect(self, count: int) -> None:
        """Make connections; the first also computes the keys of a password."""
        with _secured(self._variables):
            uvloop.run(_connect_all(self._process.address, self._identity, count))

    def measure(self) -> None:
        """One round."""
        listener_s, caller_s, began_s = (
            self._process.cpu_s(),
            time.process_time(),
            time.perf_counter(),
        )
        self.connect(CONNECTIONS)
        self.per_s.append(CONNECTIONS / (time.perf_counter() - began_s))
        self.caller_ms.append(1e3 * (time.process_time() - caller_s) / CONNECTIONS)
        self.listener_ms.append(1e3 * (self._process.cpu_s() - listener_s) / CONNECTIONS)


# --- TLS alone --------------------------------------------------------------------------------


def _handshake_ms() -> tuple[float, float]:
    """What a handshake in memory costs the listener and the caller."""
    certificates = Certificates(SystemClock())
    taken = [0.0, 0.0]
    for _ in range(HANDSHAKES):
        to_caller, to_listener = ssl.MemoryBIO(), ssl.MemoryBIO()
        sides: list[Any] = []
        for is_caller, name in ((False, None), (True, HOST)):
            context = certificates.context(is_caller=is_caller)
            assert context is not None
            ends = (to_caller, to_listener) if is_caller else (to_listener, to_caller)
            began_s = time.process_time()
            sides.append(context.wrap_bio(*ends, server_side=not is_caller, server_hostname=name))
            taken[is_caller] += time.process_time() - began_s
        # Hello; answer; the caller's proof; the listener's check of it, and what it says then.
        for number in (1, 0, 1, 0, 1):
            began_s = time.process_time()
            with contextlib.suppress(ssl.SSLWantReadError):
                sides[number].do_handshake()
                sides[number].read(1)
            taken[number] += time.process_time() - began_s
    return 1e3 * taken[0] / HANDSHAKES, 1e3 * taken[1] / HANDSHAKES


# --- the run ----------------------------------------------------------------------------------


@contextlib.contextmanager
def _certified() -> Iterator[dict[str, str]]:
    """The variables with certificates for this machine."""
    sys.path.append(str(ROOT / "tests" / "helpers"))
    issued_certificates = importlib.import_module("issued_certificates")
    with tempfile.TemporaryDirectory() as directory:
        issued = issued_certificates.Authority(Path(directory), "bench").issue(HOST)
        files = (issued[f"RAY_TLS_{name}"] for name in ("SERVER_CERT", "SERVER_KEY", "CA_CERT"))
        yield dict(zip(OUR_FILES, files, strict=True))


def _measure(report: Report, ways: dict[str, _Way], variables: dict[str, str]) -> None:
    for way in ways.values():
        way.connect(AT_ONCE)
    for _ in range(report.rounds):
        for way in ways.values():
            way.measure()
    with _secured(variables):
        _handshake_ms()
        alone = [_handshake_ms() for _ in range(report.rounds)]
    for name, side in (("listener", 0), ("caller", 1)):
        taken_ms = statistics.median(sample[side] for sample in alone)
        report.figure(f"handshake_{name}_ms", taken_ms, f"{taken_ms:8.3f} ms, TLS alone")
    for name, way in ways.items():
        for what, samples in (("listener_ms", way.listener_ms), ("caller_ms", way.caller_ms)):
            value = statistics.median(samples)
            report.figure(f"{name}_{what}", value, f"{value:8.3f} ms of CPU a connection")
        report.target(f"{name}_per_s", statistics.median(way.per_s), AT_LEAST)


def main() -> int:
    """Measure, and append what was found; 1 if a target was missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        uvloop.run(_serve())
        return 0
    report = Report(rounds=options.rounds)
    with _certified() as variables, contextlib.ExitStack() as stack:
        plain, secured = _ListenerProcess({}), _ListenerProcess(variables)
        for process in (plain, secured):
            stack.callback(process.close)
        certificate, key = (Path(variables[name]) for name in OUR_FILES[:2])
        _measure(
            report,
            {
                "plain": _Way(plain, ProgramIdentity(), {}),
                "tls": _Way(secured, ProgramIdentity(), variables),
                "tls_password": _Way(secured, UserIdentity(USER, PASSWORD), variables),
                "tls_certificate": _Way(secured, CertificateIdentity(certificate, key), variables),
            },
            variables,
        )
    save(RESULTS, "connections", report)
    return int(not all(target["met"] for target in report.targets))


if __name__ == "__main__":
    sys.exit(main())
