"""Directed schedules: claims of one id at once, groups that rebalance, timeouts, used-up epochs."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs
from sim_schedules import TIMES, A, B, C, Call, G, Member, Play, Writer

from oncelog.actors.protocol.effects import Decision, LogRecord
from oncelog.actors.protocol.messages.transaction import InitProducerIdReply, InitProducerIdRequest
from oncelog.actors.protocol.tickets import TICKET_LIFETIME_MAX_MS
from oncelog.actors.protocol.transaction.transaction_records import encode_key, encode_value
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import OncelogError
from oncelog.storage.model import PRODUCER_EPOCH_EXHAUSTED, TopicPartition

A0 = TopicPartition("a", 0)
DAY_MS = 86_400_000


# --- claims -------------------------------------------------------------------------------------


@pytest.mark.parametrize("held", ["append", "reply", "append, then C dies", "reply, then C dies"])
def test_of_all_that_claim_an_id_at_once_one_can_write(held):
    """1. P has T1 open; Q and R claim its id at once. 2. The first record of it, or the first
    reply, is held; C may die. 3. Both claims are answered, with different epochs. 4. T1 is aborted,
    and whoever has not the newest epoch is fenced.
    """
    with Play() as play:
        first = play.writer(name="P")
        first.begin()
        first.send("a", "p")
        rivals = [play.writer(name=name, claims=False) for name in ("Q", "R")]
        gate = play.hold("init_producer_id", reply=True, limit=None if "reply" in held else 0)
        if "append" in held:
            play.world.hold_disk(C)
        claims = [rival.start(rival.claiming()) for rival in rivals]
        if "reply" in held:
            play.until_held(gate, 2)
        play.pass_time(0.1)
        if "dies" in held:
            play.crash(C)
        play.world.release_disk(C)
        gate.release_all()
        for claim in claims:
            assert play.end(claim)
        loser, winner = sorted(rivals, key=lambda rival: rival.identity)
        assert first.identity[0] == loser.identity[0] == winner.identity[0]
        assert first.identity < loser.identity < winner.identity
        winner.begin()
        winner.send("a", "won")
        loser.begin()
        assert loser.refused(loser.sending("a", "lost")) is ErrorCode.PRODUCER_FENCED
        assert first.refused(first.sending("a", "late")) is ErrorCode.PRODUCER_FENCED
        assert first.refused(first.aborting()) is ErrorCode.PRODUCER_FENCED
        winner.commit()
        assert play.read("a") == ["won"]


@TIMES
def test_a_repeated_claim_of_an_owner_does_not_fence_it(times):
    """1. P asks for its next epoch; the reply is lost. 2. P asks the same again, often: always the
    same epoch. 3. Somebody else claims the id; then P's call arrives once more: refused.
    """
    with Play() as play:
        writer = play.writer()
        producer_id, producer_epoch = writer.identity
        call = Call(
            C,
            InitProducerIdRequest(
                transactional_id="T", producer_id=producer_id, producer_epoch=producer_epoch
            ),
        )
        raised = play.ask(call)
        assert (raised.error, raised.producer_epoch) == (ErrorCode.NONE, producer_epoch + 1)
        assert play.ask(call, times) == raised
        successor = play.writer(name="Q")
        assert play.ask(call, times).error is ErrorCode.PRODUCER_FENCED
        successor.transaction(a="a1")
        assert play.read("a") == ["a1"]


# --- timeouts -----------------------------------------------------------------------------------


def test_a_commit_that_came_before_the_timeout_wins():
    """1. P asks to commit; PREPARE is in the log of C, not durable. 2. T1's time is over. 3. The
    disk goes on: T1 is committed, once and for all.
    """
    with Play() as play:
        writer = play.writer(transaction_timeout_ms=2_000)
        writer.begin()
        writer.send("a", "a1")
        play.world.hold_disk(C)
        ending = writer.start(writer.committing())
        play.pass_time(5)
        play.world.release_disk(C)
        assert play.end(ending) in (True, False)
        play.pass_time(5)
        assert play.read("a") == ["a1"]


@pytest.mark.parametrize("dies", [False, True], ids=["C lives", "C dies"])
def test_a_commit_that_came_after_the_timeout_learns_of_the_abort(dies):
    """1. T1's time is over: the abort is in the log of C, not durable. 2. P asks to commit. 3. The
    disk goes on (or C dies first): P is told to abort, and nothing is visible. 4. P goes on.
    """
    with Play() as play:
        writer = play.writer(transaction_timeout_ms=2_000)
        writer.begin()
        writer.send("a", "a1")
        play.world.hold_disk(C)
        play.pass_time(3)
        ending = writer.start(writer.committing())
        play.pass_time(1)
        if dies:
            play.crash(C)
        play.world.release_disk(C)
        assert writer.refused(ending) is ErrorCode.TRANSACTION_TIMED_OUT
        writer.abort()
        writer.transaction(a="a2")
        assert play.read("a") == ["a2"]


# --- groups -------------------------------------------------------------------------------------


def _copying(play: Play) -> tuple[Member, Writer, Any]:
    """A member that read "in" of a, a writer with "out" in b, and the move of its position."""
    play.writer("S", name="source").transaction(a="in")
    member = Member(play, "m1")
    writer = play.writer(name="P")
    writer.begin()
    writer.send("b", "out")
    position = {A0: play.log_end(A)}
    return member, writer, writer.producer.send_offsets_to_transaction(position, member.identity)


@TIMES
def test_positions_of_a_member_that_lost_its_partitions_are_refused(times):
    """1. m1 has read a and P commits its position in T1; that call is held. 2. m1 dies; m2 gets a,
    and finds no position. 3. The call is delivered: refused by its generation. 4. P learns of it
    and cannot commit.
    """
    with Play() as play:
        _, writer, move = _copying(play)
        gate = play.hold("txn_offset_commit", limit=None)
        moving = writer.start(move)
        play.until_held(gate)
        play.world.kill("m1")
        successor = Member(play, "m2")
        gate.is_open = True
        (late, *_) = play.calls("txn_offset_commit")
        expected = (ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID)
        reply = play.ask(late, times)
        assert {reply.error, *(result.error for result in reply.results)} & {*expected}
        with pytest.raises(OncelogError):
            play.end(moving)
        with pytest.raises(OncelogError):
            writer.commit()
        writer.abort()
        assert successor.do(successor.consumer.committed(A0)) is None
        assert play.read("b") == []


@TIMES
@pytest.mark.parametrize("is_committed", [True, False], ids=["commit", "abort"])
def test_who_asks_for_a_position_waits_while_it_is_undecided(times, is_committed):
    """1. P moves the position in T1 and ends T1; the marker to G is held. 2. m2 asks for the
    position: it waits. 3. The marker is delivered: m2 gets what T1 made of it. G may have died.
    """
    with Play() as play:
        member, writer, move = _copying(play)
        writer.do(move)
        position = play.log_end(A)
        gate = play.hold("write_txn_markers", callee=G, limit=None)
        ending = writer.start(writer.committing() if is_committed else writer.aborting())
        play.until_held(gate)
        asking = member.start(member.consumer.committed(A0))
        play.pass_time(2)
        assert not asking.done()
        if times > 1:
            play.crash(G)
            play.pass_time(1)
            assert not asking.done()
        gate.is_open = True
        gate.release(times=times)
        play.end(ending)
        assert play.end(asking) == (position if is_committed else None)


@TIMES
def test_positions_of_a_transaction_that_is_over_move_nothing(times):
    """1. P commits a position in T1; the call arrives again after T1, and while T2 is open.
    2. G refuses it by its epoch.
    """
    with Play() as play:
        member, writer, move = _copying(play)
        writer.do(move)
        position = play.log_end(A)
        writer.commit()
        (late,) = play.calls("txn_offset_commit")
        request = structs.replace(late.request, base_sequence=0)
        for begins_next in (True, False):
            reply = play.ask(Call(G, request), times)
            codes = {reply.error, *(result.error for result in reply.results)}
            assert ErrorCode.INVALID_PRODUCER_EPOCH in codes
            if begins_next:
                writer.begin()
                writer.send("b", "more")
        assert member.do(member.consumer.committed(A0)) == position
        writer.abort()


# --- what is used up or forgotten ---------------------------------------------------------------


def _age(play: Play, producer_epoch: int) -> None:
    """The id T has this epoch in the log of C, which starts anew with it."""
    process = play.world.actor(C)
    assert process is not None
    server = process.server
    metadata = structs.replace(
        server.shell.machine.ids.metadata("T"),
        producer_epoch=producer_epoch,
        last_producer_epoch=-1,
    )
    record = LogRecord(encode_key("T"), encode_value(metadata))
    decision = Decision(reply=InitProducerIdReply(), records=(record,))
    play.end(process.spawn(server.shell.runtime.execute("T", lambda _: decision)))
    play.crash(C)


@TIMES
def test_an_id_whose_epochs_are_used_up_gets_a_new_producer_id(times):
    """1. T stands a few epochs before the last. 2. P commits transactions until its producer id
    changes; the calls and records of each arrive again after it. 3. None of them has an effect.
    """
    with Play() as play:
        play.writer(name="O")
        _age(play, PRODUCER_EPOCH_EXHAUSTED - 3)
        writer = play.writer()
        old_id = writer.identity[0]
        values = []
        for number in range(5):
            value = f"a{number}"
            writer.transaction(a=value)
            values.append(value)
            ended, produced = play.calls("end_txn")[-1], play.calls("produce", A)[-1]
            enrolled = play.calls("add_partitions_to_txn")[-1]
            assert play.ask(ended, times).error in (
                ErrorCode.NONE,
                ErrorCode.CONCURRENT_TRANSACTIONS,
            )
            writer.begin()
            writer.send("a", f"aborted {number}")
            again = play.ask(ended, times)
            # Of a transaction that was begun ahead the commit before it is still answered.
            is_told = (again.producer_id, again.producer_epoch) == writer.identity
            assert is_told or again.error is not ErrorCode.NONE
            assert play.ask(enrolled, times).error is not ErrorCode.NONE
            end = play.log_end(A)
            assert play.ask(produced, times).error is ErrorCode.INVALID_PRODUCER_EPOCH
            assert play.log_end(A) == end
            writer.abort()
        assert writer.identity[0] != old_id
        assert writer.identity[1] < 10
        assert play.read("a") == values


@TIMES
def test_a_record_that_arrives_when_its_producer_is_forgotten_has_no_ticket_any_more(times):
    """1. A record of T1 to B is held with its good ticket; T1 aborts. 2. A day and more later B has
    forgotten the producer. 3. The record is delivered: its ticket is too old, nothing opens.
    """
    with Play() as play:
        writer = play.writer()
        writer.begin()
        writer.send("a", "a1")
        gate = play.hold("produce", callee=B, limit=None)
        sending = writer.start(writer.sending("b", "b1"))
        play.until_held(gate)
        writer.abort()
        sending.cancel()
        gate.is_open = True
        (late, *_) = play.calls("produce", B)
        machine = play.machine(B)
        play.world.jump_clock(B, 2 * DAY_MS + TICKET_LIFETIME_MAX_MS)
        now_ms = play.world.actor(B).clock.now_ms()
        machine.expire(now_ms - DAY_MS)
        machine.expire(now_ms)
        assert machine.producer_count == 0
        assert play.ask(late, times).error is ErrorCode.INVALID_TXN_STATE
        play.world.jump_clock(B, 0)
        assert play.ask(late, times).error is ErrorCode.INVALID_TXN_STATE
        assert machine.last_stable_offset == play.log_end(B) == 1
