"""Sequences that go on in a producer's next transaction, under a chained ticket.

A Kafka client of transactions' version 1 has one epoch for all its transactions. Here each end
raises it: a gateway writes the current one into each batch, and the ticket tells where the chain
began.
"""

from __future__ import annotations

from typing import Any

import pytest
from led_partition import make_header

from oncelog.actors.protocol.partition.partition_machine import ACCEPTED, AppendVerdict
from oncelog.actors.protocol.partition.producers import PRODUCER_ID_EXPIRATION_MS
from oncelog.actors.protocol.tickets import NO_CHAIN, ClusterKeys
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import SEQUENCE_MAX, AppendOrigin

NONE = ErrorCode.NONE
OUT_OF_ORDER = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
EPOCH = 5
"""Of the transaction that is asked about."""


def send(
    leader: Any,
    sequence: int,
    epoch: int = EPOCH,
    *,
    chain_epoch: int = NO_CHAIN,
    count: int = 1,
    **more: Any,
) -> AppendVerdict:
    ticket = leader.ticket(producer_epoch=epoch, chain_epoch=chain_epoch)
    verdict: AppendVerdict = leader.send_transactional(
        sequence, producer_epoch=epoch, count=count, ticket=ticket, **more
    )
    return verdict


def transact(leader: Any, first: int, last: int, epoch: int, *, chain_epoch: int = 0) -> None:
    """A committed transaction of ``epoch`` with a batch for each sequence; both inclusive."""
    for sequence in range(first, last + 1):
        assert send(leader, sequence, epoch, chain_epoch=chain_epoch) == ACCEPTED
    assert leader.mark(producer_epoch=epoch + 1) is NONE


def written(leader: Any) -> Any:
    """Sequences 0 to 6 in epoch 3; then a transaction of epoch 4 that wrote nothing here."""
    transact(leader, 0, 6, EPOCH - 2)
    assert leader.mark(producer_epoch=EPOCH) is NONE
    return leader


@pytest.mark.parametrize("chain_epoch", [EPOCH - 3, EPOCH - 2])
@pytest.mark.parametrize(
    ("sequence", "error", "is_early"),
    [
        (7, NONE, False),
        (8, OUT_OF_ORDER, True),  # the one before is still on its way
        (6, OUT_OF_ORDER, False),  # late copies, which the log has
        (2, OUT_OF_ORDER, False),
        (0, OUT_OF_ORDER, False),
        (9 + 2**30, OUT_OF_ORDER, False),
    ],
)
def test_a_chain_goes_on_after_its_newest_batch(
    leader: Any, chain_epoch: int, sequence: int, error: ErrorCode, is_early: bool
) -> None:
    end = written(leader).end
    verdict = send(leader, sequence, chain_epoch=chain_epoch)
    assert (verdict.error, verdict.is_early) == (error, is_early)
    assert verdict.duplicate_base_offset is None
    assert leader.end == end + (error is NONE)


@pytest.mark.parametrize("chain_epoch", [NO_CHAIN, EPOCH - 1, EPOCH])
@pytest.mark.parametrize(
    ("sequence", "error", "is_early"),
    [(0, NONE, False), (7, OUT_OF_ORDER, True), (6, OUT_OF_ORDER, True)],
)
def test_without_a_chain_and_in_a_younger_one_each_epoch_begins_at_zero(
    leader: Any, chain_epoch: int, sequence: int, error: ErrorCode, is_early: bool
) -> None:
    verdict = send(written(leader), sequence, chain_epoch=chain_epoch)
    assert (verdict.error, verdict.is_early) == (error, is_early)
    assert verdict.duplicate_base_offset is None


@pytest.mark.parametrize("chain_epoch", [NO_CHAIN, 0, EPOCH])
@pytest.mark.parametrize("is_known", [False, True])
def test_producer_without_batches_begins_at_zero_in_a_chain_too(
    leader: Any, chain_epoch: int, is_known: bool
) -> None:
    if is_known:
        leader.mark(producer_epoch=EPOCH)
    early = send(leader, 1, chain_epoch=chain_epoch)
    assert (early.error, early.is_early) == (OUT_OF_ORDER, True)
    assert send(leader, 0, chain_epoch=chain_epoch) == ACCEPTED


@pytest.mark.parametrize("chain_epoch", [NO_CHAIN, 0, EPOCH - 2, EPOCH])
def test_within_an_epoch_the_chain_says_nothing(leader: Any, chain_epoch: int) -> None:
    first = 7 if chain_epoch in (0, EPOCH - 2) else 0
    written(leader)
    place = leader.end
    assert send(leader, first, chain_epoch=chain_epoch) == ACCEPTED
    assert send(leader, first + 1, chain_epoch=chain_epoch) == ACCEPTED
    assert send(leader, first, chain_epoch=chain_epoch).duplicate_base_offset == place
    gap = send(leader, first + 3, chain_epoch=chain_epoch)
    assert (gap.error, gap.is_early) == (OUT_OF_ORDER, True)
    behind = send(leader, first - 1 if first else SEQUENCE_MAX, chain_epoch=chain_epoch)
    assert (behind.error, behind.is_early) == (OUT_OF_ORDER, False)


def test_a_chain_goes_on_in_an_epoch_for_which_no_marker_came(leader: Any) -> None:
    """The partition was not in the transactions between: the leader knows the epoch by its data."""
    transact(leader, 0, 6, EPOCH - 2)
    assert send(leader, 0, chain_epoch=0).error is OUT_OF_ORDER
    assert send(leader, 7, chain_epoch=0) == ACCEPTED


def test_after_a_marker_the_last_batch_of_the_epoch_before_is_fenced(leader: Any) -> None:
    transact(leader, 0, 6, EPOCH)
    for chain_epoch in (NO_CHAIN, 0, EPOCH):
        verdict = send(leader, 6, chain_epoch=chain_epoch)
        assert verdict == AppendVerdict(error=ErrorCode.INVALID_PRODUCER_EPOCH)


def test_a_chain_wraps_from_one_transaction_to_the_next(leader: Any) -> None:
    first = make_header(
        producer_epoch=EPOCH - 1, base_sequence=SEQUENCE_MAX - 1, count=2, is_transactional=True
    )
    leader.write(first, ACCEPTED)
    leader.mark(producer_epoch=EPOCH)
    assert send(leader, SEQUENCE_MAX, chain_epoch=0).error is OUT_OF_ORDER
    assert send(leader, 0, chain_epoch=0) == ACCEPTED


def test_chains_follow_one_another_and_other_clients_in_turn(leader: Any) -> None:
    """A chain from 0, one that did not write here, our own producer, and a chain from 6."""
    transact(leader, 0, 2, 0)
    transact(leader, 3, 3, 1)
    assert leader.mark(producer_epoch=4) is NONE
    assert send(leader, 4, 4, chain_epoch=2).error is OUT_OF_ORDER
    transact(leader, 0, 1, 4, chain_epoch=NO_CHAIN)
    transact(leader, 0, 1, 5, chain_epoch=NO_CHAIN)
    assert send(leader, 2, 6, chain_epoch=6).error is OUT_OF_ORDER
    transact(leader, 0, 1, 6, chain_epoch=6)
    transact(leader, 2, 2, 7, chain_epoch=6)


def test_coordinator_counts_from_zero_under_a_chained_ticket(leader: Any) -> None:
    written(leader)
    coordinator = AppendOrigin.COORDINATOR
    place = leader.end
    assert send(leader, 0, chain_epoch=0, origin=coordinator) == ACCEPTED
    assert send(leader, 0, chain_epoch=0, origin=coordinator).duplicate_base_offset == place
    assert leader.mark(producer_epoch=EPOCH + 1) is NONE
    stale = send(leader, 0, EPOCH + 1, chain_epoch=0, origin=coordinator)
    assert stale == ACCEPTED  # No duplicate of the number in the epoch before.


def test_the_sequences_that_are_told_are_those_of_the_epoch(leader: Any) -> None:
    (described,) = written(leader).machine.describe_producers([7])
    assert (described.producer_epoch, described.last_sequence) == (EPOCH, -1)
    send(leader, 7, chain_epoch=0)
    (described,) = leader.machine.describe_producers([7])
    assert (described.producer_epoch, described.last_sequence) == (EPOCH, 7)


# --- another replica, another start -----------------------------------------------------------


@pytest.mark.parametrize("begins_with", ["the log", "an old snapshot", "a snapshot at the end"])
def test_the_next_leader_goes_on_with_the_chain(leader: Any, begins_with: str) -> None:
    transact(leader, 0, 3, EPOCH - 2)
    early = (leader.end, leader.machine.snapshot())
    assert leader.mark(producer_epoch=EPOCH) is NONE
    start = {
        "the log": (0, None),
        "an old snapshot": early,
        "a snapshot at the end": (leader.end, leader.machine.snapshot()),
    }[begins_with]
    leader.machine = leader.reload(*start)
    leader.machine.become_leader(2, "topic-id-1", ClusterKeys(current=b"k" * 32))
    assert send(leader, 3, chain_epoch=0).error is OUT_OF_ORDER
    assert send(leader, 0, chain_epoch=0).error is OUT_OF_ORDER
    assert send(leader, 4, chain_epoch=0) == ACCEPTED


def test_a_snapshot_that_forgot_batches_at_markers_makes_a_chain_begin_at_zero(leader: Any) -> None:
    """That of an older build: the client gives up, and takes another epoch."""
    forgotten = [one.without_batch() for one in written(leader).machine.snapshot()]
    leader.machine = leader.reload(leader.end, forgotten)
    leader.machine.become_leader(2, "topic-id-1", ClusterKeys(current=b"k" * 32))
    assert send(leader, 7, chain_epoch=0).error is OUT_OF_ORDER
    assert leader.mark(producer_epoch=EPOCH + 1) is NONE
    assert send(leader, 0, EPOCH + 2, chain_epoch=EPOCH + 2) == ACCEPTED


def test_truncation_takes_a_chain_back(leader: Any) -> None:
    transact(leader, 0, 3, EPOCH - 1)
    cut_at = leader.end
    transact(leader, 4, 5, EPOCH)
    leader.log = [entry for entry in leader.log if entry[0].base_offset < cut_at]
    leader.fail_over()
    assert send(leader, 6, chain_epoch=0).error is OUT_OF_ORDER
    assert send(leader, 4, chain_epoch=0) == ACCEPTED


def test_a_chain_outlives_its_data_and_ends_when_its_producer_is_forgotten(leader: Any) -> None:
    written(leader)
    leader.machine.advance_high_watermark(leader.end)
    leader.machine.advance_log_start(leader.end)
    assert send(leader, 0, chain_epoch=0).error is OUT_OF_ORDER
    leader.machine.expire(0)
    assert leader.machine.expire(PRODUCER_ID_EXPIRATION_MS) == 1
    early = send(leader, 7, chain_epoch=0)
    assert (early.error, early.is_early) == (OUT_OF_ORDER, True)
    assert send(leader, 0, EPOCH + 1, chain_epoch=EPOCH + 1) == ACCEPTED
