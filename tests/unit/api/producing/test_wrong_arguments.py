"""Every call of a transaction × every wrong argument: refused here, named, and nothing is lost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pyarrow as pa
import pytest

from oncelog.actors.protocol.messages.cluster import MetadataRequest
from oncelog.actors.protocol.messages.group import OffsetAndMetadata, TxnOffsetCommitRequest
from oncelog.actors.protocol.messages.transaction import AddPartitionsToTxnRequest
from oncelog.api.config import ConsumerSettings, ProducerSettings
from oncelog.api.records import ConsumerGroupMetadata
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import (
    InvalidGroupIdError,
    InvalidRequestError,
    InvalidSettingError,
    InvalidTopicError,
    MessageTooLargeError,
    OffsetMetadataTooLargeError,
    OncelogError,
    TransactionAbortableError,
    UnknownTopicOrPartitionError,
)
from oncelog.storage.model import TopicPartition

Call = Callable[[Any], Awaitable[Any]]

PLACE = TopicPartition("t", 0)
GROUP = ConsumerGroupMetadata(group_id="g")
LONE = "\ud800"


def send(**wrong: Any) -> Call:
    return lambda producer: producer.send(**({"topic": "t", "value": b"wrong"} | wrong))


def table(**columns: Any) -> Call:
    return lambda producer: producer.send_arrow("t", pa.table({"value": [b"wrong"]} | columns))


def offsets(offsets: Any, group: Any = GROUP) -> Call:
    return lambda producer: producer.send_offsets_to_transaction(offsets, group)


def at(*, topic: Any = "t", partition: Any = 0, **position: Any) -> Call:
    place = TopicPartition(topic, partition)
    return offsets({place: OffsetAndMetadata(**({"offset": 5} | position))})


def group(**wrong: Any) -> Call:
    return offsets({PLACE: 5}, ConsumerGroupMetadata(**({"group_id": "g"} | wrong)))


def commit(token: Any) -> Call:
    return lambda producer: producer.commit_transaction(token)


WRONG: dict[str, tuple[Call, type[Exception], str]] = {
    "send, topic: no text": (send(topic=5), TypeError, "topic must be str, not int"),
    "send, topic: empty": (send(topic=""), InvalidTopicError, "'' is not a topic name: 1 to 249"),
    "send, topic: slash": (send(topic="a/b"), InvalidTopicError, "'a/b' is not a topic name"),
    "send, topic: surrogate": (send(topic=LONE), InvalidTopicError, r"'\\ud800' is not a topic"),
    "send, topic: internal": (send(topic="__transaction_state"), InvalidTopicError, "is internal"),
    "send, topic: unknown": (send(topic="u"), UnknownTopicOrPartitionError, "no topic 'u'"),
    "send, value: text": (send(value="x"), TypeError, "value must be bytes or None, not str"),
    "send, value: long": (send(value=b"." * 1_048_577), MessageTooLargeError, "max_request_size"),
    "send, key: number": (send(key=5), TypeError, "key must be bytes or None, not int"),
    "send, headers: number": (send(headers=5), TypeError, r"headers must be pairs .* got 5"),
    "send, headers: no pair": (send(headers=["h"]), TypeError, r"headers must be pairs .* 'h'"),
    "send, header name": (send(headers=[(5, b"")]), TypeError, "headers must be pairs"),
    "send, header value": (send(headers=[("h", "x")]), TypeError, "header 'h' must be bytes"),
    "send, header surrogate": (
        send(headers=[(LONE, b"")]),
        ValueError,
        r"header name '\\ud800' must be text that UTF-8 can encode",
    ),
    "send, timestamp: text": (send(timestamp_ms="x"), TypeError, "timestamp_ms must be an int"),
    "send, timestamp: long": (send(timestamp_ms=2**63), ValueError, "does not fit into 64 bits"),
    "send, partition: text": (send(partition="x"), TypeError, "partition must be an int"),
    "send, partition: -1": (
        send(partition=-1),
        UnknownTopicOrPartitionError,
        "has partitions 0 to 0, not -1",
    ),
    "send, partition: 2^70": (
        send(partition=2**70),
        UnknownTopicOrPartitionError,
        "has partitions 0 to 0, not",
    ),
    "send_arrow, topic": (
        lambda producer: producer.send_arrow("a/b", pa.table({"value": [b"wrong"]})),
        InvalidTopicError,
        "'a/b' is not a topic name",
    ),
    "send_arrow, no table": (
        lambda producer: producer.send_arrow("t", [b"wrong"]),
        TypeError,
        "takes a pyarrow Table",
    ),
    "send_arrow, value": (table(value=[1.5]), TypeError, "value"),
    "send_arrow, timestamp": (table(timestamp=["x"]), TypeError, "timestamp"),
    "send_arrow, headers": (table(headers=["x"]), TypeError, "headers"),
    "send_arrow, partition: -1": (
        table(partition=[-1]),
        UnknownTopicOrPartitionError,
        "has partitions 0 to 0, not -1",
    ),
    "send_arrow, partition: 9": (table(partition=[9]), UnknownTopicOrPartitionError, "not 9"),
    "offsets: no mapping": (offsets([PLACE]), TypeError, "must be a mapping, not list"),
    "offsets, key": (offsets({"t": 1}), TypeError, "must map TopicPartition"),
    "offset: text": (offsets({PLACE: "x"}), TypeError, "must be an int of 0 or more"),
    "offset: bool": (offsets({PLACE: True}), TypeError, "must be an int of 0 or more"),
    "offset: -1": (offsets({PLACE: -1}), InvalidRequestError, "offset=-1 of t-0: give 0 to 922"),
    "offset: -1, full": (at(offset=-1), InvalidRequestError, "offset=-1 of t-0: give 0 to 922"),
    "offset: 2^63": (at(offset=2**63), InvalidRequestError, "offset=9223372036854775808 of t-0"),
    "offset: text, full": (at(offset="x"), TypeError, "offset='x' of t-0 must be an int"),
    "partition: -1": (at(partition=-1), InvalidRequestError, "partition=-1 of 't': give 0 to 2"),
    "partition: 2^31": (at(partition=2**31), InvalidRequestError, "partition=2147483648 of 't'"),
    "partition: text": (at(partition="0"), TypeError, "partition='0' of 't' must be an int"),
    "leader epoch: 2^31": (
        at(leader_epoch=2**31),
        InvalidRequestError,
        "leader_epoch=2147483648 of t-0: give -1 to 2147483647",
    ),
    "leader epoch: -2": (at(leader_epoch=-2), InvalidRequestError, "leader_epoch=-2 of t-0"),
    "leader epoch: none": (at(leader_epoch=None), TypeError, "leader_epoch=None of t-0"),
    "metadata: surrogate": (
        at(metadata="x" + LONE),
        InvalidRequestError,
        r"metadata='x\\ud800' of t-0: give at most 4096 bytes of UTF-8",
    ),
    "metadata: long": (
        at(metadata="é" * 2_049),
        OffsetMetadataTooLargeError,
        "metadata of t-0 has 4098 bytes: give at most 4096",
    ),
    "metadata: bytes": (at(metadata=b"x"), TypeError, "metadata=b'x' of t-0 must be a str"),
    "topic id": (at(topic_id=5), TypeError, "topic_id=5 of t-0 must be a str"),
    "topic id: surrogate": (at(topic_id=LONE), InvalidRequestError, r"topic_id='\\ud800' of t-0"),
    "topic: slash": (at(topic="a/b"), InvalidTopicError, "'a/b' is not a topic name: 1 to 249"),
    "topic: surrogate": (at(topic=LONE), InvalidTopicError, r"'\\ud800' is not a topic name"),
    "topic: no text": (at(topic=5), TypeError, "topic=5 must be a str"),
    "positions: 10,001": (
        offsets({TopicPartition("t", number): 1 for number in range(10_001)}),
        InvalidRequestError,
        "10001 positions: give at most 10000 in one call",
    ),
    "group: none": (offsets({PLACE: 5}, None), TypeError, r"group_metadata\(\) gives, not None"),
    "group: its id": (offsets({PLACE: 5}, "g"), TypeError, r"group_metadata\(\) gives, not 'g'"),
    "group id: empty": (group(group_id=""), InvalidGroupIdError, "group_id=''; give 1 to 1024"),
    "group id: long": (
        group(group_id="x" * 2_000),
        InvalidGroupIdError,
        r"group_id='x+; give 1 to 1024 bytes of UTF-8",
    ),
    "group id: surrogate": (group(group_id=LONE), InvalidGroupIdError, r"group_id='\\ud800'; give"),
    "group id: number": (group(group_id=5), TypeError, "group_id=5 must be a str"),
    "generation: text": (group(generation_id="x"), TypeError, "generation_id='x' must be an int"),
    "generation: 2^31": (
        group(generation_id=2**31),
        InvalidRequestError,
        "generation_id=2147483648; give -1 to 2147483647",
    ),
    "member: none": (group(member_id=None), TypeError, "member_id=None must be a str"),
    "member: surrogate": (group(member_id=LONE), InvalidRequestError, r"member_id='\\ud800'"),
    "instance: number": (group(group_instance_id=5), TypeError, "group_instance_id=5 must be"),
    "instance: surrogate": (
        group(group_instance_id=LONE),
        InvalidRequestError,
        r"group_instance_id='\\ud800'",
    ),
    "topic id of the group": (group(topic_ids={"t": 5}), TypeError, "topic_id=5 of t-0 must be"),
    "topic ids": (group(topic_ids=5), TypeError, "topic_ids=5 must be a mapping"),
    "token: empty": (commit(b""), InvalidRequestError, "token of 0 bytes .* 1 to 1024 bytes"),
    "token: long": (commit(b"." * 1_025), InvalidRequestError, "token of 1025 bytes is not"),
    "token: text": (commit("x"), InvalidRequestError, "token of 'x' is not allowed"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_argument_is_refused_and_the_transaction_can_be_aborted(
    cluster: Any, run: Any, name: str
) -> None:
    call, kind, words = WRONG[name]
    (leader,) = cluster.create("t")

    async def story() -> None:
        async with cluster.producer("loader") as producer:
            await producer.init_transactions()
            await producer.begin_transaction()
            await producer.send("t", b"first")
            with pytest.raises(kind, match=words):
                await call(producer)
            if "token" not in name:
                # What was refused is not left out in silence.
                with pytest.raises(TransactionAbortableError):
                    await producer.commit_transaction()
            await producer.abort_transaction()
            async with producer.transaction():
                await producer.send("t", b"next")

    run(story())
    assert cluster.requests(TxnOffsetCommitRequest) == []
    assert leader.committed_values() == [b"next"]


@pytest.mark.parametrize("token", [b"", b"." * 1_025, "x"])
def test_a_block_with_an_impossible_token_begins_no_transaction(
    cluster: Any, run: Any, token: Any
) -> None:
    (leader,) = cluster.create("t")

    async def story() -> None:
        async with cluster.producer("loader") as producer:
            await producer.init_transactions()
            with pytest.raises(InvalidRequestError):
                async with producer.transaction(token):
                    pytest.fail("the block was entered")
            async with producer.transaction():
                await producer.send("t", b"next")

    run(story())
    assert leader.committed_values() == [b"next"]


def test_an_impossible_name_is_not_asked_for(cluster: Any, run: Any) -> None:
    cluster.create("t")

    async def story() -> None:
        async with cluster.producer() as producer:
            with pytest.raises(InvalidTopicError):
                await producer.send("a/b", b"x")

    run(story())
    assert cluster.requests(MetadataRequest) == []


@pytest.mark.parametrize("name", ["transactional_id", "client_id"])
def test_an_id_that_cannot_be_sent_is_no_setting(name: str) -> None:
    with pytest.raises(InvalidSettingError, match=rf"{name}='\\ud800' is not allowed"):
        ProducerSettings.from_options({name: LONE})
    with pytest.raises(InvalidSettingError, match=r"group_id='\\ud800' is not allowed"):
        ConsumerSettings.from_options({"group_id": LONE})


# --- what a coordinator refuses ---------------------------------------------------------------

FENCING = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
"""They condemn the producer, not what it was given."""

REFUSALS = [
    code
    for code in ErrorCode
    if not code.retriable and code not in FENCING and code.error_class.value != "none"
]


@pytest.mark.parametrize("code", REFUSALS)
@pytest.mark.parametrize("request_kind", [TxnOffsetCommitRequest, AddPartitionsToTxnRequest])
def test_what_a_coordinator_refuses_spoils_the_transaction_only(
    cluster: Any, run: Any, code: ErrorCode, request_kind: type
) -> None:
    (leader,) = cluster.create("t")
    cluster.fault(request_kind, code)

    async def story() -> None:
        async with cluster.producer("loader") as producer:
            await producer.init_transactions()
            await producer.begin_transaction()
            with pytest.raises(OncelogError) as refused:
                await producer.send_offsets_to_transaction({PLACE: 5}, GROUP)
            assert refused.value.abortable
            await producer.abort_transaction()
            async with producer.transaction():
                await producer.send("t", b"next")

    run(story())
    assert leader.committed_values() == [b"next"]


@pytest.mark.parametrize("code", sorted(FENCING))
def test_what_condemns_the_producer_ends_it(cluster: Any, run: Any, code: ErrorCode) -> None:
    cluster.create("t")
    cluster.fault(AddPartitionsToTxnRequest, code)

    async def story() -> None:
        async with cluster.producer("loader") as producer:
            await producer.init_transactions()
            await producer.begin_transaction()
            with pytest.raises(OncelogError):
                await producer.send_offsets_to_transaction({PLACE: 5}, GROUP)
            with pytest.raises(OncelogError, match="failed permanently"):
                await producer.abort_transaction()

    run(story())
