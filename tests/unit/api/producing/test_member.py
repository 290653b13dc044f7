"""Members of a distributed write, and how its run ends."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from random import Random
from typing import Any

import pytest
from inside import core_of

from oncelog.actors.protocol.messages.partition import ProduceRequest
from oncelog.actors.protocol.messages.transaction import (
    AddPartitionsToTxnRequest,
    BeginRunReply,
    BeginRunRequest,
    EndTxnRequest,
    EnlistRequest,
    LeaveRunRequest,
    RenewRunRequest,
    Run,
    Winner,
)
from oncelog.api.config import ProducerSettings
from oncelog.api.producing.member import (
    AsyncTransactionMember,
    Membership,
    RunEnd,
    TransactionMember,
    begin_run,
    end_run,
)
from oncelog.api.session.event_loop import LoopThread
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import (
    ClientClosedError,
    IllegalStateError,
    InvalidTxnStateError,
    OutdatedVersionError,
    ProducerFencedError,
    RequestTimedOutError,
    TransactionAbortableError,
)

MEMBERSHIP = Membership(transactional_id="query", run=Run(number=1, id="a"), token=b"batch-1")


def member(cluster: Any) -> AsyncTransactionMember:
    return AsyncTransactionMember(
        cluster.router(), ProducerSettings(), MEMBERSHIP, random=Random(1)
    )


async def end(cluster: Any, **arguments: Any) -> Any:
    settings = ProducerSettings(max_block_ms=1_000)
    return await end_run(cluster.router(), settings, MEMBERSHIP, random=Random(1), **arguments)


def test_a_member_writes_as_its_own_producer_and_reports_what_was_acknowledged(
    cluster: Any, run: Any
) -> None:
    (leader,) = cluster.create("t")

    async def story() -> None:
        first, second = member(cluster), member(cluster)
        assert await first.enlist()
        assert await second.enlist()
        await first.send("t", b"1")
        await second.send("t", b"2")
        await second.send("t", b"3")
        await first.flush()
        await second.flush()
        assert first.winner.record_count == 1
        assert second.winner == Winner(producer_id=first.winner.producer_id + 1, record_count=2)
        await first.close()
        await second.close()

    run(story())
    assert sorted(leader.values()) == [b"1", b"2", b"3"]
    assert (
        len({request.producer_id for request in cluster.requests(AddPartitionsToTxnRequest)}) == 2
    )
    assert not cluster.requests(EndTxnRequest)


class FunctionError(Exception):
    pass


@pytest.mark.parametrize("answer", [ErrorCode.NONE, ErrorCode.UNKNOWN_SERVER_ERROR])
def test_a_member_that_fails_says_so_and_raises_what_it_failed_of(
    cluster: Any, run: Any, answer: ErrorCode
) -> None:
    cluster.create("t")
    if answer is not ErrorCode.NONE:
        cluster.fault(LeaveRunRequest, answer)

    async def story() -> None:
        async with member(cluster) as failing:
            assert await failing.enlist()
            await (await failing.send("t", b"1"))
            raise FunctionError

    with pytest.raises(FunctionError):
        run(story())
    ((enrolled, left),) = zip(
        cluster.requests(AddPartitionsToTxnRequest), cluster.requests(LeaveRunRequest), strict=True
    )
    assert (left.producer_id, left.producer_epoch) == (enrolled.producer_id, 0)


def renewals_of(cluster: Any) -> asyncio.Queue[RenewRunRequest]:
    """Every renewal that is asked for from now on."""
    asked: asyncio.Queue[RenewRunRequest] = asyncio.Queue()
    call = cluster.call

    async def noted(actor: str, request: Any, *, timeout_ms: int) -> Any:
        if isinstance(request, RenewRunRequest):
            asked.put_nowait(request)
        return await call(actor, request, timeout_ms=timeout_ms)

    cluster.call = noted
    return asked


def brief_member(cluster: Any) -> AsyncTransactionMember:
    membership = dataclasses.replace(MEMBERSHIP, transaction_timeout_ms=40)
    return AsyncTransactionMember(
        cluster.router(), ProducerSettings(), membership, random=Random(1)
    )


@pytest.mark.parametrize("enlists", [False, True], ids=["before its first row", "enlisted"])
def test_the_run_of_a_member_is_renewed_until_it_leaves(
    cluster: Any, run: Any, *, enlists: bool
) -> None:
    async def story() -> None:
        asked = renewals_of(cluster)
        async with brief_member(cluster) as computing:
            if enlists:
                assert await computing.enlist()
            for _ in range(3):
                assert (await asked.get()).run == MEMBERSHIP.run
        renewal = core_of(computing)._renewal
        assert renewal is not None
        await asyncio.wait([renewal])
        assert renewal.cancelled()

    run(story())


def test_a_run_that_is_over_is_not_renewed(cluster: Any, run: Any) -> None:
    cluster.fault(RenewRunRequest, ErrorCode.NETWORK_EXCEPTION, ErrorCode.PRODUCER_FENCED)

    async def story() -> None:
        asked = renewals_of(cluster)
        async with brief_member(cluster) as late:
            assert core_of(late)._renewal is not None
            await core_of(late)._renewal
        assert asked.qsize() == 2

    run(story())


@pytest.mark.parametrize("enlists", [False, True])
def test_a_member_without_failure_or_identity_says_nothing(
    cluster: Any, run: Any, *, enlists: bool
) -> None:
    async def story() -> None:
        async with member(cluster) as sound:
            if enlists:
                assert await sound.enlist()
            else:
                raise FunctionError

    with contextlib.suppress(FunctionError):
        run(story())
    assert cluster.requests(LeaveRunRequest) == []


def test_a_committed_token_tells_the_member_to_write_nothing(cluster: Any, run: Any) -> None:
    cluster.fault(EnlistRequest, ErrorCode.ALREADY_COMMITTED)

    async def story() -> None:
        assert await member(cluster).enlist() is False

    run(story())


def test_a_member_of_an_older_run_is_fenced(cluster: Any, run: Any) -> None:
    cluster.fault(EnlistRequest, ErrorCode.PRODUCER_FENCED)

    async def story() -> None:
        with pytest.raises(ProducerFencedError):
            await member(cluster).enlist()

    run(story())


async def begin(cluster: Any, **details: Any) -> Membership:
    settings = ProducerSettings(max_block_ms=1_000)
    return await begin_run(cluster.router(), settings, "query", random=Random(1), **details)


def test_a_run_begins_after_the_newest_that_the_coordinator_knows(cluster: Any, run: Any) -> None:
    newest = [4]

    def number(request: BeginRunRequest) -> BeginRunReply:
        if request.after != newest[0]:
            return BeginRunReply(error=ErrorCode.CONCURRENT_TRANSACTIONS, number=newest[0])
        newest[0] += 1
        return BeginRunReply(number=newest[0])

    cluster.begins = number
    membership = run(begin(cluster, token=b"batch-1"))
    requests = cluster.requests(BeginRunRequest)
    assert [request.after for request in requests] == [0, 4]
    assert {request.run_id for request in requests} == {membership.run.id}
    assert membership.run.number == 5
    assert (membership.token, membership.is_committed) == (b"batch-1", False)


def test_a_run_of_what_is_committed_writes_nothing(cluster: Any, run: Any) -> None:
    cluster.fault(BeginRunRequest, ErrorCode.ALREADY_COMMITTED)
    membership = run(begin(cluster, token=b"batch-1"))
    assert membership.is_committed

    async def story() -> bool:
        committed = AsyncTransactionMember(
            cluster.router(), ProducerSettings(), membership, random=Random(1)
        )
        return await committed.enlist()

    assert run(story()) is False
    assert not cluster.requests(EnlistRequest)


@pytest.mark.parametrize("answer", [ErrorCode.OUTDATED_VERSION, ErrorCode.PRODUCER_FENCED])
def test_the_end_of_what_was_committed_before_is_success_whatever_followed(
    cluster: Any, run: Any, answer: ErrorCode
) -> None:
    cluster.fault(EndTxnRequest, answer)
    membership = dataclasses.replace(MEMBERSHIP, is_committed=True)
    ended = run(
        end_run(cluster.router(), ProducerSettings(), membership, committed=True, random=Random(1))
    )
    assert ended == RunEnd(visible=True, was_committed_before=True)


def test_a_version_that_was_passed_is_refused(cluster: Any, run: Any) -> None:
    cluster.fault(BeginRunRequest, ErrorCode.OUTDATED_VERSION)
    with pytest.raises(OutdatedVersionError):
        run(begin(cluster))


def test_a_begin_that_is_never_answered_says_what_to_do(cluster: Any, run: Any) -> None:
    cluster.begins = lambda request: request.failed(ErrorCode.CONCURRENT_TRANSACTIONS)
    with pytest.raises(RequestTimedOutError, match="begin one again"):
        run(begin(cluster))


def test_a_record_before_enlist_is_refused(cluster: Any, run: Any) -> None:
    cluster.create("t")

    async def story() -> None:
        early = member(cluster)
        with pytest.raises(IllegalStateError):
            await early.send("t", b"v")
        with pytest.raises(IllegalStateError, match=r"enlist\(\) first"):
            _ = early.winner

    run(story())


def test_a_failed_record_fails_the_flush_of_its_member(cluster: Any, run: Any) -> None:
    cluster.create("t")
    cluster.fault(ProduceRequest, ErrorCode.INVALID_RECORD)

    async def story() -> None:
        failing = member(cluster)
        await failing.enlist()
        await failing.send("t", b"v")
        with pytest.raises(TransactionAbortableError):
            await failing.flush()

    run(story())


def test_the_run_ends_with_its_winners_and_its_token(cluster: Any, run: Any) -> None:
    winner = Winner(producer_id=7, record_count=3)

    async def story() -> None:
        ended = await end(cluster, committed=True, winners=[winner])
        assert ended.visible

    run(story())
    (request,) = cluster.requests(EndTxnRequest)
    assert request.winners == (winner,)
    assert (request.run, request.token, request.committed) == (MEMBERSHIP.run, b"batch-1", True)


def test_a_lost_answer_to_the_end_of_a_run_is_asked_for_again(cluster: Any, run: Any) -> None:
    cluster.fault(EndTxnRequest, "lose reply", ErrorCode.CONCURRENT_TRANSACTIONS)

    async def story() -> None:
        await end(cluster, committed=True)

    run(story())
    assert len(cluster.requests(EndTxnRequest)) == 3


@pytest.mark.parametrize(
    ("error", "exception"),
    [
        (ErrorCode.INVALID_TXN_STATE, InvalidTxnStateError),
        (ErrorCode.PRODUCER_FENCED, ProducerFencedError),
    ],
)
def test_a_run_that_cannot_end_says_why(
    cluster: Any, run: Any, error: ErrorCode, exception: type[Exception]
) -> None:
    cluster.fault(EndTxnRequest, error)

    async def story() -> None:
        with pytest.raises(exception):
            await end(cluster, committed=True)

    run(story())


def test_a_run_whose_end_is_not_known_in_time_asks_for_the_same_call(
    cluster: Any, run: Any
) -> None:
    cluster.fault(EndTxnRequest, *(["lose call"] * 20))

    async def story() -> None:
        with pytest.raises(RequestTimedOutError, match="same arguments"):
            await end(cluster, committed=True)

    run(story())


def test_a_token_committed_before_is_told_at_the_end(cluster: Any, run: Any) -> None:
    cluster.fault(EndTxnRequest, ErrorCode.ALREADY_COMMITTED)

    async def story() -> None:
        assert (await end(cluster, committed=True)).was_committed_before

    run(story())


def test_a_member_in_a_thread(cluster: Any) -> None:
    (leader,) = cluster.create("t")
    loop_thread = LoopThread()
    with TransactionMember(
        cluster.router(), loop_thread, ProducerSettings(), MEMBERSHIP, random=Random(1)
    ) as sync_member:
        assert sync_member.enlist()
        sync_member.send("t", b"v")
        sync_member.flush()
        assert sync_member.record_count == 1
    with pytest.raises(ClientClosedError):
        sync_member.send("t", b"v")
    loop_thread.close()
    assert leader.values() == [b"v"]


def test_a_member_with_records_on_their_way_is_no_winner(cluster: Any, run: Any) -> None:
    cluster.create("t")

    async def story() -> None:
        hasty = member(cluster)
        assert await hasty.enlist()
        await hasty.send("t", b"v")
        with pytest.raises(IllegalStateError, match=r"flush\(\) first"):
            _ = hasty.winner
        await hasty.flush()
        assert hasty.winner.record_count == 1
        await hasty.close()

    run(story())


def test_only_winners_are_taken_for_winners(cluster: Any, run: Any) -> None:
    async def story() -> None:
        with pytest.raises(TypeError, match="not 17"):
            await end(cluster, committed=True, winners=[17])

    run(story())
    assert not cluster.requests(EndTxnRequest)


def test_a_member_that_was_closed_with_records_left_is_no_winner(cluster: Any, run: Any) -> None:
    (leader,) = cluster.create("t")

    async def story() -> None:
        hasty = member(cluster)
        await hasty.enlist()
        await hasty.send("t", b"1")
        await hasty.flush()
        await hasty.send("t", b"2")
        await hasty.close()
        with pytest.raises(IllegalStateError, match="1 records of the member failed"):
            _ = hasty.winner

    run(story())
    assert leader.values() == [b"1"]
