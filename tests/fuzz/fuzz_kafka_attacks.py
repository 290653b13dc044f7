"""What is done to a gateway: ``KAFKA_ATTACKS``. A new one is as in ``fuzz_attacks.py``.

Good requests of every API and version are those that kafka-clients wrote for the codec's tests.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Final

from fuzz_attacks import (
    CLOSING_SLACK_S,
    CONNECT_TIMEOUT_S,
    HOSTS,
    Attack,
    Delivery,
    Field,
    Stranger,
    Way,
)
from fuzz_inputs import CLIENT_HELLO, LENGTHS, LENGTHS_MAX, mutated

from oncelog.actors.gateway.messages.apis import APIS, ApiKey
from oncelog.actors.gateway.messages.headers import is_flexible
from oncelog.actors.rpc.listener import FIRST_FRAME_TIMEOUT_S

SAMPLES: Final = (
    Path(__file__).resolve().parents[1] / "unit/actors/gateway/messages/kafka_messages.jsonl"
)
HUGE: Final = (
    b"\x7f\xff",
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\xfe",
    b"\xff\xff\x7f",
    b"\xff\xff\xff\xff\x0f",
    b"\x00\x01\x00\x00",
)
PIPELINED: Final = 3_000
SILENT: Final = 500
MIB: Final = 1_048_576


class KafkaField(Field):
    """A round against a gateway. Who comes by TLS shows no certificate, and must log in."""

    async def _opened(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        listeners, host = self.listeners, self.delivery.choice(HOSTS)
        opening = asyncio.open_connection(
            "127.0.0.1",
            listeners.plain_port if self.way is Way.PLAIN else listeners.tls_port,
            local_addr=(host, 0),
            ssl=listeners.foreign[1] if self.way is Way.TLS else None,
        )
        return await asyncio.wait_for(opening, CONNECT_TIMEOUT_S)

    @contextlib.asynccontextmanager
    async def stranger(self) -> AsyncIterator[Stranger | None]:
        """A connection; ``None`` if it was closed before."""
        try:
            reader, writer = await self._opened()
        except (OSError, asyncio.TimeoutError):
            self.answers["no connection"] += 1
            yield None
            return
        try:
            yield KafkaStranger(reader, writer)
        finally:
            writer.transport.abort()


class KafkaStranger(Stranger):
    """A connection of an attacker who speaks Kafka's protocol."""

    def kind(self, answer: bytes) -> str:
        """What a frame is: nobody can tell without its request."""
        return "answer"


def framed(body: bytes) -> bytes:
    """A frame."""
    return len(body).to_bytes(4, "big") + body


def header(key: int, version: int, number: int = 7) -> bytes:
    """The header of a request."""
    head = key.to_bytes(2, "big", signed=True) + version.to_bytes(2, "big", signed=True)
    tags = b"\0" if is_flexible(key, version) else b""
    return head + number.to_bytes(4, "big") + b"\0\4fuzz" + tags


@functools.cache
def good_requests() -> tuple[tuple[ApiKey, int, bytes], ...]:
    """Requests of every API and version: key, version and what follows the header."""
    keys = {api.name + "Request": api.key for api in APIS.values()}
    rows = map(json.loads, SAMPLES.read_text(encoding="utf-8").splitlines())
    return tuple(
        (keys[row["message"]], version, bytes.fromhex(row["bytes"]))
        for row in rows
        if row["message"] in keys
        for version in row["versions"]
    )


VERSIONS: Final = framed(header(ApiKey.API_VERSIONS, 0))
ALL_TOPICS: Final = framed(header(ApiKey.METADATA, 5) + b"\xff\xff\xff\xff\0")


def _whole(request: tuple[ApiKey, int, bytes]) -> bytes:
    key, version, body = request
    return framed(header(key, version) + body)


def _chosen(chance: Random) -> tuple[ApiKey, int, bytes]:
    return chance.choice(good_requests())


async def valid_requests(to: Field) -> None:
    """Good requests of every API and version, each connection with a few."""
    requests = [_whole(one) for one in to.chance.sample(good_requests(), len(good_requests()))]
    few = requests[: to.count(len(requests))]
    await to.play_all([VERSIONS + b"".join(few[at : at + 5]) for at in range(0, len(few), 5)])


async def mutated_requests(to: Field) -> None:
    """Good requests with a few changes, in frames of the right length or not."""
    chance = to.chance

    def changed() -> bytes:
        key, version, body = _chosen(chance)
        if chance.random() < 0.2:
            return VERSIONS + mutated(chance, _whole((key, version, body)))
        return VERSIONS + framed(header(key, version) + mutated(chance, body))

    await to.play_all([changed() for _ in range(to.count(1_000))])


async def truncated_requests(to: Field) -> None:
    """Frames of the right length, whose requests are cut."""
    chance = to.chance

    def cut() -> bytes:
        key, version, body = _chosen(chance)
        return VERSIONS + framed(header(key, version) + body[: chance.randrange(len(body) + 1)])

    await to.play_all([cut() for _ in range(to.count(500))])


async def huge_counts(to: Field) -> None:
    """Requests in which a count or length claims more than follows, and some where it does."""
    chance = to.chance

    def claiming() -> bytes:
        key, version, body = _chosen(chance)
        claim, at = chance.choice(HUGE), chance.randrange(len(body) + 1)
        padding = bytes(chance.choice((0, 0, 1_000, 70_000, 300_000)))
        rest = body[at + len(claim) :] + padding
        return VERSIONS + framed(header(key, version) + body[:at] + claim + rest)

    await to.play_all([claiming() for _ in range(to.count(500))])


async def dense_requests(to: Field) -> None:
    """As much as fits, of what takes most memory once it is decoded."""
    chance = to.chance
    sizes = [size for size in (60_000, MIB, 4 * MIB - 100, 5 * MIB) if size <= 5 * MIB * to.scale]

    def dense() -> bytes:
        size = chance.choice(sizes or [60_000])
        key, version, start, item = chance.choice(
            (
                (ApiKey.PRODUCE, 3, b"\xff\xff\0\1\0\0\3\xe8", b"\0\0\0\0\0\0"),
                (ApiKey.METADATA, 5, b"", b"\0\1a"),
                (ApiKey.LIST_OFFSETS, 1, b"\xff\xff\xff\xff", b"\0\0\0\0\0\0"),
                (ApiKey.OFFSET_FETCH, 5, b"\0\1g", b"\0\1a\0\0\0\0"),
                (ApiKey.CREATE_TOPICS, 3, b"", b"\0\1a" + bytes(14)),
            )
        )
        count = size // len(item)
        body = start + count.to_bytes(4, "big") + item * count + bytes(8)
        return VERSIONS + framed(header(key, version) + body)

    # A few: each keeps a gateway busy for up to seconds, as any caller may who is let in.
    for _ in range(to.count(5)):
        await to.play(dense())


async def unknown_requests(to: Field) -> None:
    """APIs and versions that there are not, and noise behind a good length."""
    chance = to.chance

    def unknown() -> bytes:
        if chance.random() < 0.3:
            return framed(chance.randbytes(chance.choice((9, 20, 500))))
        key = chance.choice((-1, 0, 1, 18, 36, 55, 71, 99, 32_767))
        version = chance.randrange(-2, 20)
        return framed(header(key, version) + chance.randbytes(chance.choice((0, 1, 30))))

    await to.play_all([unknown() for _ in range(to.count(300))])


async def huge_lengths(to: Field) -> None:
    """Frames that claim any length, and have a few bytes or a megabyte of it."""
    chance = to.chance

    def claimed() -> bytes:
        length = chance.choice(LENGTHS + LENGTHS_MAX)
        key, version, body = _chosen(chance)
        more = bytes(chance.choice((0, 64, 70_000, MIB)))
        return VERSIONS + length.to_bytes(4, "big") + header(key, version) + body + more

    await to.play_all([claimed() for _ in range(to.count(200))])


async def half_requests(to: Field) -> None:
    """Requests that never end; their connections are left after a while."""

    async def half() -> None:
        whole = _whole(_chosen(to.chance))
        data = VERSIONS + whole[: to.chance.randrange(1, len(whole))]
        await to.play(data)

    await to.at_once(half() for _ in range(to.count(500)))


async def slow_requests(to: Field) -> None:
    """Requests byte by byte."""
    await to.at_once(
        to.play(VERSIONS + _whole(_chosen(to.chance)), Delivery.TORN) for _ in range(to.count(100))
    )


async def pipelined(to: Field) -> None:
    """Thousands of requests at once, all of which are answered, and in their order."""
    for _ in range(to.count(4)):
        async with to.stranger() as stranger:
            if stranger is None:
                continue
            count = to.count(PIPELINED)
            sent = [framed(header(ApiKey.METADATA, 5, n) + bytes(5)) for n in range(count)]
            to.inputs.append(VERSIONS + sent[0])
            stranger.writer.write(VERSIONS + b"".join(sent))
            if to.way is Way.TLS:
                await to.heard(stranger)
                continue
            await stranger.answer(CONNECT_TIMEOUT_S)
            for number in range(count):
                answer = await stranger.answer(CONNECT_TIMEOUT_S)
                to.answers["answer"] += 1
                if answer is None or int.from_bytes(answer[:4], "big") != number:
                    to.wrong.append(f"answer {number} of {count} is {answer and answer[:4].hex()}")
                    break


async def never_reading(to: Field) -> None:
    """Clients that send requests and read nothing."""

    async def deaf(data: bytes) -> None:
        async with to.stranger() as stranger:
            if stranger is not None:
                to.inputs.append(data)
                stranger.reader._transport.pause_reading()  # type: ignore[attr-defined]
                stranger.writer.write(VERSIONS + data * to.count(PIPELINED))
                await asyncio.sleep(1)
                to.answers["not read"] += 1

    some = (ALL_TOPICS, VERSIONS)
    await to.at_once(deaf(to.chance.choice(some)) for _ in range(to.count(50)))


async def leaving_requests(to: Field) -> None:
    """Clients that ask, and leave before they are answered."""

    async def leave() -> None:
        async with to.stranger() as stranger:
            if stranger is not None:
                data = VERSIONS + b"".join(_whole(_chosen(to.chance)) for _ in range(3))
                to.inputs.append(data)
                stranger.writer.write(data)
                await asyncio.sleep(0.01 * to.delivery.random())
                to.answers["left"] += 1

    await to.at_once(leave() for _ in range(to.count(500)))


async def idle_connections(to: Field) -> None:
    """Connections that do nothing after they have begun."""
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(to.count(SILENT)):
            stranger = await stack.enter_async_context(to.stranger())
            if stranger is not None:
                stranger.writer.write(VERSIONS)
        to.inputs.append(VERSIONS)
        await asyncio.sleep(2)
        to.answers["idle"] += 1


def _text(text: bytes) -> bytes:
    return len(text).to_bytes(2, "big") + text


def _auth(message: bytes) -> bytes:
    body = len(message).to_bytes(4, "big") + message
    return framed(header(ApiKey.SASL_AUTHENTICATE, 1) + body)


async def bad_logins(to: Field) -> None:
    """Mechanisms that there are not, messages that are none, wrong proofs, logins that go on."""
    chance = to.chance
    first = b"n,,n=alice,r=a-nonce-that-is-always-the-same"
    names = (b"SCRAM-SHA-256", b"SCRAM-SHA-256", b"OAUTHBEARER", b"PLAIN", b"", b"\xff" * 300)

    def login() -> bytes:
        version = chance.choice((0, 1, 1, 1))
        steps = [framed(header(ApiKey.SASL_HANDSHAKE, version) + _text(chance.choice(names)))]
        for _ in range(chance.choice((1, 2, 40))):
            message = chance.choice((first, mutated(chance, first), chance.randbytes(50), b""))
            steps.append(framed(message) if not version else _auth(message))
        if chance.random() < 0.3:
            steps *= chance.choice((2, 40))
        return chance.choice((VERSIONS, b"")) + b"".join(steps) + ALL_TOPICS

    await to.play_all([login() for _ in range(to.count(300))])


async def endless_login(to: Field) -> None:
    """A login that begins again and again is closed in time all the same."""
    begin = framed(header(ApiKey.SASL_HANDSHAKE, 1) + _text(b"SCRAM-SHA-256"))
    async with to.stranger() as stranger:
        if stranger is None:
            return
        to.inputs.append(begin)

        async def go_on() -> None:
            while True:
                stranger.writer.write(begin)
                await asyncio.sleep(FIRST_FRAME_TIMEOUT_S / 4)

        going_on = asyncio.ensure_future(go_on())
        try:
            loop = asyncio.get_running_loop()
            end_s = loop.time() + FIRST_FRAME_TIMEOUT_S + CLOSING_SLACK_S
            while await stranger.answer(CLOSING_SLACK_S) is not None:
                if loop.time() > end_s:
                    to.wrong.append(f"a login without an end is still open: {begin.hex()}")
                    return
            to.answers["closed"] += 1
        finally:
            going_on.cancel()


async def no_tls(to: Field) -> None:
    """Plain frames, noise and damaged first messages of TLS where TLS must be."""
    chance = to.chance

    def noise() -> bytes:
        some = (VERSIONS, ALL_TOPICS, mutated(chance, CLIENT_HELLO), CLIENT_HELLO)
        return chance.choice(some) + chance.randbytes(chance.choice((0, 5, 2_000)))

    await to.play_all([noise() for _ in range(to.count(300))])


KAFKA_ATTACKS: Final = (
    Attack(valid_requests),
    Attack(mutated_requests),
    Attack(truncated_requests),
    Attack(huge_counts),
    Attack(dense_requests, (Way.PLAIN,)),
    Attack(unknown_requests),
    Attack(huge_lengths),
    Attack(half_requests),
    Attack(slow_requests),
    Attack(pipelined),
    Attack(never_reading),
    Attack(leaving_requests),
    Attack(idle_connections),
    Attack(bad_logins),
    Attack(endless_login, lasts=True),
    Attack(no_tls, (Way.BARE,)),
)
