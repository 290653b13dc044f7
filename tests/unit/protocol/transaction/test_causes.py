"""Why an epoch is over: each cause has its code and its words, also after a restart."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.actors.protocol.messages.transaction import AbortTransactionRequest
from oncelog.actors.protocol.transaction.transaction_state import TransactionState
from oncelog.storage.errors import ErrorCode

TIMEOUT_MS = 60_000


def time_out(shard: Any, producer_id: int) -> None:
    shard.now_ms += TIMEOUT_MS + 1
    shard.commit(shard.machine.upkeep.decide_timeout("loader", shard.now_ms))


def abort_from_outside(shard: Any, producer_id: int) -> None:
    request = AbortTransactionRequest(
        transactional_id="loader", producer_id=producer_id, producer_epoch=0
    )
    shard.commit(shard.machine.operations.decide_abort(request, shard.now_ms))


def claim(shard: Any, producer_id: int) -> None:
    shard.init()


def write_distributed(shard: Any, producer_id: int) -> None:
    shard.begin("run")


CAUSES = pytest.mark.parametrize(
    ("end", "code", "words"),
    [
        (time_out, ErrorCode.TRANSACTION_TIMED_OUT, "transaction_timeout_ms=60000"),
        (abort_from_outside, ErrorCode.ABORTED_BY_OPERATOR, "an operator has aborted"),
        (claim, ErrorCode.PRODUCER_FENCED, "another producer has called init_transactions()"),
        (write_distributed, ErrorCode.PRODUCER_FENCED, "a distributed write has begun"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)


@CAUSES
@pytest.mark.parametrize("step", ["prepared", "complete", "restarted"])
def test_who_had_the_epoch_before_is_told_why_it_is_over(
    shard: Any, end: Any, code: ErrorCode, words: str, step: str
) -> None:
    producer_id = shard.init().producer_id
    shard.add(producer_id, 0)
    end(shard, producer_id)
    if step != "prepared":
        shard.complete()
    if step == "restarted":
        shard.fail_over()
    for reply in (shard.add(producer_id, 0), shard.end(producer_id, 0)):
        assert (reply.error, words in reply.detail) == (code, True)


def test_at_rest_a_claim_is_told_as_well(shard: Any) -> None:
    producer_id = shard.init().producer_id
    shard.init()
    reply = shard.add(producer_id, 0)
    assert reply.error is ErrorCode.PRODUCER_FENCED
    assert "another producer has called init_transactions()" in reply.detail


def test_what_is_older_than_the_last_rise_is_fenced_by_a_newer_producer(shard: Any) -> None:
    producer_id = shard.init().producer_id
    shard.init()
    shard.add(producer_id, 1)
    time_out(shard, producer_id)
    shard.complete()
    reply = shard.add(producer_id, 0)
    assert reply.error is ErrorCode.PRODUCER_FENCED
    assert "a newer producer of 'loader' is known" in reply.detail


def test_a_timeout_is_forgotten_once_its_owner_goes_on(shard: Any) -> None:
    producer_id = shard.init().producer_id
    shard.add(producer_id, 0)
    time_out(shard, producer_id)
    shard.complete()
    assert shard.end(producer_id, 0, committed=False).producer_epoch == 1
    assert shard.add(producer_id, 1).error is ErrorCode.NONE
    assert shard.end(producer_id, 1).error is ErrorCode.NONE
    shard.complete()
    assert shard.end(producer_id, 0).error is ErrorCode.PRODUCER_FENCED


# --- any history ------------------------------------------------------------------------------

TOLD = {
    "timeout": ErrorCode.TRANSACTION_TIMED_OUT,
    "operator": ErrorCode.ABORTED_BY_OPERATOR,
    "claim": ErrorCode.PRODUCER_FENCED,
    "own end": ErrorCode.PRODUCER_FENCED,
}
STEPS = st.lists(
    st.sampled_from(["begin", "commit", "abort", "timeout", "operator", "claim", "restart"]),
    max_size=20,
)


class Story:
    """One transactional id, and whose doing each rise of its epoch was."""

    def __init__(self, shard: Any) -> None:
        self.shard = shard
        self.causes: dict[int, str] = {}
        """By the epoch that was over then."""
        self.producer_id = self.shard.init().producer_id

    @property
    def epoch(self) -> int:
        return self.shard.known.producer_epoch

    def run(self, step: str) -> None:
        shard, before = self.shard, self.epoch
        cause = step if step in TOLD else "own end"
        is_open = shard.known.state is TransactionState.ONGOING
        if step == "begin":
            shard.add(self.producer_id, before)
        elif step in ("commit", "abort") and is_open:
            shard.end(self.producer_id, before, committed=step == "commit")
        elif step == "timeout" and is_open:
            time_out(shard, self.producer_id)
        elif step == "operator" and is_open:
            request = AbortTransactionRequest(
                transactional_id="loader", producer_id=self.producer_id, producer_epoch=before
            )
            shard.commit(shard.machine.operations.decide_abort(request, shard.now_ms))
        elif step == "claim":
            self._claim()
        elif step == "restart":
            shard.fail_over()
        if shard.machine.upkeep.is_prepared("loader"):
            self.check_all(before, cause)
            shard.complete()
        self.check_all(before, cause)

    def _claim(self) -> None:
        before = self.epoch
        if self.shard.init().error is ErrorCode.CONCURRENT_TRANSACTIONS:
            self.shard.complete()
            self.causes[before] = "claim"
            self.shard.init()

    def check_all(self, before: int, cause: str) -> None:
        for epoch in range(before, self.epoch):
            self.causes.setdefault(epoch, cause)
        state = self.shard.known.state
        for epoch, why in self.causes.items():
            told = self.shard.add(self.producer_id, epoch).error
            is_last = epoch == self.epoch - 1
            is_aborted = state in (TransactionState.PREPARE_ABORT, TransactionState.COMPLETE_ABORT)
            expected = TOLD[why] if is_last and is_aborted else ErrorCode.PRODUCER_FENCED
            assert told is expected, (epoch, why, state)


@given(STEPS)
def test_whatever_happens_nobody_is_told_a_false_cause(new_shard: Any, steps: list[str]) -> None:
    story = Story(new_shard())
    for step in steps:
        story.run(step)
    assert story.epoch == len(story.causes)
