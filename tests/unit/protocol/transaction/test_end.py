"""Every cell of the end_txn table, on the table itself and through the machine."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from oncelog.actors.protocol.messages.transaction import Run
from oncelog.actors.protocol.transaction.end import (
    END_TXN,
    EndAction,
    EndAge,
    EndVerdict,
    run_end_verdict,
)
from oncelog.actors.protocol.transaction.transaction_state import (
    TransactionMetadata,
    TransactionState,
)
from oncelog.storage.errors import ErrorCode

EXPECTED = """
state          | COMMIT current  | COMMIT retry    | ABORT current   | ABORT retry
Empty          | INVALID         | PRODUCER_FENCED | PREPARE         | PRODUCER_FENCED
Ongoing        | PREPARE         | PRODUCER_FENCED | PREPARE         | PRODUCER_FENCED
Prepared       | PREPARE         | PRODUCER_FENCED | PREPARE         | PRODUCER_FENCED
PrepareCommit  | CONCURRENT      | CONCURRENT      | CONCURRENT      | INVALID
PrepareAbort   | CONCURRENT      | INVALID         | CONCURRENT      | CONCURRENT
CompleteCommit | INVALID         | ENDED           | PREPARE         | INVALID
CompleteAbort  | INVALID         | INVALID         | PREPARE         | ENDED
"""
LONG_NAMES = {"INVALID": "INVALID_TXN_STATE", "CONCURRENT": "CONCURRENT_TRANSACTIONS"}


def cells() -> list[tuple[TransactionState, bool, EndAge, str]]:
    found = []
    for line in EXPECTED.strip().splitlines()[1:]:
        state, *verdicts = (cell.strip() for cell in line.split("|"))
        columns = itertools.product((True, False), (EndAge.CURRENT, EndAge.RETRY))
        for (committed, age), verdict in zip(columns, verdicts, strict=True):
            name = LONG_NAMES.get(verdict, verdict)
            found.append((TransactionState(state), committed, age, name))
    return found


@pytest.mark.parametrize(("state", "committed", "age", "verdict"), cells())
def test_each_cell_of_the_table(
    state: TransactionState, committed: bool, age: EndAge, verdict: str
) -> None:
    assert END_TXN[state, committed, age].name == verdict


@pytest.mark.parametrize(("state", "committed", "age", "verdict"), cells())
def test_the_machine_answers_each_cell(
    shard: Any, state: TransactionState, committed: bool, age: EndAge, verdict: str
) -> None:
    shard.install(state=state, producer_epoch=5)
    before = shard.known
    decision = shard.end_decision(7, 5 if age is EndAge.CURRENT else 4, committed=committed)
    assert shard.known == before
    reply = shard.commit(decision)
    if verdict == "PREPARE":
        assert reply.error is ErrorCode.NONE
        assert (reply.producer_id, reply.producer_epoch) == (7, 6)
        expected = "PrepareCommit" if committed else "PrepareAbort"
        assert shard.known.state.value == expected
    elif verdict == "ENDED":
        assert reply.error is ErrorCode.NONE
        assert (reply.producer_id, reply.producer_epoch) == (7, 5)
        assert not decision.records
    else:
        assert reply.error.name == verdict
        assert not decision.records
        is_early = verdict == "INVALID_TXN_STATE" and age is EndAge.CURRENT
        assert (reply.producer_id, reply.producer_epoch) == ((7, 5) if is_early else (-1, -1))


@pytest.mark.parametrize("epoch", [3, 6, 32_767, -1])
@pytest.mark.parametrize("state", [row[0] for row in cells()[::4]])
def test_any_other_epoch_is_fenced_in_every_state(
    shard: Any, state: TransactionState, epoch: int
) -> None:
    shard.install(state=state, producer_epoch=5)
    for committed in (True, False):
        assert shard.end(7, epoch, committed=committed).error is ErrorCode.PRODUCER_FENCED


RUN = Run(number=5, id="run")
S = TransactionState


@pytest.mark.parametrize(
    ("state", "is_current", "is_newest", "committed", "is_token_committed", "verdict"),
    [
        (S.ONGOING, True, True, True, False, EndAction.PREPARE),
        (S.ONGOING, True, True, True, True, EndAction.PREPARE),
        (S.ONGOING, True, True, False, False, EndAction.PREPARE),
        (S.PREPARE_COMMIT, True, True, True, False, EndAction.ENDED),
        (S.PREPARE_COMMIT, True, True, False, False, EndAction.ENDED),
        (S.COMPLETE_COMMIT, True, True, True, False, EndAction.ENDED),
        (S.COMPLETE_COMMIT, True, True, False, False, EndAction.ENDED),
        (S.PREPARE_ABORT, True, True, True, False, ErrorCode.INVALID_TXN_STATE),
        (S.COMPLETE_ABORT, True, True, True, False, ErrorCode.INVALID_TXN_STATE),
        (S.COMPLETE_ABORT, True, True, True, True, EndAction.ENDED),
        (S.COMPLETE_ABORT, True, True, False, False, EndAction.ENDED),
        (S.ONGOING, False, True, True, False, ErrorCode.PRODUCER_FENCED),
        (S.ONGOING, False, True, True, True, EndAction.ENDED),
        (S.ONGOING, False, True, False, False, EndAction.ENDED),
        (S.ONGOING, True, False, True, False, ErrorCode.PRODUCER_FENCED),
        (S.ONGOING, True, False, True, True, EndAction.ENDED),
        (S.ONGOING, True, False, False, False, ErrorCode.PRODUCER_FENCED),
        (S.COMPLETE_COMMIT, True, False, False, True, ErrorCode.PRODUCER_FENCED),
    ],
)
def test_each_case_of_the_end_of_a_run(
    state: TransactionState,
    is_current: bool,
    is_newest: bool,
    committed: bool,
    is_token_committed: bool,
    verdict: EndVerdict,
) -> None:
    metadata = TransactionMetadata(
        transactional_id="loader",
        producer_id=7,
        producer_epoch=5,
        transaction_timeout_ms=1,
        state=state,
        last_update_ms=0,
        run=RUN,
        is_run_current=is_current,
    )
    assert (
        run_end_verdict(
            metadata,
            is_newest=is_newest,
            committed=committed,
            is_token_committed=is_token_committed,
        )
        is verdict
    )


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("is_newest", [True, False])
def test_a_run_that_waits_for_its_first_member_is_ended_by_nobody_else(
    committed: bool, is_newest: bool
) -> None:
    metadata = TransactionMetadata(
        transactional_id="loader",
        producer_id=7,
        producer_epoch=5,
        transaction_timeout_ms=1,
        state=S.EMPTY,
        last_update_ms=0,
        run=RUN,
        is_run_waiting=True,
    )
    verdict = run_end_verdict(
        metadata, is_newest=is_newest, committed=committed, is_token_committed=False
    )
    assert verdict is (EndAction.PREPARE if is_newest else ErrorCode.PRODUCER_FENCED)
