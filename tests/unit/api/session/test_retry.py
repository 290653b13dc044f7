"""When the same call is made again."""

from __future__ import annotations

import asyncio
import itertools
from random import Random
from typing import Any

import pytest

from oncelog.actors.protocol.messages.base import Reply
from oncelog.api.session.committed_offsets import is_retriable
from oncelog.api.session.retry import Backoff, BackoffPolicy, call_with_retries
from oncelog.storage.errors import ErrorCode


def attempts(*codes: ErrorCode) -> tuple[Any, list[float]]:
    """An attempt that answers ``codes`` one after the other, and the times it was made."""
    left = list(codes)
    times: list[float] = []

    async def attempt(left_ms: int) -> Reply:
        times.append(asyncio.get_running_loop().time())
        return Reply(error=left.pop(0) if len(left) > 1 else left[0])

    return attempt, times


def test_waits_double_up_to_the_maximum_within_their_jitter() -> None:
    backoff = Backoff(BackoffPolicy(initial_ms=100, max_ms=1_000, jitter=0.2), Random(1))
    for base in (100, 200, 400, 800, 1_000, 1_000):
        assert base * 0.8 <= backoff.delay_ms(ErrorCode.NETWORK_EXCEPTION) <= base * 1.2


def test_concurrent_transactions_waits_20_ms_and_lengthens_nothing() -> None:
    backoff = Backoff(BackoffPolicy(jitter=0), Random(1))
    for _ in range(5):
        assert backoff.delay_ms(ErrorCode.CONCURRENT_TRANSACTIONS) == 20
    assert backoff.delay_ms(ErrorCode.NETWORK_EXCEPTION) == 100


def test_reset_begins_with_the_shortest_wait() -> None:
    backoff = Backoff(BackoffPolicy(jitter=0), Random(1))
    backoff.delay_ms(ErrorCode.NETWORK_EXCEPTION)
    backoff.reset()
    assert backoff.delay_ms(ErrorCode.NETWORK_EXCEPTION) == 100


@pytest.mark.parametrize(
    "final", [ErrorCode.NONE, ErrorCode.PRODUCER_FENCED, ErrorCode.TRANSACTION_ABORTABLE]
)
def test_retriable_codes_are_repeated_until_a_final_one(run: Any, final: ErrorCode) -> None:
    attempt, times = attempts(ErrorCode.NOT_COORDINATOR, ErrorCode.NETWORK_EXCEPTION, final)
    reply = run(call_with_retries(attempt, random=Random(1), timeout_ms=10_000))
    assert reply.error is final
    assert len(times) == 3


def test_an_attempt_is_given_the_time_that_is_left(run: Any) -> None:
    given: list[int] = []

    async def attempt(left_ms: int) -> Reply:
        given.append(left_ms)
        await asyncio.sleep(0.4)
        return Reply(error=ErrorCode.NETWORK_EXCEPTION)

    run(call_with_retries(attempt, random=Random(1), timeout_ms=2_000))
    assert given[0] == 2_000
    assert all(0 < later <= left - 400 for left, later in itertools.pairwise(given))
    assert len(given) > 2


def test_the_last_retriable_reply_comes_back_when_time_is_up(run: Any) -> None:
    attempt, times = attempts(ErrorCode.NETWORK_EXCEPTION)
    reply = run(call_with_retries(attempt, random=Random(1), timeout_ms=2_000))
    assert reply.error is ErrorCode.NETWORK_EXCEPTION
    assert times[-1] <= 2.0
    assert len(times) > 3


def test_the_caller_may_say_what_is_retriable(run: Any) -> None:
    attempt, times = attempts(ErrorCode.NETWORK_EXCEPTION)
    run(
        call_with_retries(
            attempt, random=Random(1), timeout_ms=2_000, is_retriable=lambda error: False
        )
    )
    assert len(times) == 1


@pytest.mark.parametrize(
    ("error", "is_again"),
    [
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, True),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, True),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, False),
        (ErrorCode.UNKNOWN_TOPIC_ID, False),
        (ErrorCode.CORRUPT_MESSAGE, False),
        (ErrorCode.OFFSET_OUT_OF_RANGE, False),
        (ErrorCode.ILLEGAL_GENERATION, False),
    ],
)
def test_what_lasts_is_told_to_a_reader_at_once(error: ErrorCode, *, is_again: bool) -> None:
    assert is_retriable(error) is is_again
