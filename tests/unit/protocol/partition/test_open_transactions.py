from __future__ import annotations

import pytest

from oncelog.actors.protocol.partition.open_transactions import (
    CompletedTransaction,
    OpenTransactions,
)
from oncelog.storage.errors import InvariantViolation


def complete(
    transactions: OpenTransactions, producer_id: int, first: int, marker: int
) -> CompletedTransaction:
    return transactions.complete(
        producer_id=producer_id, first_offset=first, marker_offset=marker, is_aborted=True
    )


def test_partition_without_transactions_has_no_unstable_offset() -> None:
    transactions = OpenTransactions()
    assert transactions.first_unstable_offset == -1
    assert transactions.first_ongoing_offset == -1


def test_completed_transaction_stays_unstable_until_its_marker_is_replicated() -> None:
    transactions = OpenTransactions()
    transactions.begin(1, 10)
    complete(transactions, 1, 10, 15)
    transactions.forget_before(15)
    assert (len(transactions), transactions.first_unstable_offset) == (0, 10)
    transactions.forget_before(16)
    assert transactions.first_unstable_offset == -1


def test_unstable_offset_is_the_lowest_of_ongoing_and_unreplicated() -> None:
    transactions = OpenTransactions()
    transactions.begin(1, 10)
    transactions.begin(2, 20)
    transactions.begin(3, 30)
    complete(transactions, 2, 20, 40)
    assert transactions.first_unstable_offset == 10
    complete(transactions, 1, 10, 41)
    transactions.forget_before(41)
    assert transactions.first_unstable_offset == 10
    transactions.forget_before(42)
    assert transactions.first_unstable_offset == 30


def test_entry_for_the_aborted_index_names_the_oldest_transaction_still_ongoing() -> None:
    transactions = OpenTransactions()
    transactions.begin(1, 0)
    transactions.begin(2, 5)
    assert complete(transactions, 1, 0, 9).last_stable_offset == 5
    assert complete(transactions, 2, 5, 12).last_stable_offset == 13


def test_transaction_that_begins_below_a_newer_one_is_a_bug() -> None:
    transactions = OpenTransactions()
    transactions.begin(1, 10)
    with pytest.raises(InvariantViolation, match="I-02"):
        transactions.begin(2, 9)


@pytest.mark.parametrize(
    ("producer_id", "first", "marker"), [(2, 10, 15), (1, 11, 15), (1, 10, 10)]
)
def test_marker_that_closes_no_transaction_of_its_producer_is_a_bug(
    producer_id: int, first: int, marker: int
) -> None:
    transactions = OpenTransactions()
    transactions.begin(1, 10)
    with pytest.raises(InvariantViolation, match="I-10"):
        complete(transactions, producer_id, first, marker)
