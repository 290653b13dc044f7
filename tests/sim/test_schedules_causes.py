"""Directed schedules: a producer told that its epoch is over is told the true cause."""

from __future__ import annotations

import pytest
from inside import transaction_of
from sim_schedules import Play, Writer

from oncelog.actors.protocol.messages.transaction import AbortTransactionRequest
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import OncelogError


def late_record(play: Play, writer: Writer) -> OncelogError:
    """What the writer is told of a record for ``b`` that is held until its epoch is over."""
    gate = play.hold("produce", limit=None)
    sending = writer.start(writer.sending("b", "b1"))
    play.until_held(gate)
    play.pass_time(5)
    gate.is_open = True
    gate.release()
    with pytest.raises(OncelogError) as told:
        play.end(sending)
    return told.value


def test_a_producer_that_was_too_slow_is_told_of_the_timeout_and_goes_on():
    """1. P sends to A, then to B: that record is held for longer than the transaction timeout.
    2. The coordinator aborts; B has its marker. 3. The record arrives. 4. P aborts and goes on.
    """
    with Play() as play:
        writer = play.writer(transaction_timeout_ms=2_000)
        writer.begin()
        writer.send("a", "a1")
        told = late_record(play, writer)
        assert "transaction_timeout_ms=2000" in str(told)
        assert "nobody has taken over" in str(told)
        assert transaction_of(writer.producer).error.code is ErrorCode.TRANSACTION_TIMED_OUT
        writer.abort()
        writer.transaction(a="a2", b="b2")
        assert (play.read("a"), play.read("b")) == (["a2"], ["b2"])


def test_a_producer_whose_transaction_an_operator_aborted_is_told_so():
    """1. P sends to A, then to B: that record is held. 2. An operator aborts. 3. It arrives."""
    with Play() as play:
        writer = play.writer(transaction_timeout_ms=60_000)
        writer.begin()
        writer.send("a", "a1")
        producer_id, epoch = writer.identity
        gate = play.hold("produce")
        sending = writer.start(writer.sending("b", "b1"))
        play.until_held(gate)
        (call,) = play.calls("end_txn")[-1:] or play.calls("init_producer_id")[-1:]
        request = AbortTransactionRequest(
            transactional_id="T", producer_id=producer_id, producer_epoch=epoch
        )
        operator = play.world.client("operator")
        play.end(operator.spawn(operator.transport.call(call.callee, request, timeout_ms=5_000)))
        gate.release()
        with pytest.raises(OncelogError, match="an operator has aborted"):
            play.end(sending)
        writer.abort()
        writer.transaction(a="a2", b="b2")


def test_a_producer_that_was_replaced_is_told_by_whom():
    """1. P sends to A, then to B: that record is held. 2. Q claims the id. 3. It arrives."""
    with Play() as play:
        writer = play.writer(transaction_timeout_ms=60_000)
        writer.begin()
        writer.send("a", "a1")
        gate = play.hold("produce")
        sending = writer.start(writer.sending("b", "b1"))
        play.until_held(gate)
        play.writer(name="Q")
        gate.release()
        with pytest.raises(OncelogError, match="a newer producer of 'T' is known"):
            play.end(sending)
        assert transaction_of(writer.producer).error.code is ErrorCode.PRODUCER_FENCED
