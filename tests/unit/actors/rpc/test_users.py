"""Users at the door of a process: who may log in, what they may ask, and when they must go."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from called_server import TIMEOUT_MS, TOKEN, Link, Server, fetch, frame, linked, produce
from deadlines import until
from inside import callers_of
from msgspec import structs
from virtual_time import START_MS, give_turns, run_virtually

from oncelog.actors.launch.host import FetchSessions
from oncelog.actors.process.background import OwnTasks
from oncelog.actors.protocol.access import RAY, SERVER, Principal, Split
from oncelog.actors.protocol.messages.access import (
    NO_ACCESS,
    Access,
    AccessReply,
    AccessRequest,
    Acl,
    LearnAccessRequest,
    Operation,
    Resource,
    Rules,
    User,
)
from oncelog.actors.protocol.messages.base import Request
from oncelog.actors.protocol.messages.cluster import MetadataRequest, ShutdownRequest
from oncelog.actors.protocol.messages.partition import (
    DescribeReplicaRequest,
    FetchReply,
    FetchRequest,
    FetchTogetherRequest,
    SharedFetch,
)
from oncelog.actors.protocol.messages.replication import DescribeVoterRequest
from oncelog.actors.protocol.scram import ITERATIONS_MIN, make_credential
from oncelog.actors.rpc import admission
from oncelog.actors.rpc import listener as listener_module
from oncelog.actors.rpc.actor_transport import (
    FAILURES_BEFORE_RAY,
    ActorConnection,
    ActorTransport,
    NoConnection,
    connect,
)
from oncelog.actors.rpc.dispatch import Dispatch
from oncelog.actors.rpc.door import Door, Named
from oncelog.actors.rpc.handshake import (
    Ending,
    Identity,
    ProgramIdentity,
    Reception,
    UserIdentity,
)
from oncelog.actors.rpc.listener import Listener, ListenerAddress
from oncelog.api.processing.messages import WorkerStatus, WorkerStatusRequest
from oncelog.storage.errors import ErrorCode

SECRET = b"known to servers"
PASSWORD = "correct horse"
ALICE = "User:alice"


def credential(password: str = PASSWORD) -> Any:
    return make_credential(password, b"salt of 16 bytes", ITERATIONS_MIN)


def acl(operation: Operation, topic: str = "flights") -> Acl:
    return Acl(principal=ALICE, resource=Resource.TOPIC, name=topic, operation=operation)


def access(*acls: Acl, version: int = 1, password: str = PASSWORD, is_on: bool = True) -> Access:
    """A cluster whose only user is alice."""
    rules = Rules(version=version, is_on=is_on, acls=acls)
    return Access(rules=rules, users=(User(name="alice", credential=credential(password)),))


@pytest.fixture(autouse=True)
def _no_delay(monkeypatch):
    monkeypatch.setattr(listener_module, "REFUSAL_DELAY_S", 0.0)


@contextlib.asynccontextmanager
async def behind(door: Door) -> AsyncIterator[tuple[Server, Listener]]:
    server = Server()
    dispatch = Dispatch(server, on_bug=server.die_of_bug, door=door)
    listener = Listener(dispatch, host="127.0.0.1", token=TOKEN, server_secret=SECRET)
    try:
        yield server, listener
    finally:
        await listener.close()


async def joined(listener: Listener, identity: Identity) -> Any:
    """A connection, or the code that says why there is none."""
    made = await connect(await listener.address(), timeout_ms=TIMEOUT_MS, identity=identity)
    return made.error if isinstance(made, NoConnection) else made


async def asked(connection: Any, request: Request[Any]) -> ErrorCode:
    assert isinstance(connection, ActorConnection)
    reply = await connection.call(request, timeout_ms=TIMEOUT_MS)
    error: ErrorCode = reply.error
    return error


def test_a_user_may_do_what_an_acl_allows_and_nothing_else():
    async def body() -> None:
        async with behind(Door(access(acl(Operation.READ)))) as (server, listener):
            connection = await joined(listener, UserIdentity("alice", PASSWORD))
            assert await asked(connection, fetch(3)) is ErrorCode.NONE
            assert await asked(connection, produce(7)) is ErrorCode.TOPIC_AUTHORIZATION_FAILED
            described = await asked(connection, DescribeReplicaRequest())
            assert described is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            assert (server.fetched, server.begun) == ([3], [])
            connection.close()

    asyncio.run(body())


def test_an_acl_may_be_for_one_address():
    async def body() -> None:
        for host, error in (
            ("127.0.0.1", ErrorCode.NONE),
            ("127.0.0.2", ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        ):
            only_there = structs.replace(acl(Operation.READ), host=host)
            async with behind(Door(access(only_there))) as (_, listener):
                connection = await joined(listener, UserIdentity("alice", PASSWORD))
                assert await asked(connection, fetch(1)) is error
                connection.close()

    asyncio.run(body())


def test_a_user_needs_no_token():
    async def body() -> None:
        async with behind(Door(access(acl(Operation.READ)))) as (_, listener):
            address = await listener.address()
            without = ListenerAddress(host=address.host, port=address.port, token=b"")
            user, program = UserIdentity("alice", PASSWORD), ProgramIdentity()
            connection = await connect(without, timeout_ms=TIMEOUT_MS, identity=user)
            assert await asked(connection, fetch(1)) is ErrorCode.NONE
            assert await connect(without, timeout_ms=TIMEOUT_MS, identity=program) is None
            connection.close()

    asyncio.run(body())


@pytest.mark.parametrize(
    ("name", "password"), [("alice", "wrong"), ("bob", PASSWORD), ("alice", PASSWORD + " ")]
)
def test_who_is_not_believed_is_told_so_and_no_more(name, password):
    async def body() -> None:
        async with behind(Door(access(acl(Operation.READ)))) as (server, listener):
            identity = UserIdentity(name, password)
            assert await joined(listener, identity) is ErrorCode.SASL_AUTHENTICATION_FAILED
            assert server.fetched == []

    asyncio.run(body())


def test_a_refused_login_is_audited_by_the_name_that_was_claimed():
    class Heard:
        def __init__(self) -> None:
            self.logins: list[tuple[str, str]] = []

        def judged(self, *_: object) -> None:
            pass

        def login_refused(self, name: str, host: str, /) -> None:
            self.logins.append((name, host))

    async def body() -> None:
        async with behind(Door(access())) as (_, listener):
            heard = listener.dispatch.audit = Heard()
            for name in ("alice", "bob"):
                assert not isinstance(
                    await joined(listener, UserIdentity(name, "wrong")), ActorConnection
                )
            assert heard.logins == [("alice", "127.0.0.1"), ("bob", "127.0.0.1")]

    asyncio.run(body())


def test_a_refusal_takes_its_time(monkeypatch):
    """Else a host could try passwords as fast as it can ask."""
    monkeypatch.setattr(listener_module, "REFUSAL_DELAY_S", 0.3)

    async def body() -> None:
        async with behind(Door(access())) as (_, listener):
            loop = asyncio.get_running_loop()
            began = loop.time()
            refused = await joined(listener, UserIdentity("alice", "wrong"))
            assert refused is ErrorCode.SASL_AUTHENTICATION_FAILED
            assert loop.time() - began >= 0.3

    asyncio.run(body())


@pytest.mark.parametrize("is_patient", [False, True])
def test_a_host_can_guess_so_often_a_second_and_no_more(monkeypatch, is_patient):
    """1. A guess that is right is answered at once. 2. So nobody waits for the other answer."""
    monkeypatch.setattr(listener_module, "REFUSAL_DELAY_S", 1.0)
    monkeypatch.setattr(admission, "HALF_OPEN_PER_HOST_MAX", 5)

    class Judged:
        def __init__(self) -> None:
            self.at_s: list[float] = []

        def judged(self, *_: object) -> None:
            pass

        def login_refused(self, *_: object) -> None:
            self.at_s.append(asyncio.get_running_loop().time())

    async def body() -> None:
        server, heard = Server(), Judged()
        dispatch = Dispatch(server, on_bug=server.die_of_bug, door=Door(access()), audit=heard)
        listener = Listener(dispatch, host="127.0.0.1", token=TOKEN, server_secret=SECRET)

        async def says(link: Link, greeting: Any, kind: int, body: bytes) -> bytes:
            method, message = greeting.receive(kind, body)
            link.written = b""
            link.arrives(frame(0, method, message))
            await give_turns()
            return link.written[13:]

        async def guess(password: str) -> bytes:
            link = await linked(listener, is_proved=False)
            greeting = UserIdentity("alice", password).greeting(TOKEN)
            challenge = await says(link, greeting, 3, link.written[13:])
            answer = b""
            if not link.is_closing():
                answer = await says(link, greeting, 3, challenge)
            if not is_patient:
                link.close()
            await give_turns()
            return answer

        for _ in range(100):
            assert await guess("wrong") == b""
            await asyncio.sleep(0.02)
        assert len(heard.at_s) <= 3 * 5
        # Programs of the Ray cluster come from there as before, and soon so does the user.
        program = await linked(listener)
        assert len(callers_of(listener)) == 1
        assert not program.is_closing()
        await asyncio.sleep(1.1)
        assert (await guess(PASSWORD)).startswith(b"v=")

    run_virtually(body())


def test_a_process_that_does_not_know_the_users_yet_asks_to_try_again():
    async def body() -> None:
        door = Door(None)
        async with behind(door) as (server, listener):
            assert await joined(listener, UserIdentity("alice", PASSWORD)) is None
            program = await joined(listener, ProgramIdentity())
            assert await asked(program, fetch(1)) is ErrorCode.NETWORK_EXCEPTION
            assert server.fetched == []
            # Why it starts so slowly may be asked; this server answers that with an exception.
            described = await asked(program, DescribeReplicaRequest())
            assert described is ErrorCode.UNKNOWN_SERVER_ERROR
            peer = await joined(listener, ProgramIdentity(SECRET))
            assert await asked(peer, fetch(2)) is ErrorCode.NONE
            door.learn(NO_ACCESS)
            assert await asked(program, fetch(3)) is ErrorCode.NONE
            assert server.fetched == [2, 3]
            program.close()
            peer.close()

    asyncio.run(body())


@pytest.mark.parametrize(
    "request_",
    [MetadataRequest(), DescribeReplicaRequest(), DescribeVoterRequest(), ShutdownRequest()],
    ids=lambda request: request.method,
)
def test_a_process_that_does_not_know_the_rules_answers_programs_and_no_user(request_):
    """A user whom a token or a certificate names needs no record to connect."""
    door = Door(None)
    assert isinstance(door.judge(request_, RAY, "127.0.0.1"), Split)
    refused = door.judge(request_, Principal(ALICE), "127.0.0.1")
    assert refused is ErrorCode.NETWORK_EXCEPTION


def test_a_door_tells_what_a_user_may_by_its_rules_and_without_any_that_is_nothing():
    asked = (Principal(ALICE), Operation.READ, Resource.TOPIC)
    door = Door(None)
    assert not door.may(*asked, "flights", "127.0.0.1")
    door.learn(access(acl(Operation.READ)))
    assert door.may(*asked, "flights", "127.0.0.1")
    assert not door.may(*asked, "delays", "127.0.0.1")


@pytest.mark.parametrize(
    "newer",
    [
        Access(rules=Rules(version=2, is_on=True)),
        access(acl(Operation.READ), version=2, password="another"),
    ],
    ids=["removed", "new password"],
)
def test_a_user_that_is_removed_or_has_a_new_password_is_out_at_once(newer):
    async def body() -> None:
        door = Door(access(acl(Operation.READ)))
        async with behind(door) as (_, listener):
            identity = UserIdentity("alice", PASSWORD)
            connection = await joined(listener, identity)
            assert await asked(connection, fetch(1)) is ErrorCode.NONE
            door.learn(newer)
            assert await asked(connection, fetch(2)) is ErrorCode.NETWORK_EXCEPTION
            assert await joined(listener, identity) is ErrorCode.SASL_AUTHENTICATION_FAILED

    asyncio.run(body())


def test_a_right_that_is_revoked_is_gone_at_the_next_request_and_the_connection_stays():
    async def body() -> None:
        door = Door(access(acl(Operation.READ)))
        async with behind(door) as (_, listener):
            connection = await joined(listener, UserIdentity("alice", PASSWORD))
            assert await asked(connection, fetch(1)) is ErrorCode.NONE
            door.learn(access(version=2))
            assert await asked(connection, fetch(2)) is ErrorCode.TOPIC_AUTHORIZATION_FAILED
            door.learn(access(acl(Operation.READ), version=3))
            assert await asked(connection, fetch(3)) is ErrorCode.NONE
            connection.close()

    asyncio.run(body())


def test_fetches_that_wait_at_a_host_are_of_one_user_under_the_rules_of_now():
    """Another user that names the session gets none of it, and nobody does once a right is gone."""

    async def body() -> None:
        tasks = OwnTasks(lambda error: None)
        door = Door(access(acl(Operation.READ)))
        async with behind(door) as (server, listener):

            async def answer(_key: str, _request: FetchRequest) -> FetchReply:
                return FetchReply(records=b"secret")

            server.fetch_together = FetchSessions(answer, tasks).fetch
            begun = SharedFetch(number=1, key="flights-0", fetch=fetch(1))
            new = FetchTogetherRequest(session_id="s", fetches=(begun,), max_wait_ms=0)
            further = FetchTogetherRequest(session_id="s", max_wait_ms=0)

            async def is_new(connection: Any, request: FetchTogetherRequest) -> bool:
                reply = await connection.call(request, timeout_ms=TIMEOUT_MS)
                assert not reply.ended
                return reply.is_new

            alice = await joined(listener, UserIdentity("alice", PASSWORD))
            program = await joined(listener, ProgramIdentity())
            assert await is_new(alice, new)
            assert await is_new(program, further)
            door.learn(access(version=2))
            assert await is_new(alice, further)
            alice.close()
            program.close()
        tasks.cancel()

    asyncio.run(body())


def test_what_is_out_of_date_is_not_learned():
    door = Door(access(version=5))
    door.learn(access(acl(Operation.READ), version=4))
    assert door.rules == access(version=5).rules
    assert door.version == 5


def test_only_servers_teach_a_process():
    """Over a connection, as the controller calls it: by its name, without a key."""

    async def body() -> None:
        door = Door(access(acl(Operation.READ)))
        async with behind(door) as (_, listener):
            everybody = access(acl(Operation.ALL, "*"), version=9)
            request = LearnAccessRequest(access=everybody)
            for identity in (UserIdentity("alice", PASSWORD), ProgramIdentity()):
                connection = await joined(listener, identity)
                refused = await asked(connection, request)
                assert refused is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
                assert door.version == 1
                connection.close()
            controller = await joined(listener, ProgramIdentity(SECRET))
            assert await asked(controller, request) is ErrorCode.NONE
            assert door.version == 9
            controller.close()

    asyncio.run(body())


def test_a_user_is_never_called_for_through_ray():
    """Ray's calls are of programs of the Ray cluster, which may do more. An actor that does not
    listen never takes those of a user (``calls="ray"``), which is told at once; one that cannot be
    reached may be reached again.
    """
    nobody = ListenerAddress(host="127.0.0.1", port=1, token=TOKEN)

    class OnlyRay:
        known: ListenerAddress | None = None

        async def call(self, actor: str, request: Any, **_: Any) -> Any:
            raise AssertionError(f"{actor} was called by Ray: {request}")

        async def listener_of(self, _actor: str, **_: Any) -> ListenerAddress | None:
            return self.known

    async def body() -> None:
        ray = OnlyRay()
        transport = ActorTransport(ray, identity=UserIdentity("alice", PASSWORD))
        for _ in range(2):
            reply = await transport.call("controller", fetch(1), timeout_ms=TIMEOUT_MS)
            assert reply.error is ErrorCode.SASL_AUTHENTICATION_FAILED
            assert "'controller': it takes only calls that Ray carries" in reply.detail
            assert 'start the cluster with calls="connections"' in reply.detail
        ray.known = nobody
        for _ in range(3):
            reply = await transport.call("controller", fetch(1), timeout_ms=TIMEOUT_MS)
            assert reply.error is ErrorCode.NETWORK_EXCEPTION
        assert reply.detail == "'controller' cannot be connected to at 127.0.0.1:1"
        transport.close()

    asyncio.run(body())


def test_a_user_is_let_in_as_soon_as_the_process_knows_it_however_often_it_has_tried():
    async def body() -> None:
        door = Door(None)
        async with behind(door) as (server, listener):

            class Where:
                async def listener_of(self, _actor: str, **_: Any) -> ListenerAddress:
                    return await listener.address()

                async def call(self, actor: str, request: Any, **_: Any) -> Any:
                    raise AssertionError(f"{actor} was called by Ray: {request}")

            transport = ActorTransport(Where(), identity=UserIdentity("alice", PASSWORD))
            for _ in range(2 * FAILURES_BEFORE_RAY):
                early = await transport.call("it", fetch(1), timeout_ms=TIMEOUT_MS)
                assert early.error is ErrorCode.NETWORK_EXCEPTION
            door.learn(access(acl(Operation.READ)))
            reply = await transport.call("it", fetch(2), timeout_ms=TIMEOUT_MS)
            assert reply.error is ErrorCode.NONE
            assert server.fetched == [2]
            transport.close()

    asyncio.run(body())


def test_an_actor_that_is_none_of_the_log_has_no_door_and_is_called_through_ray():
    """The worker of a job, which belongs to the program that started it."""

    class ByRay:
        async def call(self, actor: str, request: Any, **_: Any) -> Any:
            assert actor == "process:job-0"
            return WorkerStatus(records_in=7)

        async def listener_of(self, actor: str, **_: Any) -> None:
            raise AssertionError(f"{actor} was asked where it listens")

    async def body() -> None:
        transport = ActorTransport(ByRay(), identity=UserIdentity("alice", PASSWORD))
        request = WorkerStatusRequest()
        reply = await transport.call("process:job-0", request, timeout_ms=TIMEOUT_MS)
        assert (reply.error, reply.records_in) == (ErrorCode.NONE, 7)
        transport.close()

    asyncio.run(body())


@pytest.mark.parametrize(
    ("jump_ms", "lasts_s"),
    [(0, 600), (-3_600_000, 600), (300_000, 300), (86_400_000, 0)],
    ids=["no jump", "back", "forward", "beyond"],
)
def test_who_has_come_in_goes_when_the_proof_expires_though_a_clock_jumps(jump_ms, lasts_s):
    class AnyToken:
        def bearer_of(self, token: str) -> Named:
            return Named(token, clock.now_ms() + 600_000)

        def named_by(self, certificate: Any) -> Named:
            raise AssertionError(f"a token is shown, not {certificate}")

    async def body() -> None:
        server = Server()
        door = Door(access(), naming=AnyToken())
        listener = Listener(
            Dispatch(server, on_bug=server.die_of_bug, door=door), host="127.0.0.1", token=TOKEN
        )
        listener.clock = clock
        loop = asyncio.get_running_loop()
        link = await linked(listener, is_proved=False, peer={})
        link.arrives(frame(0, "token", b"ann"))
        await give_turns()
        assert len(callers_of(listener)) == 1
        jumps.append(jump_ms)
        await until(link.is_closing, look_s=1.0)
        assert lasts_s <= loop.time() <= lasts_s + listener_module.EXPIRY_CHECK_S + 1

    class Clock:
        def now_ms(self) -> int:
            return START_MS + sum(jumps) + int(1_000 * asyncio.get_running_loop().time())

    clock, jumps = Clock(), [0]
    run_virtually(body())


# --- without a connection -------------------------------------------------------------------------


def exchanged(identity: Identity, reception: Reception) -> tuple[list[str], Any]:
    """The methods that the caller used, and as whom it is admitted or how it ended."""
    greeting, kind, body = identity.greeting(TOKEN), 3, reception.nonce
    methods: list[str] = []
    principal = None
    while True:
        step = greeting.receive(kind, body)
        if isinstance(step, Ending):
            return methods, principal if step is Ending.ACCEPTED else step
        methods.append(step[0])
        admission = reception.receive(*step)
        assert admission is not None
        kind, body, principal = admission.kind, admission.body, admission.principal


@pytest.mark.parametrize(
    ("identity", "methods", "principal"),
    [
        (ProgramIdentity(), ["hello"], RAY),
        (ProgramIdentity(SECRET), ["hello"], SERVER),
        (UserIdentity("bob", PASSWORD), ["scram", "scram"], Ending.REFUSED),
    ],
)
def test_each_identity_has_its_messages(identity, methods, principal):
    assert exchanged(identity, Reception(TOKEN, SECRET, Door(access()))) == (methods, principal)


@pytest.mark.parametrize(
    "identity",
    [ProgramIdentity(), ProgramIdentity(SECRET), UserIdentity("alice", PASSWORD)],
    ids=["program", "server", "user"],
)
def test_what_was_recorded_of_one_handshake_ends_no_other(identity):
    door = Door(access())
    recorded: list[tuple[str, bytes]] = []

    class Recorded(Reception):
        def receive(self, method: str, message: bytes) -> Any:
            recorded.append((method, message))
            return super().receive(method, message)

    assert isinstance(exchanged(identity, Recorded(TOKEN, SECRET, door))[1], Principal)
    again = Reception(TOKEN, SECRET, door)
    answers = [again.receive(*step) for step in recorded]
    assert not any(answer.principal for answer in answers if answer)


def test_a_login_that_has_begun_is_not_ended_with_a_token():
    reception = Reception(TOKEN, SECRET, Door(access()))
    step = UserIdentity("alice", PASSWORD).greeting(TOKEN).receive(3, reception.nonce)
    assert not isinstance(step, Ending)
    assert reception.receive(*step) is not None
    hello = ProgramIdentity().greeting(TOKEN).receive(3, reception.nonce)
    assert not isinstance(hello, Ending)
    assert reception.receive(*hello) is None


@pytest.mark.parametrize(
    "newer",
    [
        Access(rules=Rules(version=2, is_on=True)),
        access(acl(Operation.READ), version=2, password="another"),
    ],
    ids=["removed", "new password"],
)
def test_a_login_that_has_begun_does_not_outlive_its_user(newer):
    door = Door(access(acl(Operation.READ)))
    reception = Reception(TOKEN, SECRET, door)
    greeting = UserIdentity("alice", PASSWORD).greeting(TOKEN)
    first = greeting.receive(3, reception.nonce)
    assert not isinstance(first, Ending)
    challenge = reception.receive(*first)
    assert challenge is not None
    final = greeting.receive(challenge.kind, challenge.body)
    assert not isinstance(final, Ending)
    door.learn(newer)
    assert reception.receive(*final) is None


def test_a_listener_that_does_not_know_the_password_is_not_believed():
    """It lets the user in without a proof, to be told what it must not know."""
    greeting = UserIdentity("alice", PASSWORD).greeting(TOKEN)
    assert not isinstance(greeting.receive(3, b"n" * 32), Ending)
    assert greeting.receive(0, b"") is Ending.FAILED
    impostor = Reception(TOKEN, SECRET, Door(access(password="guessed")))
    assert exchanged(UserIdentity("alice", PASSWORD), impostor)[1] is Ending.REFUSED


def test_a_password_is_not_shown():
    assert PASSWORD not in repr(UserIdentity("alice", PASSWORD))
    assert "known" not in repr(ProgramIdentity(SECRET))
    shown = repr(access())
    assert "stored_key" not in shown
    assert "salt" not in shown


# --- how a process learns -------------------------------------------------------------------------


class Controller:
    """Answers ``access`` with ``replies`` in turn, the last one for ever."""

    def __init__(self, *replies: AccessReply) -> None:
        self.replies = list(replies)
        self.known: list[int] = []

    async def call(self, actor: str, request: Any, *, timeout_ms: int) -> Any:
        assert (actor, timeout_ms) == ("controller", TIMEOUT_MS)
        assert isinstance(request, AccessRequest)
        self.known.append(request.known_version)
        return self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]


def test_a_process_asks_until_it_knows_and_then_whether_there_is_something_newer():
    async def body() -> None:
        door = Door(None)
        controller = Controller(
            AccessReply(error=ErrorCode.NOT_CONTROLLER),
            AccessReply(error=ErrorCode.REQUEST_TIMED_OUT),
            AccessReply(access=access(version=4)),
            AccessReply(),
            AccessReply(access=access(version=5)),
        )
        keeping = asyncio.ensure_future(door.keep(controller, timeout_ms=TIMEOUT_MS))
        await asyncio.sleep(25)
        keeping.cancel()
        assert controller.known == [-1, -1, -1, 4, 4]
        assert door.version == 5

    run_virtually(body())


def test_a_process_that_hears_nothing_for_long_says_so_once_a_minute_and_goes_on(caplog):
    async def body() -> None:
        door = Door(access(version=4))
        lost = AccessReply(error=ErrorCode.UNKNOWN_SERVER_ERROR, detail="unreadable reply")
        heard = [AccessReply(access=access(version=5))]
        controller = Controller(*[lost] * 13, *heard, *[lost] * 5)
        keeping = asyncio.ensure_future(door.keep(controller, timeout_ms=TIMEOUT_MS))
        await asyncio.sleep(59)
        assert not caplog.records
        await asyncio.sleep(60)
        (told,) = caplog.records
        assert "version 4" in told.message
        assert "unreadable reply" in told.message
        # At 120 s again, and then 60 s after it has heard at 130 s.
        await asyncio.sleep(66)
        assert len(caplog.records) == 2
        assert door.version == 5
        keeping.cancel()

    run_virtually(body())


def test_an_older_controller_has_no_rules():
    async def body() -> None:
        door = Door(None)
        controller = Controller(AccessReply(error=ErrorCode.INVALID_REQUEST))
        keeping = asyncio.ensure_future(door.keep(controller, timeout_ms=TIMEOUT_MS))
        await asyncio.sleep(1)
        keeping.cancel()
        assert (door.version, door.rules) == (0, NO_ACCESS.rules)

    run_virtually(body())
