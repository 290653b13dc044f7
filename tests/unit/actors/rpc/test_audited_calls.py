"""What the audit log hears of calls: at the one place where it is decided who may call what."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from called_server import fetch

from oncelog.actors.protocol.access import RAY, SERVER, Principal, Verdict
from oncelog.actors.protocol.messages.access import Access, Acl, Operation, Resource, Rules
from oncelog.actors.protocol.messages.base import Request
from oncelog.actors.protocol.messages.cluster import (
    ClusterKeysRequest,
    MetadataReply,
    MetadataRequest,
    TopicMetadata,
)
from oncelog.actors.protocol.messages.group import (
    JoinGroupRequest,
    OffsetAndMetadata,
    OffsetCommitReply,
    OffsetCommitRequest,
    PartitionResult,
)
from oncelog.actors.protocol.messages.partition import FetchReply, FetchRequest
from oncelog.actors.rpc.dispatch import Dispatch, read_answer
from oncelog.actors.rpc.door import Door
from oncelog.actors.rpc.message_codec import encode
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import TopicPartition

ALICE = Principal("User:alice")
HERE = "10.0.0.1"
MINE, YOURS = TopicPartition("mine", 0), TopicPartition("yours", 0)
RULES = Rules(
    is_on=True,
    acls=tuple(
        Acl(principal=ALICE.name, resource=resource, name=name, operation=Operation.READ)
        for resource, name in ((Resource.TOPIC, "mine"), (Resource.GROUP, "readers"))
    ),
)


class Server:
    async def fetch(self, _: FetchRequest) -> FetchReply:
        return FetchReply()

    async def metadata(self, _: MetadataRequest) -> MetadataReply:
        topics = [
            TopicMetadata(name=name, topic_id="t", partitions=()) for name in ("mine", "yours")
        ]
        return MetadataReply(topics=tuple(topics))

    async def offset_commit(self, request: OffsetCommitRequest) -> OffsetCommitReply:
        results = [
            PartitionResult(topic_partition=tp, error=ErrorCode.NONE) for tp, _ in request.offsets
        ]
        return OffsetCommitReply(results=tuple(results))

    async def cluster_keys(self, request: ClusterKeysRequest) -> Any:
        return request.reply_type()


class Heard:
    """An ``Audit`` that remembers."""

    def __init__(self) -> None:
        self.calls: list[tuple[Principal, str, str, list[Verdict]]] = []

    def judged(self, who: Principal, host: str, method: str, verdicts: list[Verdict], /) -> None:
        self.calls.append((who, host, method, verdicts))

    def login_refused(self, name: str, host: str, /) -> None:
        raise AssertionError(f"nobody has logged in: {name} from {host}")


def called(request: Request[Any], principal: Principal = ALICE) -> tuple[Any, list[Verdict]]:
    """The reply, and what the audit log heard of the call."""
    heard = Heard()
    door = Door(Access(rules=RULES))
    dispatch = Dispatch(Server(), on_bug=pytest.fail, audit=heard, door=door)
    outcome, parts = asyncio.run(dispatch.answer(request.method, encode(request), principal, HERE))
    ((who, host, method, verdicts),) = heard.calls
    assert (who, host, method) == (principal, HERE, request.method)
    return read_answer(request, outcome, b"".join(parts)), verdicts


def commit(*topic_partitions: TopicPartition) -> OffsetCommitRequest:
    return OffsetCommitRequest(
        group_id="readers",
        offsets=tuple((tp, OffsetAndMetadata(offset=1)) for tp in topic_partitions),
    )


def test_a_call_that_is_allowed_is_told_with_what_it_needed() -> None:
    reply, verdicts = called(FetchRequest(topic_partition=MINE, fetch_offset=0))
    assert reply.error is ErrorCode.NONE
    assert verdicts == [(Operation.READ, Resource.TOPIC, "mine", True)]
    assert verdicts[0].error is ErrorCode.NONE


def test_a_call_that_is_refused_is_told_with_what_was_lacked() -> None:
    reply, verdicts = called(FetchRequest(topic_partition=YOURS, fetch_offset=0))
    assert verdicts == [(Operation.READ, Resource.TOPIC, "yours", False)]
    assert reply.error is verdicts[0].error is ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_so_is_a_program_that_asks_what_only_servers_ask() -> None:
    reply, verdicts = called(ClusterKeysRequest(), RAY)
    assert verdicts == [(Operation.CLUSTER_ACTION, Resource.CLUSTER, "oncelog", False)]
    assert reply.error is verdicts[0].error is ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def test_of_a_split_request_the_refused_part_is_told_too() -> None:
    reply, verdicts = called(commit(MINE, YOURS))
    assert [one.error for one in reply.results] == [
        ErrorCode.NONE,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ]
    assert verdicts == [
        (Operation.READ, Resource.GROUP, "readers", True),
        (Operation.READ, Resource.TOPIC, "mine", True),
        (Operation.READ, Resource.TOPIC, "yours", False),
    ]


def test_what_a_reply_is_cleared_of_is_not_told_as_nobody_asked_for_it() -> None:
    reply, verdicts = called(MetadataRequest())
    assert [topic.name for topic in reply.topics] == ["mine"]
    assert verdicts == []
    _, verdicts = called(MetadataRequest(topics=("mine", "yours")))
    assert [(one.name, one.is_allowed) for one in verdicts] == [("mine", True), ("yours", False)]


def test_of_a_server_nothing_is_told() -> None:
    _, verdicts = called(ClusterKeysRequest(), SERVER)
    assert verdicts == []


def test_a_call_that_is_no_request_is_not_judged() -> None:
    heard = Heard()
    dispatch = Dispatch(Server(), on_bug=pytest.fail, audit=heard)
    asyncio.run(dispatch.answer("fetch", b"\x80", ALICE, HERE))
    asyncio.run(dispatch.answer("produce", encode(fetch(0)), ALICE, HERE))
    assert heard.calls == []


@pytest.mark.parametrize("principal", [ALICE, SERVER])
def test_who_may_not_ask_does_not_learn_whether_a_host_has_the_replica(principal) -> None:
    """An actor that holds many replicas is asked for one by its key."""
    request = FetchRequest(topic_partition=YOURS, fetch_offset=0)
    errors = []
    for held in ({}, {"yours": Server()}):
        dispatch = Dispatch(
            object(), on_bug=pytest.fail, door=Door(Access(rules=RULES)), find=held.get
        )
        answering = dispatch.answer("fetch/yours", encode(request), principal, HERE)
        outcome, parts = asyncio.run(answering)
        errors.append(read_answer(request, outcome, b"".join(parts)).error)
    refused = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    expected = [ErrorCode.NETWORK_EXCEPTION, ErrorCode.NONE]
    assert errors == (expected if principal is SERVER else [refused, refused])


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("join_group", encode(JoinGroupRequest(group_id="g" * 1_000_000))),
        ("alter_acls", msgspec.msgpack.encode({"added": [{"resource": "r" * 1_000_000}]})),
    ],
)
def test_a_refusal_does_not_repeat_what_is_long(method, message, caplog) -> None:
    class Refusing:
        async def refuse(self, request: Any) -> Any:
            raise AssertionError(f"it was let in: {request}")

        join_group = alter_acls = refuse

    dispatch = Dispatch(Refusing(), on_bug=pytest.fail, door=Door(Access(rules=RULES)))
    _, parts = asyncio.run(dispatch.answer(method, message, ALICE, HERE))
    assert len(b"".join(parts)) < 1_000
    assert "refused a call" in caplog.text
    assert len(caplog.text) < 2_000
