"""What is done to a listener: ``ATTACKS``. Each draws from its own seed and sends *inputs*.

A new one is a function of a ``Field`` and a row of ``ATTACKS``. It sends bytes with
``Field.play``, which notes what came back.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import enum
import math
import re
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

from fuzz_inputs import (
    CALLER_NONCE,
    CLIENT_HELLO,
    HELLO_FRAME,
    LENGTHS,
    LENGTHS_MAX,
    LOGIN_FRAME,
    PROOF_MARK,
    SERVER_HELLO_FRAME,
    SERVER_MARK,
    claimed,
    filled,
    frame,
    good_calls,
    hostile_message,
    is_tls_record,
    mutated,
    proves,
    proves_server,
)
from issued_certificates import Authority

from oncelog.actors.rpc.certificates import FILES, OUR_FILES
from oncelog.actors.rpc.frames import FRAME_MAX_BYTES, HELLO, HELLO_ID, Outcome
from oncelog.actors.rpc.handshake import CERTIFICATE, NONCE_BYTES, PROOF_BYTES, SCRAM, TOKEN
from oncelog.actors.rpc.listener import FIRST_FRAME_TIMEOUT_S
from oncelog.actors.rpc.message_codec import REQUESTS

NONCE_IN_ANSWER: Final = re.compile(rb"r=[!-+\--~]+")
QUIET_S: Final = 0.15
"""No more answers are expected after this time without one."""

CONNECT_TIMEOUT_S: Final = 15.0
CLOSING_SLACK_S: Final = 15.0
"""How much later than promised a connection may be closed, on a busy machine."""

AT_ONCE: Final = 50
HOSTS: Final = tuple(f"127.0.0.{number}" for number in range(2, 10))
"""Where strangers come from: all of 127.0.0.0/8 is this machine."""

SILENT_CONNECTIONS: Final = 10_000


class Way(enum.Enum):
    """How strangers come to a listener."""

    PLAIN = "plain"
    """To the one without certificates."""

    TLS = "tls"
    """To the one with certificates, with a good one of their own."""

    BARE = "bare"
    """To the one with certificates, without TLS."""


@dataclass(frozen=True, slots=True)
class Files:
    """Our variables for certificates: those of the target, and of an authority unknown to it."""

    known: dict[str, str]
    foreign: dict[str, str]

    @classmethod
    def issue(cls, directory: Path) -> Files:
        """Make them in ``directory``."""
        found = []
        for name in ("ours", "theirs"):
            issued = Authority(directory, name).issue("127.0.0.1")
            found.append({ours: issued[ray] for ours, ray in zip(OUR_FILES, FILES, strict=True)})
        return cls(*found)


@dataclass(frozen=True, slots=True)
class Listeners:
    """Where the two listeners of a target are, and what strangers show to that with certificates.

    ``foreign``: without a certificate, or with one of an authority that the target does not trust.
    """

    plain_port: int
    tls_port: int
    certified: ssl.SSLContext
    foreign: tuple[ssl.SSLContext, ...]

    @classmethod
    def at(cls, ports: Mapping[str, int], files: Files) -> Listeners:
        """Those at the ``ports`` that a target tells."""
        authority = files.known[OUR_FILES[2]]
        certified, foreign, nameless = (
            ssl.create_default_context(cafile=authority) for _ in range(3)
        )
        for context, shown in ((certified, files.known), (foreign, files.foreign)):
            context.load_cert_chain(*(shown[name] for name in OUR_FILES[:2]))
        return cls(ports["plain"], ports["tls"], certified, (foreign, nameless))


class Delivery(enum.Enum):
    """How the bytes of an input are written."""

    WHOLE = "whole"
    TORN = "torn"


@dataclass(slots=True)
class Field:
    """One round of one attack, and what it saw. ``scale`` 1 is the size of a real run.

    After ``end_s`` of the loop nothing more begins. A round is not cancelled, so all is counted.
    """

    listeners: Listeners
    way: Way
    chance: Random
    scale: float = 1.0
    end_s: float = math.inf
    answers: Counter[str] = field(default_factory=Counter)
    inputs: list[bytes] = field(default_factory=list)
    """What was sent, to find the one that did harm."""

    proved: int = 0
    """Connections that the listener may have taken for callers."""

    proved_servers: int = 0
    """Those of them that it may have taken for servers."""

    wrong: list[str] = field(default_factory=list)
    delivery: Random = field(default_factory=lambda: Random(0))
    """For what depends on the order of answers, which no seed decides: ``chance`` draws inputs."""

    def count(self, full: int) -> int:
        """How many, at this scale."""
        return max(2, int(full * self.scale))

    @property
    def hellos(self) -> tuple[bytes, ...]:
        """Good first inputs."""
        hellos = (HELLO_FRAME, SERVER_HELLO_FRAME)
        return (*hellos, CLIENT_HELLO) if self.way is Way.BARE else hellos

    async def _opened(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        listeners, host = self.listeners, self.delivery.choice(HOSTS)
        opening = asyncio.open_connection(
            "127.0.0.1",
            listeners.plain_port if self.way is Way.PLAIN else listeners.tls_port,
            local_addr=(host, 0),
            ssl=listeners.certified if self.way is Way.TLS else None,
        )
        return await asyncio.wait_for(opening, CONNECT_TIMEOUT_S)

    @contextlib.asynccontextmanager
    async def stranger(self) -> AsyncIterator[Stranger | None]:
        """A connection that has been challenged; ``None`` if it was closed before.

        Without the TLS that it should have it is not challenged.
        """
        try:
            reader, writer = await self._opened()
        except (OSError, asyncio.TimeoutError):
            self.answers["no connection"] += 1
            yield None
            return
        if self.way is Way.BARE:
            try:
                yield _Bare(reader, writer)
            finally:
                writer.transport.abort()
            return
        stranger = Stranger(reader, writer)
        try:
            first = await stranger.answer(CONNECT_TIMEOUT_S)
            if first is None:
                self.answers["closed at once"] += 1
            elif first[8] != Outcome.CHALLENGE or len(first) != 9 + NONCE_BYTES:
                self.wrong.append(f"the first frame is no challenge: {first.hex()}")
            else:
                stranger.challenge = first[-NONCE_BYTES:]
            yield stranger if stranger.challenge else None
        finally:
            writer.transport.abort()

    async def play(self, data: bytes, delivery: Delivery = Delivery.WHOLE) -> list[bytes]:
        """Send an input on a new connection; returns the answers after the challenge."""
        async with self.stranger() as stranger:
            if stranger is None:
                return []
            self.note(data)
            sent = filled(data, stranger.challenge)
            if delivery is Delivery.TORN:
                await stranger.send_torn(sent, self.delivery)
            else:
                stranger.writer.write(sent)
            return await self.heard(stranger)

    def note(self, data: bytes) -> None:
        """Remember an input that is about to be sent."""
        self.inputs.append(data)
        if self.way is not Way.BARE:
            self.proved += proves(data)
            self.proved_servers += proves_server(data)

    async def heard(self, stranger: Stranger) -> list[bytes]:
        """Count the answers until there are no more."""
        found = []
        while True:
            try:
                answer = await stranger.answer(QUIET_S)
            except asyncio.TimeoutError:
                self.answers["silence"] += not found
                return found
            if answer is None:
                self.answers["closed"] += 1
                return found
            found.append(answer)
            self.answers[stranger.kind(answer)] += 1

    async def play_all(self, inputs: Iterable[bytes]) -> None:
        """Play inputs, many at once."""
        delivery = self.chance.choice(list(Delivery))
        await self.at_once(self.play(data, delivery) for data in inputs)

    async def at_once(self, works: Iterable[Coroutine[Any, Any, object]]) -> None:
        """Do these, so many at a time, as long as the round lasts."""
        loop, left = asyncio.get_running_loop(), iter(works)

        async def worker() -> None:
            while loop.time() < self.end_s:
                work = next(left, None)
                if work is None:
                    return
                await work

        await asyncio.gather(*(worker() for _ in range(AT_ONCE)))


class Stranger:
    """A connection of an attacker, and what the listener began it with."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.challenge = b""

    async def answer(self, timeout_s: float) -> bytes | None:
        """The next frame without its length, or ``None`` once the connection is closed."""
        return await asyncio.wait_for(self._answer(), timeout_s)

    async def _answer(self) -> bytes | None:
        try:
            length = int.from_bytes(await self.reader.readexactly(4), "big")
            return await self.reader.readexactly(length)
        except (asyncio.IncompleteReadError, OSError):
            return None

    def kind(self, answer: bytes) -> str:
        """What a frame is."""
        return _kind(answer)

    async def send_torn(self, data: bytes, chance: Random) -> None:
        """Send in pieces, between which others have a turn."""
        while data and not self.writer.transport.is_closing():
            size = chance.choice((1, 3, 4, 13, 200, len(data)))
            self.writer.write(data[:size])
            data = data[size:]
            await asyncio.sleep(0)

    async def is_closed(self, timeout_s: float) -> bool:
        """Whether the listener closes the connection in this time."""
        try:
            while await self.answer(timeout_s) is not None:
                pass
        except asyncio.TimeoutError:
            return False
        return True


class _Bare(Stranger):
    """A connection without TLS to a listener that has certificates: it hears of TLS only."""

    async def _answer(self) -> bytes | None:
        try:
            head = await self.reader.readexactly(5)
            if not is_tls_record(head):
                return head
            return head + await self.reader.readexactly(int.from_bytes(head[3:], "big"))
        except (asyncio.IncompleteReadError, OSError):
            return None

    def kind(self, answer: bytes) -> str:
        return f"TLS record {answer[0]}" if is_tls_record(answer) else "unknown"


def _kind(answer: bytes) -> str:
    if len(answer) < 9 or answer[8] not in set(Outcome):
        return "unknown"
    return Outcome(answer[8]).name.lower()


# --- before a proof -----------------------------------------------------------------------------


async def random_bytes(to: Field) -> None:
    """Noise, some of it with a length that fits."""
    chance = to.chance

    def noise() -> bytes:
        data = chance.randbytes(chance.choice((1, 4, 13, 100, 2_000)))
        return data if chance.random() < 0.5 else len(data).to_bytes(4, "big") + data

    await to.play_all([noise() for _ in range(to.count(300))])


async def mutated_hellos(to: Field) -> None:
    """Good hellos with a few changes."""
    hellos = [to.chance.choice(to.hellos) for _ in range(to.count(300))]
    await to.play_all([mutated(to.chance, hello) for hello in hellos])


async def wrong_proofs(to: Field) -> None:
    """A flood of hellos of the right form, whose proofs are not."""

    def hello() -> bytes:
        proofs = to.chance.randbytes(PROOF_BYTES * to.chance.choice((1, 2)))
        return frame(HELLO_ID, HELLO, CALLER_NONCE + proofs)

    await to.play_all([hello() for _ in range(to.count(1_000))])


async def swapped_proofs(to: Field) -> None:
    """The proof of a server in the place of a caller's, and the other way round."""
    messages = (SERVER_MARK, SERVER_MARK + PROOF_MARK, PROOF_MARK, PROOF_MARK * 3, b"")
    hellos = [frame(HELLO_ID, HELLO, CALLER_NONCE + message) for message in messages[:2]]
    hellos += [frame(HELLO_ID, HELLO, message) for message in messages]
    await to.play_all(hellos)


async def logins(to: Field) -> None:
    """Users who do not know the password: right and damaged messages, in both steps."""
    firsts = [LOGIN_FRAME, *(mutated(to.chance, LOGIN_FRAME) for _ in range(to.count(300)))]
    finals = [to.chance.randbytes(32) for _ in firsts]
    await to.at_once(_login(to, *step) for step in zip(firsts, finals, strict=True))


async def _login(to: Field, first: bytes, proof: bytes) -> None:
    async with to.stranger() as stranger:
        if stranger is None:
            return
        to.note(first)
        stranger.writer.write(first)
        answers = await to.heard(stranger)
        nonce = NONCE_IN_ANSWER.search(b"".join(answers))
        if nonce is not None:
            final = b"c=biws," + nonce[0] + b",p=" + base64.b64encode(proof)
            step = frame(HELLO_ID, SCRAM, final)
            if proof[0] % 2:
                step = mutated(Random(proof), step)
            stranger.writer.write(step + good_calls()[0])
            await to.heard(stranger)


async def replayed_handshakes(to: Field) -> None:
    """What a good caller sent on one connection, on another one."""
    for _ in range(to.count(10)):
        async with to.stranger() as first:
            if first is None:
                continue
            data = to.chance.choice((HELLO_FRAME, SERVER_HELLO_FRAME))
            to.note(data)
            recorded = filled(data + good_calls()[0], first.challenge)
            first.writer.write(recorded)
            await to.heard(first)
        if await to.play(recorded):
            to.wrong.append(f"a recorded handshake was answered: {recorded.hex()}")


async def calls_without_hello(to: Field) -> None:
    """Good calls as the first frames; also short ones, which fit a first frame."""
    calls = [call for call in good_calls() for _ in range(to.count(20))]
    wrong = frame(HELLO_ID, HELLO, to.chance.randbytes(NONCE_BYTES + PROOF_BYTES))
    calls += [wrong + call for call in good_calls() for _ in range(to.count(20))]
    # Before a hello that is good but comes too late.
    calls += [call + HELLO_FRAME for call in good_calls()]
    await to.play_all(calls)


async def huge_lengths(to: Field) -> None:
    """First frames that claim any length, and have a few bytes or a megabyte of it."""
    chance = to.chance
    lengths = [length for length in LENGTHS + LENGTHS_MAX for _ in range(to.count(10))]
    sizes = (0, 64, 1_100, 1_000_000)
    await to.play_all(
        [
            claimed(length, HELLO_ID, HELLO, chance.randbytes(chance.choice(sizes)))
            for length in lengths
        ]
    )


async def silent_connections(to: Field) -> None:
    """Thousands of connections that send nothing, held as long as the listener lets them."""
    async with contextlib.AsyncExitStack() as held:

        async def hold() -> None:
            stranger = await held.enter_async_context(to.stranger())
            to.answers["held in silence"] += stranger is not None

        await to.at_once(hold() for _ in range(to.count(SILENT_CONNECTIONS)))


async def half_hellos(to: Field) -> None:
    """Hellos that stop: the listener closes them after their time."""
    await asyncio.gather(*(_half_hello(to) for _ in range(to.count(100))))


async def _half_hello(to: Field) -> None:
    hello = to.chance.choice((to.hellos[0], to.hellos[-1]))
    data = hello[: to.chance.randrange(len(hello))]
    async with to.stranger() as stranger:
        if stranger is None:
            return
        to.note(data)
        stranger.writer.write(filled(data, stranger.challenge))
        await _closed_in_time(to, stranger, data)


async def slow_hellos(to: Field) -> None:
    """Hellos of one byte a second: each arrives, but no hello may take so long."""
    await asyncio.gather(*(_slow_hello(to) for _ in range(to.count(50))))


async def _slow_hello(to: Field) -> None:
    async with to.stranger() as stranger:
        if stranger is None:
            return
        hello = to.hellos[-1]
        to.inputs.append(hello)

        async def drip() -> None:
            for byte in filled(hello, stranger.challenge):
                stranger.writer.write(bytes([byte]))
                await asyncio.sleep(1)

        dripping = asyncio.ensure_future(drip())
        await _closed_in_time(to, stranger, hello)
        dripping.cancel()


async def _closed_in_time(to: Field, stranger: Stranger, data: bytes) -> None:
    if await stranger.is_closed(FIRST_FRAME_TIMEOUT_S + CLOSING_SLACK_S):
        to.answers["closed"] += 1
    else:
        to.wrong.append(f"a connection without a proof is still open: {data.hex()}")


async def nameless_proofs(to: Field) -> None:
    """Certificates that no rule names, and tokens that are none; then a call."""

    chance = to.chance
    messages = (b"", b"honest", b"a.b.c", chance.randbytes(300))
    claims = [frame(HELLO_ID, way, text) for way in (CERTIFICATE, TOKEN) for text in messages]
    claims += [mutated(chance, chance.choice(claims)) for _ in range(to.count(300))]
    await to.play_all([claim + good_calls()[0] for claim in claims])


async def broken_handshakes(to: Field) -> None:
    """A good first message of TLS, and then nothing, noise or plain frames."""
    chance = to.chance

    def rest() -> bytes:
        size = chance.choice((1, 5, 100, 20_000))
        record = b"\x17\x03\x03" + chance.choice(LENGTHS).to_bytes(4, "big")[2:]
        return chance.choice((b"", b"", HELLO_FRAME, record)) + chance.randbytes(size)

    await to.play_all([CLIENT_HELLO, *(CLIENT_HELLO + rest() for _ in range(to.count(300)))])


async def foreign_certificates(to: Field) -> None:
    """TLS without a certificate, or with one of an unknown authority."""
    contexts = [to.chance.choice(to.listeners.foreign) for _ in range(to.count(100))]
    await to.at_once(_foreign(to, context) for context in contexts)


async def _foreign(to: Field, context: ssl.SSLContext) -> None:
    # In TLS 1.3 it takes the connection for secured before the listener has judged it.
    heard = b""
    with contextlib.suppress(OSError, asyncio.TimeoutError):
        opening = asyncio.open_connection("127.0.0.1", to.listeners.tls_port, ssl=context)
        reader, writer = await asyncio.wait_for(opening, CONNECT_TIMEOUT_S)
        try:
            writer.write(HELLO_FRAME)
            heard = await asyncio.wait_for(reader.read(100), CONNECT_TIMEOUT_S)
        finally:
            writer.transport.abort()
    to.answers["closed"] += not heard
    if heard:
        to.wrong.append(f"who is not certified was answered: {heard.hex()}")


# --- after a proof ------------------------------------------------------------------------------


async def torn_calls(to: Field) -> None:
    """Good calls in pieces, each of which is answered."""
    data = HELLO_FRAME + b"".join(good_calls())

    async def play() -> None:
        answers = await to.play(data, Delivery.TORN)
        if any(_kind(answer) != "reply" for answer in answers):
            to.wrong.append(f"good calls were not answered as such: {data.hex()}")

    await to.at_once(play() for _ in range(to.count(50)))


async def mutated_calls(to: Field) -> None:
    """Good calls with a few changes, behind a good hello."""
    chance = to.chance
    calls = good_calls()

    def changed() -> bytes:
        chosen = [chance.choice(calls) for _ in range(chance.randrange(1, 4))]
        return HELLO_FRAME + mutated(chance, b"".join(chosen))

    await to.play_all([changed() for _ in range(to.count(600))])


async def hostile_messages(to: Field) -> None:
    """Frames of the right length, in which values claim more than follows."""
    chance = to.chance
    methods = sorted(REQUESTS)

    def call() -> bytes:
        method = chance.choice(methods)
        return frame(7, method, hostile_message(chance, method))

    inputs = [HELLO_FRAME + b"".join(call() for _ in range(5)) for _ in range(to.count(300))]
    await to.play_all(inputs)


async def hostile_names(to: Field) -> None:
    """Calls of methods, and of replicas, that there are not."""
    chance = to.chance

    def call() -> bytes:
        name = chance.choice((b"__class__", b"warnings", b"produce/", b"/", b"hello", b""))
        name += chance.randbytes(chance.choice((0, 1, 100)))
        head = (9 + len(name)).to_bytes(4, "big") + (7).to_bytes(8, "big")
        return head + bytes([len(name)]) + name

    await to.play_all([HELLO_FRAME + call() for _ in range(to.count(200))])


async def huge_claims(to: Field) -> None:
    """Calls that claim any length and bring little of it; then their connection is lost."""
    chance = to.chance
    lengths = [65_533, 65_537, 2**24, FRAME_MAX_BYTES, FRAME_MAX_BYTES + 1, *LENGTHS_MAX]

    def call() -> bytes:
        body = chance.randbytes(chance.choice((0, 100, 70_000)))
        return HELLO_FRAME + claimed(chance.choice(lengths), 7, "produce", body)

    await to.play_all([call() for _ in range(to.count(100))])


@dataclass(frozen=True, slots=True)
class Attack:
    """What is done, and the ways; ``lasts`` if it goes on beside the others."""

    do: Callable[[Field], Awaitable[None]]
    ways: tuple[Way, ...] = (Way.PLAIN, Way.TLS)
    lasts: bool = False

    @property
    def name(self) -> str:
        return self.do.__name__


EVERY_WAY: Final = tuple(Way)

ATTACKS: Final = (
    Attack(random_bytes, EVERY_WAY),
    Attack(mutated_hellos, EVERY_WAY),
    Attack(wrong_proofs),
    Attack(swapped_proofs),
    Attack(logins),
    Attack(replayed_handshakes),
    Attack(calls_without_hello, EVERY_WAY),
    Attack(huge_lengths, EVERY_WAY),
    Attack(silent_connections, EVERY_WAY),
    Attack(half_hellos, EVERY_WAY, lasts=True),
    Attack(slow_hellos, EVERY_WAY, lasts=True),
    Attack(nameless_proofs),
    Attack(broken_handshakes, (Way.BARE,)),
    Attack(foreign_certificates, (Way.BARE,)),
    Attack(torn_calls),
    Attack(mutated_calls),
    Attack(hostile_messages),
    Attack(hostile_names),
    Attack(huge_claims),
)
