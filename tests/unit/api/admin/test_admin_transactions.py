"""What the admin client asks about transactions, and of whom."""

from __future__ import annotations

import pytest

from oncelog.actors.protocol.messages.cluster import RotateClusterKeyReply, RotateClusterKeyRequest
from oncelog.actors.protocol.messages.partition import (
    DescribeProducersReply,
    DescribeProducersRequest,
    ProducerDescription,
)
from oncelog.actors.protocol.messages.transaction import (
    AbortTransactionReply,
    AbortTransactionRequest,
    DeleteTransactionalIdReply,
    DeleteTransactionalIdRequest,
    DescribeTransactionsReply,
    DescribeTransactionsRequest,
    TransactionDescription,
)
from oncelog.api.admin.admin import AsyncAdmin
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import (
    InvalidRequestError,
    InvalidSettingError,
    InvalidTxnStateError,
    TransactionalIdNotFoundError,
    UnknownTopicOrPartitionError,
)
from oncelog.storage.model import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, TopicPartition

DEFAULT_AGE_MS = 900_000 + 300_000


@pytest.fixture
def admin(fake_cluster):
    def describe(request):
        ids = request.transactional_ids
        if ids is None:
            return DescribeTransactionsReply()
        if ids != ("loader",):
            return request.failed(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        return DescribeTransactionsReply(transactions=(described(),))

    fake_cluster.answers[DescribeTransactionsRequest] = describe
    fake_cluster.answers[DescribeProducersRequest] = lambda request: DescribeProducersReply()
    fake_cluster.answers[AbortTransactionRequest] = lambda request: AbortTransactionReply(
        visible=True
    )
    return AsyncAdmin(fake_cluster.router(), random=fake_cluster.random)


def described():
    return TransactionDescription(
        transactional_id="loader",
        state="Ongoing",
        producer_id=7,
        producer_epoch=5,
        transaction_timeout_ms=60_000,
    )


def test_filters_travel_to_every_shard(fake_cluster, run, admin):
    run(admin.list_transactions(states=["Ongoing"], producer_ids=[7], running_longer_than_ms=5))

    first, second = fake_cluster.requests(DescribeTransactionsRequest)
    assert first == second
    assert (first.states, first.producer_ids) == (("Ongoing",), (7,))
    assert first.running_longer_than_ms == 5
    run(admin.list_transactions())
    plain = fake_cluster.requests(DescribeTransactionsRequest)[-1]
    assert (plain.states, plain.producer_ids, plain.running_longer_than_ms) == ((), (), -1)


def test_an_unknown_state_is_refused_with_those_that_are_known(fake_cluster, run, admin):
    with pytest.raises(InvalidRequestError, match=r"'Open'.*Ongoing"):
        run(admin.list_transactions(states=["Open"]))
    with pytest.raises(InvalidSettingError, match="running_longer_than_ms=-5"):
        run(admin.list_transactions(running_longer_than_ms=-5))
    assert fake_cluster.calls == []


def test_an_abort_names_the_transaction_that_was_seen_and_repeats_it(fake_cluster, run, admin):
    fake_cluster.fail(AbortTransactionRequest, ErrorCode.REQUEST_TIMED_OUT)

    assert run(admin.abort_transaction("loader")) is True

    first, second = fake_cluster.requests(AbortTransactionRequest)
    assert first == second
    assert (first.producer_id, first.producer_epoch) == (7, 5)


def test_an_abort_that_is_refused_says_why(fake_cluster, run, admin):
    fake_cluster.answers[AbortTransactionRequest] = lambda request: request.failed(
        ErrorCode.INVALID_TXN_STATE, "'loader' is in state Empty"
    )
    with pytest.raises(InvalidTxnStateError, match="Empty"):
        run(admin.abort_transaction("loader"))
    with pytest.raises(TransactionalIdNotFoundError, match="nobody"):
        run(admin.abort_transaction("nobody"))


def test_a_deletion_whose_answer_was_lost_is_done(fake_cluster, run, admin):
    answers = [ErrorCode.REQUEST_TIMED_OUT, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND]
    fake_cluster.answers[DeleteTransactionalIdRequest] = lambda request: DeleteTransactionalIdReply(
        error=answers.pop(0)
    )
    run(admin.delete_transactional_id("loader"))
    answers.append(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
    with pytest.raises(TransactionalIdNotFoundError):
        run(admin.delete_transactional_id("loader"))


@pytest.mark.parametrize(
    ("filters", "asked"),
    [
        (
            {},
            {"flights-0", "flights-1", "delays-0", "__consumer_offsets-0", "__consumer_offsets-1"},
        ),
        ({"topic": "flights"}, {"flights-0", "flights-1"}),
        ({"topic": "flights", "partition": 1}, {"flights-1"}),
        ({"broker_id": 2}, set()),
        ({"topic": "delays", "broker_id": 1}, {"delays-0"}),
    ],
)
def test_hanging_transactions_are_looked_for_where_the_filters_say(
    fake_cluster, run, admin, filters, asked
):
    fake_cluster.create("flights", 2)
    fake_cluster.create("delays")

    assert run(admin.find_hanging_transactions(**filters)) == []

    requests = fake_cluster.requests(DescribeProducersRequest)
    assert {str(request.topic_partition) for request in requests} == asked


def test_only_transactions_beyond_the_longest_timeout_are_looked_at(fake_cluster, run, admin):
    fake_cluster.create("flights")
    now_ms = fake_cluster.clock.now_ms()
    ages_ms = {1: DEFAULT_AGE_MS, 2: DEFAULT_AGE_MS - 1}
    fake_cluster.answers[DescribeProducersRequest] = lambda request: DescribeProducersReply(
        producers=tuple(
            ProducerDescription(
                producer_id=producer_id,
                producer_epoch=0,
                last_sequence=0,
                last_timestamp_ms=now_ms - age_ms,
                coordinator_epoch=-1,
                current_txn_first_offset=producer_id,
            )
            for producer_id, age_ms in ages_ms.items()
        )
    )
    found = run(admin.find_hanging_transactions(topic="flights"))
    assert [one.producer_id for one in found] == [1]
    found = run(admin.find_hanging_transactions(topic="flights", older_than_ms=0))
    assert [one.producer_id for one in found] == [1, 2]


@pytest.mark.parametrize(
    ("filters", "error"),
    [
        ({"topic": "nowhere"}, UnknownTopicOrPartitionError),
        ({"topic": "flights", "partition": 9}, UnknownTopicOrPartitionError),
        ({"topic": "flights", "broker_id": 9}, UnknownTopicOrPartitionError),
        ({"partition": 0}, InvalidRequestError),
        ({"older_than_ms": -1}, InvalidSettingError),
    ],
)
def test_filters_that_leave_nothing_are_refused(fake_cluster, run, admin, filters, error):
    fake_cluster.create("flights")
    with pytest.raises(error):
        run(admin.find_hanging_transactions(**filters))


def test_a_key_is_rotated_once_though_an_answer_is_lost(fake_cluster, run, admin):
    fake_cluster.fail(RotateClusterKeyRequest, ErrorCode.REQUEST_TIMED_OUT)
    fake_cluster.answers[RotateClusterKeyRequest] = lambda request: RotateClusterKeyReply(
        key_version=request.key_version + 1
    )
    assert run(admin.rotate_ticket_key()) == 1
    first, second = fake_cluster.requests(RotateClusterKeyRequest)
    assert first == second == RotateClusterKeyRequest(key_version=0)


def test_offsets_are_listed_by_time(fake_cluster, run, admin):
    (log,) = fake_cluster.create("flights")
    log.append(b"a", codec_time_ms=1_000)
    log.append(b"b", codec_time_ms=2_000)
    flights = TopicPartition("flights", 0)

    async def scenario():
        return [
            (await admin.list_offsets({flights: time_ms}))[flights]
            for time_ms in (EARLIEST_TIMESTAMP, 1_500, 3_000, LATEST_TIMESTAMP)
        ]

    assert run(scenario()) == [0, 1, -1, 2]
