"""Limits per principal: rates by the millisecond, and transactions that are open."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.actors.protocol import quotas
from oncelog.actors.protocol.messages.access import NO_LIMITS, Limits
from oncelog.actors.protocol.messages.partition import ListOffsetsRequest
from oncelog.actors.protocol.messages.transaction import BeginRunRequest, InitProducerIdRequest
from oncelog.actors.protocol.quotas import (
    QUOTA_WINDOW_MS,
    THROTTLE_MAX_MS,
    OpenTransactions,
    Quotas,
    TokenBucket,
    timeout_refusal,
)
from oncelog.storage.model import TopicPartition

ALICE, BOB, CAROL = "User:alice", "User:bob", "User:carol"
RATES = st.integers(1, 10_000)
TEN_A_SECOND = Limits(requests_per_second=10)


def spend(known: Quotas, principal: str, now_ms: int, limits: Limits = TEN_A_SECOND) -> int:
    return known.spend(principal, limits, requests=100, size_bytes=0, now_ms=now_ms)


# --- a bucket -------------------------------------------------------------------------------------


def test_what_was_saved_up_is_free_and_a_debt_takes_its_time():
    bucket = TokenBucket(10, now_ms=0)
    assert bucket.spend(100, now_ms=0) == 0
    assert bucket.spend(1, now_ms=0) == 100
    assert bucket.spend(1, now_ms=50) == 150
    assert bucket.spend(0, now_ms=199) == 1
    assert bucket.spend(0, now_ms=200) == 0


@given(rate=RATES, data=st.data())
def test_over_a_long_run_the_rate_is_not_exceeded_by_callers_that_wait(rate, data):
    """Several callers with a request each; together they cost less than the longest throttle."""
    count = data.draw(st.integers(1, 4))
    largest = rate * (THROTTLE_MAX_MS // 1_000) // count
    amounts = st.integers(0, min(largest, 100 * rate))
    bucket, spent, now_ms = TokenBucket(rate, now_ms=0), 0, 0
    ready_ms = [0] * count
    for _ in range(data.draw(st.integers(1, 60))):
        caller = min(range(count), key=ready_ms.__getitem__)
        now_ms = max(now_ms, ready_ms[caller]) + data.draw(st.sampled_from([0, 0, 1, 700]))
        amount = data.draw(amounts)
        throttle_ms = bucket.spend(amount, now_ms)
        spent += amount
        ready_ms[caller] = now_ms + throttle_ms
        # All debts are repaid by then.
        assert 1_000 * spent <= rate * (now_ms + throttle_ms + QUOTA_WINDOW_MS)


@given(rate=RATES, gaps=st.lists(st.integers(0, 5_000), min_size=1, max_size=60))
def test_below_the_rate_nobody_is_throttled(rate, gaps):
    bucket, now_ms = TokenBucket(rate, now_ms=0), 0
    for gap_ms in gaps:
        now_ms += gap_ms
        assert bucket.spend(rate * gap_ms // 1_000, now_ms) == 0


@given(rate=RATES, amount=st.integers(0, 2**63), now_ms=st.integers(0, 10**6))
def test_no_throttle_is_longer_than_the_longest_and_what_is_beyond_is_forgiven(
    rate, amount, now_ms
):
    bucket = TokenBucket(rate, now_ms=0)
    throttle_ms = bucket.spend(amount, now_ms)
    assert 0 <= throttle_ms <= THROTTLE_MAX_MS
    assert bucket.spend(0, now_ms + throttle_ms) == 0


@given(rate=RATES, times=st.lists(st.integers(0, 100_000), min_size=2, max_size=60))
def test_a_clock_that_goes_back_gives_nothing_and_holds_nobody_up(rate, times):
    bucket = TokenBucket(rate, now_ms=times[0])
    gained_ms = 0
    spent = 0
    for before_ms, now_ms in itertools.pairwise(times):
        gained_ms += max(0, now_ms - before_ms)
        if bucket.spend(rate, now_ms) == 0:
            spent += rate
    assert 1_000 * spent <= rate * (gained_ms + QUOTA_WINDOW_MS)
    # Whatever the clock did, a debt is repaid in its time.
    owed_ms = bucket.spend(0, times[-1])
    assert bucket.spend(0, times[-1] + owed_ms) == 0


# --- many principals ------------------------------------------------------------------------------


def test_each_principal_has_buckets_of_its_own_and_the_longer_throttle_counts():
    known = Quotas()
    both = Limits(requests_per_second=1, bytes_per_second=1_000)
    assert known.spend(ALICE, both, size_bytes=9_000, now_ms=0) == 0
    assert known.spend(ALICE, both, size_bytes=3_000, now_ms=0) == 2_000
    assert known.spend(ALICE, both, requests=12, size_bytes=0, now_ms=0) == 4_000
    assert known.spend(BOB, both, size_bytes=9_000, now_ms=0) == 0
    for _ in range(2):
        assert known.owed_ms(ALICE, both, now_ms=1_500) == 2_500
    assert known.owed_ms(CAROL, both, now_ms=1_500) == 0
    assert len(known) == 2


def test_one_rate_alone_is_a_limit():
    known = Quotas()
    bytes_only = Limits(bytes_per_second=1_000)
    assert known.spend(ALICE, bytes_only, requests=10**6, size_bytes=10_000, now_ms=0) == 0
    assert known.spend(ALICE, bytes_only, size_bytes=1, now_ms=0) == 1
    assert known.spend(BOB, TEN_A_SECOND, requests=100, size_bytes=10**9, now_ms=0) == 0
    assert known.spend(BOB, TEN_A_SECOND, size_bytes=10**9, now_ms=0) == 100


def test_without_a_rate_nothing_is_remembered():
    known = Quotas()
    for limits in (NO_LIMITS, Limits(connections=1, open_transactions=1)):
        assert known.spend(ALICE, limits, size_bytes=2**40, now_ms=0) == 0
    assert len(known) == 0


def test_changed_limits_begin_anew():
    known = Quotas()
    assert spend(known, ALICE, 0) == 0
    assert spend(known, ALICE, 0) == 10_000
    assert spend(known, ALICE, 0, Limits(requests_per_second=20)) == 0


def test_beyond_the_principals_remembered_the_one_silent_for_longest_begins_anew(monkeypatch):
    monkeypatch.setattr(quotas, "PRINCIPALS_MAX", 2)
    known = Quotas()
    for principal in (ALICE, BOB, ALICE):
        spend(known, principal, 0)
    assert spend(known, CAROL, 0) == 0
    assert len(known) == 2
    assert spend(known, ALICE, 0) == 20_000
    assert spend(known, BOB, 0) == 0


@pytest.mark.parametrize("name", Limits.__struct_fields__)
@pytest.mark.parametrize("value", [0, -1, 2**63])
def test_what_is_no_limit_is_refused(name, value):
    with pytest.raises(ValueError, match=f"{name}={value}: give 1 to"):
        Limits(**{name: value})


# --- transactions ---------------------------------------------------------------------------------


def test_a_longer_timeout_than_the_limit_is_refused_with_both():
    limits = Limits(transaction_timeout_ms_max=5_000)
    for request in (
        InitProducerIdRequest(transactional_id="copy", transaction_timeout_ms=5_001),
        BeginRunRequest(transactional_id="copy", run_id="r", transaction_timeout_ms=5_001),
    ):
        reason = timeout_refusal(request, ALICE, limits)
        assert "5001" in reason
        assert "5000" in reason
        assert ALICE in reason
        assert timeout_refusal(request, ALICE, NO_LIMITS) == ""
    for other in (
        InitProducerIdRequest(transactional_id="copy", transaction_timeout_ms=5_000),
        InitProducerIdRequest(transactional_id=None),
        ListOffsetsRequest(topic_partition=TopicPartition("flights", 0), timestamp_ms=0),
    ):
        assert timeout_refusal(other, ALICE, limits) == ""


class Shard:
    """Whose transactions are open, told by the test."""

    def __init__(self) -> None:
        self.open: set[str] = set()
        self.counted = OpenTransactions(self.open.__contains__)

    def opens(self, principal: str, transactional_id: str, limit: int = 2) -> bool:
        is_allowed = self.counted.begin(principal, transactional_id, limit)
        if is_allowed:
            self.open.add(transactional_id)
            self.counted.end(transactional_id)
        return is_allowed


def test_one_more_transaction_than_the_limit_is_refused_until_another_has_ended():
    shard = Shard()
    assert shard.opens(ALICE, "a")
    assert shard.opens(ALICE, "b")
    assert not shard.opens(ALICE, "c")
    assert shard.opens(ALICE, "a")
    assert shard.opens(BOB, "x")
    shard.open.remove("a")
    assert shard.opens(ALICE, "c")
    assert not shard.opens(ALICE, "a")


def test_a_request_that_opened_nothing_counts_only_while_it_runs():
    shard = Shard()
    assert shard.counted.begin(ALICE, "a", 1)
    assert shard.counted.begin(ALICE, "a", 1)
    assert not shard.counted.begin(ALICE, "b", 1)
    shard.counted.end("a")
    assert not shard.counted.begin(ALICE, "b", 1)
    shard.counted.end("a")
    assert shard.counted.begin(ALICE, "b", 1)


def test_ids_that_are_not_open_are_not_remembered_however_high_the_limit():
    shard, limit = Shard(), 1_000_000
    for number in range(5_000):
        assert shard.counted.begin(ALICE, f"never-{number}", limit)
        shard.counted.end(f"never-{number}")
        assert shard.opens(ALICE, f"once-{number}", limit)
        shard.open.discard(f"once-{number - 10}")
        assert len(shard.counted) <= 10 + quotas.IDS_MAX + 2


def test_a_transaction_that_a_new_leader_finds_open_is_never_refused_but_counts():
    shard = Shard()
    shard.open |= {"a", "b"}
    assert shard.opens(ALICE, "a", limit=1)
    assert shard.opens(ALICE, "b", limit=1)
    assert not shard.opens(ALICE, "c", limit=1)
    # Nor may one that has ended begin again.
    shard.open.remove("a")
    assert not shard.opens(ALICE, "a", limit=1)


def test_owners_of_transactions_are_remembered_within_a_bound(monkeypatch):
    monkeypatch.setattr(quotas, "OWNERS_MAX", 2)
    shard = Shard()
    assert shard.opens(ALICE, "a", limit=1)
    assert shard.opens(BOB, "b", limit=1)
    shard.open.remove("b")
    # Who has nothing open makes room first.
    assert shard.opens(CAROL, "c", limit=1)
    assert not shard.opens(ALICE, "a2", limit=1)
    # Nobody has: the first one is counted anew.
    assert shard.opens(BOB, "b", limit=1)
    assert not shard.opens(CAROL, "c2", limit=1)
    assert shard.opens(ALICE, "a2", limit=1)
