"""What is told, and logged, of a user's login: why, and never the password."""

from __future__ import annotations

import asyncio
import logging

import pytest
from called_server import TIMEOUT_MS, TOKEN, Server, fetch

from oncelog.actors.protocol.messages.access import Access, Rules, User
from oncelog.actors.protocol.scram import ITERATIONS_MIN, make_credential
from oncelog.actors.rpc import listener as listener_module
from oncelog.actors.rpc.actor_transport import ActorTransport
from oncelog.actors.rpc.dispatch import Dispatch
from oncelog.actors.rpc.door import Door
from oncelog.actors.rpc.handshake import UserIdentity
from oncelog.actors.rpc.listener import Listener
from oncelog.storage.errors import ErrorCode

PLANTED = "planted-secret-9d20"


class OneListener:
    """Ray that finds one listener."""

    def __init__(self, address):
        self._address = address

    async def listener_of(self, actor, *, timeout_ms):
        return self._address


@pytest.mark.parametrize("known", [PLANTED, "another"])
def test_a_login_is_told_without_its_password(monkeypatch, caplog, known):
    monkeypatch.setattr(listener_module, "REFUSAL_DELAY_S", 0.0)
    credential = make_credential(known, b"salt of 16 bytes", ITERATIONS_MIN)
    users = (User(name="alice", credential=credential),)

    async def body():
        server = Server()
        door = Door(Access(rules=Rules(version=1), users=users))
        listener = Listener(
            Dispatch(server, on_bug=server.die_of_bug, door=door), host="127.0.0.1", token=TOKEN
        )
        transport = ActorTransport(
            OneListener(await listener.address()), identity=UserIdentity("alice", PLANTED)
        )
        reply = await transport.call("a", fetch(1), timeout_ms=TIMEOUT_MS)
        transport.close()
        await listener.close()
        return reply

    with caplog.at_level(logging.DEBUG):
        reply = asyncio.run(body(), debug=True)
    if known == PLANTED:
        assert reply.error is ErrorCode.NONE
    else:
        assert reply.error is ErrorCode.SASL_AUTHENTICATION_FAILED
        assert reply.detail.startswith("There is no such user with that password; check the name")
    assert PLANTED not in caplog.text + repr(reply)
