"""What a console may change: only with ``--write``, only after a confirmation."""

from __future__ import annotations

import asyncio
import dataclasses
import re

import pytest
from console_cluster import ConsoleCluster, console_of, log_in, token_of

from oncelog.actors.protocol.messages.brokers import DrainBrokerReply, DrainBrokerRequest
from oncelog.actors.protocol.messages.cluster import MetadataRequest
from oncelog.actors.protocol.messages.group import GroupDescription, GroupMemberDescription
from oncelog.api.cli import main as cli
from oncelog.api.cli.arguments import Command
from oncelog.api.console import server, snapshot
from oncelog.api.console.actions import ACTIONS, VALUE_CHARS_MAX
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import InvalidRequestError
from oncelog.storage.model import TopicPartition

GIVEN = {
    "topic": "flights",
    "partition": "0",
    "offset": "12",
    "id": "loader 1",
    "replicas": "2, 3",
    "broker": "3",
    "group": "billing",
    "to": "time",
    "at": "2026-01-31T12:00",
}


async def post(client, action, **values):
    page = await (await client.get(f"/actions/{action}")).text()
    origin = f"http://{client.host}:{client.port}"
    data = {"token": token_of(page), **values}
    reply = await client.post(f"/actions/{action}", data=data, headers={"Origin": origin})
    return reply.status, await reply.text()


@pytest.mark.parametrize("action", ACTIONS)
def test_without_write_there_is_no_way_to_change_anything(action):
    async def scenario():
        async with console_of(ConsoleCluster()) as client:
            page = await (await client.get("/")).text()
            origin = f"http://{client.host}:{client.port}"
            shown = await client.get(f"/actions/{action}")
            token = re.search(r"[0-9a-f]{64}", page)
            done = await client.post(
                f"/actions/{action}",
                data={"token": token[0] if token else "", **GIVEN},
                headers={"Origin": origin},
            )
            return shown.status, done.status

    shown, done = asyncio.run(scenario())
    assert shown == 404
    assert done in (403, 404)


@pytest.mark.parametrize("action", ACTIONS.values(), ids=lambda one: one.name)
def test_each_action_names_a_command_that_there_is(action, monkeypatch):
    values = action.checked(GIVEN)
    words = action.arguments(values)
    monkeypatch.setattr(Command, "invoke", lambda command, ctx: 0)
    assert cli.main(words) == 0
    assert action.command(values, ("--address", "a:1")).endswith("--address a:1")


def test_a_deed_that_is_cut_off_says_that_it_may_have_been_done(monkeypatch):
    async def hang(_writes, _values):
        await asyncio.Event().wait()

    monkeypatch.setitem(ACTIONS, "drain", dataclasses.replace(ACTIONS["drain"], run=hang))

    async def scenario():
        async with console_of(ConsoleCluster(), writes=True) as client:
            page = await (await client.get("/actions/drain")).text()
            monkeypatch.setattr(server, "REQUEST_S", 0.05)
            data = {"token": token_of(page), "broker": "3", "step": "do"}
            origin = f"http://{client.host}:{client.port}"
            reply = await client.post("/actions/drain", data=data, headers={"Origin": origin})
            return reply.status, await reply.text()

    status, told = asyncio.run(scenario())
    assert status == 504
    assert "may have been done" in told


def test_after_a_deed_every_page_asks_anew(monkeypatch):
    monkeypatch.setattr(snapshot, "FRESH_S", 1_000.0)

    async def scenario():
        cluster = ConsoleCluster()
        cluster.hooks[DrainBrokerRequest] = lambda request: DrainBrokerReply()
        async with console_of(cluster, writes=True) as client:
            await client.get("/topics")
            before = len(cluster.asked(MetadataRequest))
            await client.get("/topics")
            again = len(cluster.asked(MetadataRequest))
            await post(client, "drain", broker="3", step="do")
            done = len(cluster.asked(MetadataRequest))
            await client.get("/topics")
            return again - before, len(cluster.asked(MetadataRequest)) - done

    again, after = asyncio.run(scenario())
    assert again == 0
    assert after > 0


def test_a_form_does_nothing_until_it_is_confirmed():
    async def scenario():
        cluster = ConsoleCluster()
        cluster.hooks[DrainBrokerRequest] = lambda request: DrainBrokerReply()
        async with console_of(cluster, writes=True, command_options=("--address", "a:1")) as client:
            status, asked = await post(client, "drain", broker="3", step="confirm")
            before = cluster.asked(DrainBrokerRequest)
            done_status, done = await post(client, "drain", broker="3", step="do")
            return status, asked, before, done_status, done, cluster.asked(DrainBrokerRequest)

    status, asked, before, done_status, done, after = asyncio.run(scenario())
    assert (status, done_status, before) == (200, 200, [])
    assert "oncelog brokers drain 3 --address a:1" in asked
    assert [(one.broker_id, one.is_draining) for one in after] == [(3, True)]
    assert "Broker 3 is being drained" in done


def test_what_the_cluster_refuses_is_shown_with_its_advice():
    async def scenario():
        cluster = ConsoleCluster()
        cluster.hooks[DrainBrokerRequest] = lambda request: request.failed(
            ErrorCode.INVALID_REPLICATION_FACTOR, "too few <b>brokers</b> would remain"
        )
        async with console_of(cluster, writes=True) as client:
            return await post(client, "drain", broker="3", step="do")

    status, page = asyncio.run(scenario())
    assert status == 409
    assert "too few &lt;b&gt;brokers&lt;/b&gt; would remain" in page


def test_an_action_is_done_with_the_rights_of_who_is_logged_in():
    async def scenario():
        cluster = ConsoleCluster()
        refusal = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        cluster.refusals["alice", DrainBrokerRequest] = refusal
        async with console_of(cluster, writes=True, asks_login=True) as client:
            await log_in(client)
            status, page = await post(client, "drain", broker="3", step="do")
            return status, page, cluster.asked(DrainBrokerRequest)

    status, page, of_console = asyncio.run(scenario())
    assert status == 409
    assert "User:alice may not" in page
    assert of_console == []


def reset(cluster, **values):
    async def scenario():
        async with console_of(cluster, writes=True) as client:
            given = {"group": "billing", "topic": "flights", "step": "do", **values}
            return await post(client, "reset-offsets", **given)

    return asyncio.run(scenario())


def flights():
    cluster = ConsoleCluster()
    for log in cluster.log.create("flights", 2):
        log.append(*(b"x",) * 10)
    return cluster


@pytest.mark.parametrize(
    ("values", "offset"),
    [
        ({"to": "earliest"}, 0),
        ({"to": "latest"}, 10),
        ({"to": "offset", "at": "4"}, 4),
        ({"to": "offset", "at": "400"}, 10),
        ({"to": "time", "at": "2026-01-31T12:00"}, 10),
        ({"to": "time", "at": "1970-01-01T00:00"}, 0),
    ],
)
def test_offsets_of_a_group_are_reset_within_the_log(values, offset):
    cluster = flights()
    status, page = reset(cluster, **values)
    assert status == 200, page
    assert cluster.log.committed == {TopicPartition("flights", n): offset for n in range(2)}


def test_offsets_of_a_group_with_members_are_not_reset():
    cluster = flights()
    member = GroupMemberDescription(
        member_id="m", group_instance_id=None, client_id="c", assignment=b""
    )
    cluster.groups = [
        GroupDescription(
            group_id="billing",
            state="Stable",
            protocol_type="consumer",
            protocol_name="range",
            generation_id=1,
            members=(member,),
        )
    ]
    status, page = reset(cluster, to="earliest")
    assert status == 409
    assert "stop its consumers first" in page
    assert cluster.log.committed == {}


@pytest.mark.parametrize(
    ("action", "values"),
    [
        ("drain", {"broker": ""}),
        ("drain", {"broker": "-1"}),
        ("drain", {"broker": "x" * 2_000}),
        ("drain", {"broker": "9" * 25}),
        ("reassign", {**GIVEN, "replicas": "1,,2"}),
        ("reassign", {**GIVEN, "partition": "1.5"}),
        ("reset-offsets", {**GIVEN, "to": "nowhere"}),
        ("reset-offsets", {**GIVEN, "to": "offset", "at": "0" * 20 + "9" * 30}),
        ("reset-offsets", {**GIVEN, "at": "soon"}),
        ("abort", {"id": "x" * (VALUE_CHARS_MAX + 1)}),
        ("abort-hanging", {**GIVEN, "offset": "٣"}),
    ],
)
def test_a_value_that_is_impossible_is_refused_before_anything_is_done(action, values):
    with pytest.raises(InvalidRequestError) as raised:
        ACTIONS[action].checked(values)
    assert raised.value.advice
