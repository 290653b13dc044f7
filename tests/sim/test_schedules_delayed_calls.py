"""Directed schedules: a call of one transaction that arrives during another changes nothing."""

from __future__ import annotations

import pytest
from msgspec import structs
from sim_schedules import TIMES, A, B, C, Call, Play

from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import TopicPartition

WHEN = pytest.mark.parametrize("when", ["at rest", "in the next one", "after a restart"])


@TIMES
@pytest.mark.parametrize("is_reply", [False, True], ids=["request held", "reply held"])
def test_a_delayed_commit_never_ends_the_next_transaction(times, is_reply):
    """1. P asks to commit T1; that call, or its reply, is held. 2. P repeats it and T1 commits.
    3. P writes b1 in T2. 4. The first call is delivered. 5. P writes b2 elsewhere and aborts T2.
    """
    with Play() as play:
        writer = play.writer()
        writer.begin()
        writer.send("a", "a1")
        gate = play.hold("end_txn", reply=is_reply)
        ending = writer.start(writer.committing())
        play.until_held(gate)
        assert play.end(ending) is True
        writer.begin()
        writer.send("a", "b1")
        gate.release(times=times)
        play.pass_time()
        writer.send("b", "b2")
        writer.abort()
        assert (play.read("a"), play.read("b")) == (["a1"], [])


@TIMES
@pytest.mark.parametrize("is_reply", [False, True], ids=["request held", "reply held"])
def test_a_delayed_abort_never_ends_the_next_transaction(times, is_reply):
    """1. P asks to abort T1; that call, or its reply, is held. 2. P repeats it and T1 aborts.
    3. P writes b1 in T2. 4. The first call is delivered. 5. P writes b2 elsewhere and commits T2.
    """
    with Play() as play:
        writer = play.writer()
        writer.begin()
        writer.send("a", "a1")
        gate = play.hold("end_txn", reply=is_reply)
        ending = writer.start(writer.aborting())
        play.until_held(gate)
        play.end(ending)
        writer.begin()
        writer.send("a", "b1")
        gate.release(times=times)
        play.pass_time()
        writer.send("b", "b2")
        writer.commit()
        assert (play.read("a"), play.read("b")) == (["b1"], ["b2"])


@TIMES
def test_a_delayed_commit_never_ends_the_transaction_of_a_successor(times):
    """1. P asks to commit T1, every such call is held. 2. Another process claims the id, so T1
    aborts, and writes b1 in T2. 3. The calls are delivered. 4. T2 goes on and aborts.
    """
    with Play() as play:
        writer = play.writer()
        writer.begin()
        writer.send("a", "a1")
        gate = play.hold("end_txn", limit=None)
        ending = writer.start(writer.committing())
        play.until_held(gate, 2)
        play.world.kill(writer.client.name)
        gate.is_open = True
        successor = play.writer(name="Q")
        successor.begin()
        successor.send("a", "b1")
        gate.release(times=times)
        gate.release(times=times)
        play.pass_time()
        successor.send("b", "b2")
        successor.abort()
        assert not ending.done()
        assert (play.read("a"), play.read("b")) == ([], [])


@TIMES
@WHEN
@pytest.mark.parametrize("ended_by", ["its owner", "its timeout"])
def test_a_record_that_arrives_after_its_abort_is_refused(times, when, ended_by):
    """1. P sends m1 to A in T1; every copy of it is held. 2. T1 aborts, and A has its marker.
    3. P writes T2 to A, or A dies and comes back. 4. A copy of m1 is delivered: A refuses it by
    the epoch that the marker brought, and nothing stays open.
    """
    with Play() as play:
        writer = play.writer(transaction_timeout_ms=2_000)
        writer.begin()
        writer.send("b", "a0")
        gate = play.hold("produce", callee=A, limit=None)
        sending = writer.start(writer.sending("a", "m1"))
        play.until_held(gate)
        late = play.calls("produce", A)[-1]
        if ended_by == "its timeout":
            play.world.kill(writer.client.name)
            play.pass_time(5)
            writer = play.writer(name="Q")
        else:
            aborting = writer.start(writer.aborting())
            play.end(aborting)
        gate.is_open = True
        if when == "in the next one":
            writer.begin()
            writer.send("a", "m2")
        elif when == "after a restart":
            play.crash(A)
        end = play.log_end(A)
        assert play.ask(late, times).error is ErrorCode.INVALID_PRODUCER_EPOCH
        assert play.log_end(A) == end
        if when == "in the next one":
            writer.commit()
        sending.cancel()
        assert play.read("a") == (["m2"] if when == "in the next one" else [])
        assert play.machine(A).last_stable_offset == play.log_end(A)


@TIMES
@pytest.mark.parametrize("has_seen_newer", [True, False], ids=["seen", "not seen"])
def test_a_marker_of_a_coordinator_that_died_harms_nobody(times, has_seen_newer):
    """1. C decides to commit T1; its marker to A is held. 2. C dies; its successor completes T1,
    or its own marker is held too. 3. The old marker is delivered, again once P writes T2, and again
    after T2. 4. Nothing but the end of T1, once, comes of it.
    """
    with Play() as play:
        writer = play.writer()
        writer.begin()
        writer.send("a", "a1")
        writer.send("b", "b1")
        gate = play.hold("write_txn_markers", callee=A, limit=1 if has_seen_newer else 2)
        ending = writer.start(writer.committing())
        play.until_held(gate)
        old = play.calls("write_txn_markers", A)[0]
        play.crash(C)
        if not has_seen_newer:
            play.until_held(gate, 2)
            assert play.ask(old, times).results[0].error is ErrorCode.NONE
            gate.release_all()
        play.end(ending)
        play.pass_time()
        refusal = ErrorCode.TRANSACTION_COORDINATOR_FENCED
        assert play.ask(old, times).results[0].error is refusal
        writer.begin()
        writer.send("a", "a2")
        refusal = ErrorCode.INVALID_PRODUCER_EPOCH
        assert play.ask(old, times).results[0].error is refusal
        writer.abort()
        assert play.ask(old, times).results[0].error is refusal
        assert (play.read("a"), play.read("b")) == (["a1"], ["b1"])


def test_no_marker_leaves_before_its_decision_is_durable():
    """1. The disk of C takes its time. 2. P asks to commit: C has no marker sent. 3. C dies before
    the sync: whatever it does then, it does as its log says. 4. P repeats its call: committed.
    """
    with Play() as play:
        writer = play.writer()
        writer.begin()
        writer.send("a", "a1")
        play.world.hold_disk(C)
        ending = writer.start(writer.committing())
        play.pass_time(2)
        assert play.calls("end_txn")
        assert not play.calls("write_txn_markers")
        play.crash(C)
        assert play.end(ending) in (True, False)
        assert play.read("a") == ["a1"]


# --- whatever a call of T1 may meet -------------------------------------------------------------


@pytest.fixture
def late():
    """T1 wrote to A, its markers once held at A; the play, its writer, and the calls of T1."""
    with Play() as play:
        writer = play.writer()
        writer.begin()
        writer.send("a", "a1")
        yield play, writer


def _opposite(call: Call) -> Call:
    return Call(call.callee, structs.replace(call.request, committed=not call.request.committed))


@TIMES
def test_an_end_that_arrives_while_its_transaction_is_being_ended(late, times):
    """1. C decides to commit T1; A's marker is held. 2. Copies of the call: they are to come
    again. 3. The same call with the other verdict: refused.
    """
    play, writer = late
    gate = play.hold("write_txn_markers", limit=None)
    ending = writer.start(writer.committing())
    play.until_held(gate)
    call = play.calls("end_txn")[0]
    assert play.ask(call, times).error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert play.ask(_opposite(call), times).error is ErrorCode.INVALID_TXN_STATE
    gate.release_all()
    play.end(ending)
    play.pass_time()
    assert play.ask(call, times).error is ErrorCode.NONE
    assert play.ask(_opposite(call), times).error is ErrorCode.INVALID_TXN_STATE
    assert play.read("a") == ["a1"]


@TIMES
@pytest.mark.parametrize("is_over", [False, True], ids=["next is open", "next is over"])
def test_every_call_of_a_transaction_is_refused_once_the_next_one_has_begun(late, times, is_over):
    """1. T1 commits. 2. P writes T2 to A (and ends it). 3. Each call of T1 arrives again, also at
    a partition that T1 never touched. 4. T2 holds what P put in it.
    """
    play, writer = late
    writer.commit()
    (produced,), (ended,) = play.calls("produce"), play.calls("end_txn")
    (enrolled,), (marker,) = play.calls("add_partitions_to_txn"), play.calls("write_txn_markers")
    writer.begin()
    writer.send("a", "a2")
    if is_over:
        writer.commit()
    astray = structs.replace(produced.request, topic_partition=TopicPartition("b", 0))
    end = play.log_end(A), play.log_end(B)
    assert play.ask(ended, times).error is ErrorCode.PRODUCER_FENCED
    assert play.ask(_opposite(ended), times).error is ErrorCode.PRODUCER_FENCED
    assert play.ask(enrolled, times).error is ErrorCode.PRODUCER_FENCED
    assert play.ask(produced, times).error is ErrorCode.INVALID_PRODUCER_EPOCH
    assert play.ask(Call(B, astray), times).error is ErrorCode.INVALID_TXN_STATE
    refusal = ErrorCode.INVALID_PRODUCER_EPOCH
    assert play.ask(marker, times).results[0].error is refusal
    assert (play.log_end(A), play.log_end(B)) == end
    if not is_over:
        writer.commit()
    assert (play.read("a"), play.read("b")) == (["a1", "a2"], [])


@TIMES
def test_a_marker_that_arrives_again_before_the_next_transaction_has_no_effect(late, times):
    """1. T1 commits. 2. Its marker arrives again: accepted, as it changes nothing. 3. The same with
    the coordinator epoch of a predecessor: refused. 4. T2 is written as if nothing had been.
    """
    play, writer = late
    writer.commit()
    (marker,) = play.calls("write_txn_markers")
    assert play.ask(marker, times).results[0].error is ErrorCode.NONE
    older = structs.replace(marker.request, coordinator_epoch=marker.request.coordinator_epoch - 1)
    refusal = ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert play.ask(Call(A, older), times).results[0].error is refusal
    writer.begin()
    writer.send("a", "a2")
    writer.abort()
    assert play.read("a") == ["a1"]
    assert play.machine(A).last_stable_offset == play.log_end(A)


@TIMES
def test_a_record_whose_ticket_was_good_is_refused_once_the_marker_is_there(late, times):
    """1. P has a ticket for B in T1; its record to B is held. 2. T1 aborts: B has a marker and no
    record. 3. The record arrives with its ticket: refused, and B stays readable to its end.
    """
    play, writer = late
    gate = play.hold("produce", callee=B, limit=None)
    sending = writer.start(writer.sending("b", "b1"))
    play.until_held(gate)
    call = play.calls("produce", B)[0]
    assert call.request.ticket is not None
    writer.abort()
    sending.cancel()
    gate.is_open = True
    assert play.ask(call, times).error is ErrorCode.INVALID_PRODUCER_EPOCH
    assert play.machine(B).last_stable_offset == play.log_end(B) == 1


# --- order --------------------------------------------------------------------------------------


@TIMES
def test_records_that_overtake_each_other_stand_in_the_order_they_were_sent(times):
    """1. P sends m1, held, and m2, which arrives first: A lets it wait. 2. m1 is delivered.
    3. Both stand in order, once.
    """
    with Play() as play:
        writer = play.writer()
        writer.begin()
        writer.send("a", "m0")
        gate = play.hold("produce")
        first = writer.start(writer.sending("a", "m1"))
        play.until_held(gate)
        second = writer.start(writer.sending("a", "m2"))
        play.pass_time(0.01)
        assert len(play.calls("produce", A)) == 3
        assert play.log_end(A) == 1
        gate.release(times=times)
        play.end(first)
        play.end(second)
        writer.commit()
        assert play.read("a") == ["m0", "m1", "m2"]


@TIMES
def test_a_record_that_is_older_than_what_is_remembered_is_refused(times):
    """1. P has written more batches than A remembers of it. 2. The first arrives again: A cannot
    tell its place, but appends nothing.
    """
    with Play() as play:
        writer = play.writer()
        writer.begin()
        writer.send("a", *(f"m{number}" for number in range(8)))
        oldest = play.calls("produce", A)[0]
        refusal = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert play.ask(oldest, times).error is refusal
        assert play.log_end(A) == 8
        writer.commit()
