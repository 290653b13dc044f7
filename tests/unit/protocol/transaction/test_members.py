"""Distributed writes: runs, members, winners and tokens."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from oncelog.actors.protocol.messages.transaction import (
    BeginRunReply,
    DriverProcess,
    EndTxnRequest,
    EnlistRequest,
    Run,
    Winner,
)
from oncelog.actors.protocol.tickets import TRANSACTION_TIMEOUT_LIMIT_MS
from oncelog.actors.protocol.transaction.members import (
    MEMBERS_MAX,
    HeldRecords,
    MemberStatus,
    RunMember,
    released,
    with_member,
)
from oncelog.actors.protocol.transaction.transaction_records import RunMemberKey, decode_member_key
from oncelog.actors.protocol.transaction.transaction_state import (
    TransactionState,
    newest_run_number,
)
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import TopicPartition

FLIGHTS = [TopicPartition("flights", number) for number in range(6)]
OLD = Run(number=1, id="old")
RUN = Run(number=2, id="run")
NEW = Run(number=3, id="new")
DRIVER = DriverProcess(machine="here", process_id=7, start_ticks=8)
S = TransactionState


def begin(shard: Any, run: Run) -> BeginRunReply:
    """Ask for ``run`` to begin, after as many others as its number says."""
    for number in range(newest(shard) + 1, run.number):
        assert shard.begin(f"run {number}", number - 1).number == number
    reply: BeginRunReply = shard.begin(run.id, run.number - 1)
    return reply


def newest(shard: Any) -> int:
    return newest_run_number(shard.machine.ids.metadata("loader"))


def enlist(shard: Any, run: Run = RUN, *partitions: TopicPartition) -> tuple[int, int]:
    """Enlist and enrol, the run begun if need be; the member's producer id and epoch."""
    if newest(shard) < run.number:
        assert begin(shard, run) == BeginRunReply(number=run.number)
    reply = shard.enlist(run)
    assert reply.error is ErrorCode.NONE
    if partitions:
        added = shard.add(reply.producer_id, reply.producer_epoch, *partitions)
        assert added.error is ErrorCode.NONE
    return reply.producer_id, reply.producer_epoch


def verdicts(shard: Any) -> dict[int, tuple[int, bool, tuple[TopicPartition, ...]]]:
    return {
        marker.producer_id: (marker.producer_epoch, marker.committed, marker.partitions)
        for marker in shard.machine.upkeep.markers_due("loader")
    }


def member(shard: Any, producer_id: int) -> RunMember:
    found: RunMember = shard.known.members[producer_id]
    return found


# --- enlist -----------------------------------------------------------------------------------


def test_each_enlist_gives_another_producer_id(shard: Any) -> None:
    first, second = enlist(shard), enlist(shard)
    assert first[0] != second[0]
    assert (first[1], second[1]) == (0, 0)
    assert shard.known.producer_id not in {first[0], second[0]}
    assert shard.known.state is S.ONGOING


def test_an_older_run_is_fenced(shard: Any) -> None:
    enlist(shard)
    assert shard.enlist(OLD).error is ErrorCode.PRODUCER_FENCED
    assert shard.end_run(OLD).error is ErrorCode.PRODUCER_FENCED
    assert shard.known.state is S.ONGOING


def test_a_newer_run_aborts_what_an_older_one_left_open(shard: Any) -> None:
    producer_id, epoch = enlist(shard, OLD, FLIGHTS[0])
    assert begin(shard, RUN).error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert verdicts(shard) == {producer_id: (epoch + 1, False, (FLIGHTS[0],))}
    assert begin(shard, RUN).error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert shard.enlist(OLD).error is ErrorCode.PRODUCER_FENCED
    shard.complete()
    assert shard.enlist(OLD).error is ErrorCode.PRODUCER_FENCED
    reused, next_epoch = enlist(shard, RUN)
    assert (reused, next_epoch) == (producer_id, epoch + 1)


def test_a_run_aborts_what_the_ids_own_producer_left_open(shard: Any) -> None:
    reply = shard.init()
    shard.add(reply.producer_id, 0, FLIGHTS[0])
    assert begin(shard, OLD).error is ErrorCode.CONCURRENT_TRANSACTIONS
    shard.complete()
    enlist(shard)


def test_a_run_fences_the_ids_own_producer(shard: Any) -> None:
    own = shard.init()
    enlist(shard)
    assert shard.add(own.producer_id, own.producer_epoch).error is ErrorCode.PRODUCER_FENCED
    for committed in (True, False):
        end = shard.end(own.producer_id, own.producer_epoch, committed=committed, token=b"t")
        assert end.error is ErrorCode.PRODUCER_FENCED
    shard.end_run(RUN)
    shard.complete()
    for committed in (True, False):
        end = shard.end(own.producer_id, own.producer_epoch, committed=committed, token=b"t")
        assert end.error is ErrorCode.PRODUCER_FENCED
    assert shard.init(own.producer_id, own.producer_epoch).error is ErrorCode.PRODUCER_FENCED


def test_the_id_itself_enrols_nothing_while_a_run_is_open(shard: Any) -> None:
    enlist(shard)
    known = shard.known
    guessed = shard.add(known.producer_id, known.producer_epoch, FLIGHTS[0])
    assert guessed.error is ErrorCode.PRODUCER_FENCED


def test_the_ids_own_producer_aborts_a_run_and_ends_it_for_good(shard: Any) -> None:
    enlist(shard)
    assert shard.init().error is ErrorCode.CONCURRENT_TRANSACTIONS
    shard.complete()
    assert shard.init().error is ErrorCode.NONE
    assert shard.enlist(RUN).error is ErrorCode.PRODUCER_FENCED
    assert shard.end_run(RUN).error is ErrorCode.PRODUCER_FENCED
    assert shard.end_run(RUN, committed=False).error is ErrorCode.NONE
    assert shard.known.state is S.EMPTY


def test_a_run_that_timed_out_cannot_be_revived(shard: Any) -> None:
    # 1. a member writes. 2. the run times out. 3. another task of the run enlists: it would get
    # the same producer id, and the first member's count could pass for its own.
    enlist(shard, RUN, FLIGHTS[0])
    shard.now_ms += 900_001
    shard.commit(shard.machine.upkeep.decide_timeout("loader", shard.now_ms))
    assert shard.enlist(RUN).error is ErrorCode.PRODUCER_FENCED
    shard.complete()
    assert shard.enlist(RUN).error is ErrorCode.PRODUCER_FENCED
    assert shard.end_run(RUN).error is ErrorCode.INVALID_TXN_STATE


def test_the_pool_is_reused_and_bounded_by_the_widest_write(shard: Any) -> None:
    for round_number in range(3):
        run = Run(number=round_number + 1, id=f"round {round_number}")
        members = {enlist(shard, run) for _ in range(4)}
        assert {epoch for _, epoch in members} == {round_number}
        shard.end_run(run, token=None)
        shard.complete()
    assert len(shard.known.members) == 4


def test_a_producer_id_whose_epochs_are_used_up_leaves_the_pool() -> None:
    members = {
        1: RunMember(producer_id=1, producer_epoch=32_766),
        2: RunMember(producer_id=2, producer_epoch=32_767),
    }
    assert set(released(members)) == {1}


def test_no_more_members_than_the_limit(shard: Any) -> None:
    enlist(shard)
    crowd = {
        number: RunMember(producer_id=number, status=MemberStatus.ENLISTED)
        for number in range(MEMBERS_MAX)
    }
    shard.install(**{**fields(shard), "members": crowd})
    reply = shard.enlist(RUN)
    assert reply.error is ErrorCode.POLICY_VIOLATION
    assert str(MEMBERS_MAX) in reply.detail


def fields(shard: Any) -> dict[str, Any]:
    known = shard.known
    return {field.name: getattr(known, field.name) for field in structs.fields(known)}


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"transactional_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"token": b"x" * 1_025}, ErrorCode.INVALID_REQUEST),
        ({"run": Run(number=-1, id="")}, ErrorCode.INVALID_REQUEST),
        ({"run": Run(number=2**63 - 1, id="")}, ErrorCode.INVALID_REQUEST),
        ({"run": Run(number=1, id="x" * 257)}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_an_impossible_enlist_is_refused(
    shard: Any, change: dict[str, Any], error: ErrorCode
) -> None:
    request = EnlistRequest(
        **{"transactional_id": "loader", "run": RUN, "token": b"batch-1", **change}
    )
    assert shard.commit(shard.machine.runs.decide_enlist(request, 0)).error is error


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"transactional_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"token": b"x" * 1_025}, ErrorCode.INVALID_REQUEST),
        ({"run_id": "x" * 257}, ErrorCode.INVALID_REQUEST),
        ({"after": -1}, ErrorCode.INVALID_REQUEST),
        ({"driver": structs.replace(DRIVER, machine="x" * 257)}, ErrorCode.INVALID_REQUEST),
        ({"driver": structs.replace(DRIVER, process_id=-1)}, ErrorCode.INVALID_REQUEST),
        ({"driver": structs.replace(DRIVER, start_ticks=2**63)}, ErrorCode.INVALID_REQUEST),
        ({"transaction_timeout_ms": 0}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ({"transaction_timeout_ms": 900_001}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
    ],
)
def test_an_impossible_begin_is_refused(
    shard: Any, change: dict[str, Any], error: ErrorCode
) -> None:
    assert shard.begin(**change).error is error
    assert shard.machine.ids.metadata("loader") is None


# --- leave ------------------------------------------------------------------------------------


def test_what_the_only_member_wrote_is_aborted_when_it_fails(shard: Any) -> None:
    """1. One member writes, and fails. 2. Its records are aborted, while the driver lives.
    3. The next attempt is a member of the same run, which commits.
    """
    producer_id, epoch = enlist(shard, RUN, FLIGHTS[0])
    assert shard.leave(RUN, producer_id, epoch).error is ErrorCode.NONE
    assert verdicts(shard) == {producer_id: (epoch + 1, False, (FLIGHTS[0],))}
    assert shard.enlist(RUN).error is ErrorCode.CONCURRENT_TRANSACTIONS
    for committed in (True, False):
        end = shard.end_run(RUN, committed=committed)
        assert end.error is ErrorCode.CONCURRENT_TRANSACTIONS
    shard.complete()
    again, next_epoch = enlist(shard, RUN, FLIGHTS[1])
    assert (again, next_epoch) == (producer_id, epoch + 1)
    assert shard.end_run(RUN, winners={again: 1}).error is ErrorCode.NONE
    assert verdicts(shard) == {again: (next_epoch + 1, True, (FLIGHTS[1],))}


def test_a_run_goes_on_while_one_of_its_members_has_not_failed(shard: Any) -> None:
    failed, epoch = enlist(shard, RUN, FLIGHTS[0])
    other, other_epoch = enlist(shard, RUN, FLIGHTS[1])
    assert shard.leave(RUN, failed, epoch).error is ErrorCode.NONE
    assert shard.known.state is S.ONGOING
    assert member(shard, failed).status is MemberStatus.LEFT
    assert shard.add(failed, epoch, FLIGHTS[2]).error is ErrorCode.PRODUCER_FENCED
    refused = shard.end_run(RUN, winners={failed: 1, other: 1})
    assert refused.error is ErrorCode.INVALID_TXN_STATE
    assert shard.end_run(RUN, winners={other: 1}).error is ErrorCode.NONE
    assert verdicts(shard) == {
        failed: (epoch + 1, False, (FLIGHTS[0],)),
        other: (other_epoch + 1, True, (FLIGHTS[1],)),
    }


def test_a_run_whose_members_have_failed_outlives_the_coordinator(shard: Any) -> None:
    first, epoch = enlist(shard, RUN, FLIGHTS[0])
    second, second_epoch = enlist(shard, RUN, FLIGHTS[1])
    shard.leave(RUN, first, epoch)
    assert shard.reload().ids.metadata("loader") == shard.known
    shard.leave(RUN, second, second_epoch)
    assert shard.reload().ids.metadata("loader") == shard.known
    shard.complete()
    assert shard.reload().ids.metadata("loader") == shard.known
    assert shard.known.is_run_waiting


@pytest.mark.parametrize("state", ["never known", "waiting", "another run", "other epoch", "ended"])
def test_a_late_word_of_a_failure_changes_nothing(shard: Any, state: str) -> None:
    producer_id, epoch = 1_001, 0
    if state != "never known":
        begin(shard, RUN)
    if state in ("another run", "other epoch", "ended"):
        producer_id, epoch = enlist(shard, RUN, FLIGHTS[0])
    if state == "another run":
        shard.begin(NEW.id, RUN.number)
        shard.complete()
        enlist(shard, NEW, FLIGHTS[0])
    elif state == "other epoch":
        epoch += 1
    elif state == "ended":
        shard.end_run(RUN, winners={producer_id: 1})
    before = shard.machine.ids.metadata("loader")
    assert shard.leave(RUN, producer_id, epoch).error is ErrorCode.NONE
    assert shard.machine.ids.metadata("loader") == before


def test_an_impossible_word_of_a_failure_is_refused(shard: Any) -> None:
    assert shard.leave(Run(number=-1, id=""), 1, 0).error is ErrorCode.INVALID_REQUEST


# --- renew ------------------------------------------------------------------------------------

TIMEOUT_MS = 900_000


def test_a_run_goes_on_while_a_task_of_it_lives_and_times_out_after(shard: Any) -> None:
    producer_id, _ = enlist(shard, RUN, FLIGHTS[0])
    for _ in range(10):
        shard.now_ms += TIMEOUT_MS - 1
        assert shard.renew(RUN).error is ErrorCode.NONE
        assert shard.reload().ids.metadata("loader") == shard.known
        shard.time_out()
    assert shard.known.state is S.ONGOING
    shard.now_ms += TIMEOUT_MS + 1
    shard.time_out()
    assert set(verdicts(shard)) == {producer_id}
    assert shard.renew(RUN).error is ErrorCode.PRODUCER_FENCED


def test_a_run_is_over_at_the_latest_after_the_time_that_is_set(shard: Any) -> None:
    enlist(shard, RUN, FLIGHTS[0])
    begun_ms = shard.now_ms
    while shard.now_ms - begun_ms <= TRANSACTION_TIMEOUT_LIMIT_MS:
        assert shard.renew(RUN).error is ErrorCode.NONE
        shard.now_ms += TIMEOUT_MS - 1
        shard.time_out()
    assert shard.renew(RUN).error is ErrorCode.PRODUCER_FENCED


def test_many_tasks_that_live_are_logged_a_few_times_in_each_timeout(shard: Any) -> None:
    enlist(shard, RUN, FLIGHTS[0])
    updates = set()
    for _ in range(100):
        shard.now_ms += TIMEOUT_MS // 100
        shard.renew(RUN)
        updates.add(shard.known.last_update_ms)
    assert 2 <= len(updates) <= 9


@pytest.mark.parametrize(
    ("run", "error"), [(OLD, ErrorCode.PRODUCER_FENCED), (RUN, ErrorCode.NONE)]
)
def test_a_run_that_waits_needs_no_renewal(shard: Any, run: Run, error: ErrorCode) -> None:
    begin(shard, RUN)
    before = shard.known
    assert shard.renew(run).error is error
    assert shard.known == before


def test_an_unknown_run_is_not_renewed(shard: Any) -> None:
    assert shard.renew(RUN).error is ErrorCode.PRODUCER_FENCED
    assert shard.renew(Run(number=-1, id="")).error is ErrorCode.INVALID_REQUEST


# --- partitions of members --------------------------------------------------------------------


def test_members_enrol_partitions_each_for_itself(shard: Any) -> None:
    first, _ = enlist(shard, RUN, FLIGHTS[0], FLIGHTS[1])
    second, _ = enlist(shard, RUN, FLIGHTS[1])
    assert member(shard, first).partitions == {FLIGHTS[0], FLIGHTS[1]}
    assert member(shard, second).partitions == {FLIGHTS[1]}
    (described,) = shard.machine.operations.describe(["loader"])
    assert described.partitions == (FLIGHTS[0], FLIGHTS[1])
    assert described.member_count == 2


def test_what_another_member_enrolled_still_needs_a_record(shard: Any) -> None:
    enlist(shard, RUN, FLIGHTS[0])
    second, epoch = enlist(shard)
    assert shard.add_decision(second, epoch, FLIGHTS[0]).records


def test_a_repeated_enrolment_of_a_member_needs_no_record(shard: Any) -> None:
    producer_id, epoch = enlist(shard, RUN, FLIGHTS[0])
    assert not shard.add_decision(producer_id, epoch, FLIGHTS[0]).records


def test_a_wrong_epoch_of_a_member_is_fenced(shard: Any) -> None:
    producer_id, epoch = enlist(shard)
    assert shard.add(producer_id, epoch + 1).error is ErrorCode.PRODUCER_FENCED


@pytest.mark.parametrize("committed", [True, False])
def test_an_attempt_that_goes_on_after_the_end_is_fenced(shard: Any, committed: bool) -> None:
    producer_id, epoch = enlist(shard, RUN, FLIGHTS[0])
    shard.end_run(RUN, committed=committed, token=None)
    for attempted in (epoch, epoch + 1):
        assert shard.add(producer_id, attempted).error is ErrorCode.PRODUCER_FENCED
    shard.complete()
    for attempted in (epoch, epoch + 1):
        assert shard.add(producer_id, attempted).error is ErrorCode.PRODUCER_FENCED
    enlist(shard, NEW)
    assert shard.add(producer_id, epoch).error is ErrorCode.PRODUCER_FENCED


# --- the end of a run -------------------------------------------------------------------------


def test_one_record_decides_for_every_member(shard: Any) -> None:
    winner, winner_epoch = enlist(shard, RUN, FLIGHTS[0], FLIGHTS[1])
    loser, loser_epoch = enlist(shard, RUN, FLIGHTS[1])
    enlist(shard)  # Its reply was lost: it never writes and never wins.
    logged = len(shard.log)
    reply = shard.end_run(RUN, winners={winner: 10})
    assert reply.error is ErrorCode.NONE
    assert len(shard.log) == logged + 1
    shard.fail_over()
    assert verdicts(shard) == {
        winner: (winner_epoch + 1, True, (FLIGHTS[0], FLIGHTS[1])),
        loser: (loser_epoch + 1, False, (FLIGHTS[1],)),
    }


def test_every_member_gets_a_new_epoch_written_or_not(shard: Any) -> None:
    silent, epoch = enlist(shard)
    shard.end_run(RUN)
    shard.complete()
    assert member(shard, silent).producer_epoch == epoch + 1
    assert member(shard, silent).status is MemberStatus.FREE


@pytest.mark.parametrize("said", [9, 11, 0])
def test_a_winner_whose_count_the_leaders_do_not_hold_is_refused(shard: Any, said: int) -> None:
    producer_id, epoch = enlist(shard, RUN, FLIGHTS[0], FLIGHTS[1])
    held = HeldRecords(
        answered=frozenset(FLIGHTS[:2]),
        counts={(producer_id, epoch, FLIGHTS[0]): 4, (producer_id, epoch, FLIGHTS[1]): 6},
    )
    before = shard.known
    reply = shard.end_run(RUN, winners={producer_id: said}, held=held)
    assert reply.error is ErrorCode.INVALID_TXN_STATE
    assert "hold 10" in reply.detail
    assert shard.known == before
    assert shard.end_run(RUN, winners={producer_id: 10}, held=held).error is ErrorCode.NONE


def test_records_of_another_epoch_do_not_count(shard: Any) -> None:
    producer_id, epoch = enlist(shard, RUN, FLIGHTS[0])
    held = HeldRecords(
        answered=frozenset(FLIGHTS[:1]), counts={(producer_id, epoch + 1, FLIGHTS[0]): 10}
    )
    reply = shard.end_run(RUN, winners={producer_id: 10}, held=held)
    assert reply.error is ErrorCode.INVALID_TXN_STATE


def test_a_winner_that_is_unknown_is_refused(shard: Any) -> None:
    enlist(shard)
    before = shard.known
    assert shard.end_run(RUN, winners={4_711: 0}).error is ErrorCode.INVALID_TXN_STATE
    assert shard.known == before


def test_a_winner_that_is_idle_in_the_pool_is_refused(shard: Any) -> None:
    first, second = enlist(shard, OLD), enlist(shard, OLD)
    shard.end_run(OLD, token=None)
    shard.complete()
    assert enlist(shard)[0] == first[0]
    assert shard.end_run(RUN, winners={second[0]: 0}).error is ErrorCode.INVALID_TXN_STATE


def test_a_winner_named_twice_is_refused(shard: Any) -> None:
    producer_id, _ = enlist(shard)
    winner = Winner(producer_id=producer_id, record_count=0)
    request = EndTxnRequest(
        transactional_id="loader", committed=True, run=RUN, winners=(winner, winner)
    )
    reply = shard.commit(shard.machine.decide_end_txn(request, 0))
    assert reply.error is ErrorCode.INVALID_TXN_STATE


def test_a_partition_nobody_asked_makes_the_caller_ask_again(shard: Any) -> None:
    producer_id, epoch = enlist(shard, RUN, FLIGHTS[0], FLIGHTS[1])
    held = HeldRecords(
        answered=frozenset(FLIGHTS[:1]), counts={(producer_id, epoch, FLIGHTS[0]): 10}
    )
    reply = shard.end_run(RUN, winners={producer_id: 10}, held=held)
    assert reply.error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert shard.known.state is S.ONGOING


def test_the_leaders_to_ask_are_those_of_the_winners(shard: Any) -> None:
    winner, _ = enlist(shard, RUN, FLIGHTS[2], FLIGHTS[0])
    enlist(shard, RUN, FLIGHTS[1])
    request = EndTxnRequest(
        transactional_id="loader",
        committed=True,
        run=RUN,
        winners=(Winner(producer_id=winner, record_count=1), Winner(producer_id=1, record_count=1)),
    )
    assert shard.machine.runs.winner_partitions(request) == (FLIGHTS[0], FLIGHTS[2])
    for other in ({"committed": False}, {"run": OLD}, {"transactional_id": "nobody"}):
        assert shard.machine.runs.winner_partitions(structs.replace(request, **other)) == ()


@pytest.mark.parametrize("is_complete", [False, True])
def test_a_repeated_end_is_answered_with_the_decision(shard: Any, is_complete: bool) -> None:
    producer_id, _ = enlist(shard, RUN, FLIGHTS[0])
    shard.end_run(RUN, winners={producer_id: 10})
    if is_complete:
        shard.complete()
    before, logged = shard.known, len(shard.log)
    assert shard.end_run(RUN, winners={producer_id: 10}).error is ErrorCode.NONE
    assert shard.end_run(RUN, committed=False).error is ErrorCode.NONE
    assert (shard.known, len(shard.log)) == (before, logged)


def test_a_commit_after_the_abort_is_refused(shard: Any) -> None:
    enlist(shard)
    shard.end_run(RUN, committed=False)
    assert shard.end_run(RUN).error is ErrorCode.INVALID_TXN_STATE
    assert shard.end_run(RUN, committed=False).error is ErrorCode.NONE
    assert shard.known.commit_token is None


# --- tokens -----------------------------------------------------------------------------------


def test_a_token_that_is_committed_needs_no_second_write(shard: Any) -> None:
    enlist(shard)
    shard.end_run(RUN, token=b"batch-1")
    assert shard.enlist(NEW, b"batch-1").error is ErrorCode.ALREADY_COMMITTED
    shard.complete()
    shard.fail_over()
    for run in (OLD, RUN, NEW):
        assert shard.enlist(run, b"batch-1").error is ErrorCode.ALREADY_COMMITTED
    before = shard.known
    # Only the run that committed is told that its own records are.
    for run, answer in (
        (OLD, ErrorCode.ALREADY_COMMITTED),
        (RUN, ErrorCode.NONE),
        (NEW, ErrorCode.ALREADY_COMMITTED),
    ):
        assert shard.end_run(run, token=b"batch-1").error is answer
    assert shard.known == before
    assert shard.begin("new", 2, token=b"batch-2").number == 3
    assert shard.enlist(NEW, b"batch-2").error is ErrorCode.NONE


def test_an_empty_token_names_nothing(shard: Any) -> None:
    enlist(shard)
    shard.end_run(RUN, token=b"")
    shard.complete()
    assert shard.known.commit_token is None
    assert shard.begin("new", 2, token=b"").number == 3
    assert shard.enlist(NEW, b"").error is ErrorCode.NONE


def test_a_run_nobody_enlisted_in_can_commit_its_token(shard: Any) -> None:
    begin(shard, RUN)
    assert shard.end_run(RUN, token=b"batch-1").error is ErrorCode.NONE
    assert shard.known.state is S.PREPARE_COMMIT
    shard.complete()
    assert shard.known.commit_token == b"batch-1"
    assert shard.end_run(RUN, token=b"batch-1").error is ErrorCode.NONE


def test_a_run_nobody_enlisted_in_has_no_winners(shard: Any) -> None:
    begin(shard, RUN)
    assert shard.end_run(RUN, winners={1: 1}).error is ErrorCode.INVALID_TXN_STATE
    assert shard.known.state is S.EMPTY


def test_the_abort_of_a_run_nobody_enlisted_in_fences_its_late_tasks(shard: Any) -> None:
    begin(shard, RUN)
    assert shard.end_run(RUN, committed=False).error is ErrorCode.NONE
    shard.complete()
    assert shard.enlist(RUN).error is ErrorCode.PRODUCER_FENCED


@pytest.mark.parametrize("committed", [True, False])
def test_a_run_that_never_began_ends_nothing(shard: Any, committed: bool) -> None:
    assert shard.end_run(RUN, committed=committed).error is ErrorCode.PRODUCER_FENCED
    assert shard.enlist(RUN).error is ErrorCode.PRODUCER_FENCED
    enlist(shard, OLD)
    assert shard.end_run(RUN, committed=committed).error is ErrorCode.PRODUCER_FENCED
    assert shard.known.state is S.ONGOING


def test_members_are_never_changed_in_place() -> None:
    members = {1: RunMember(producer_id=1)}
    grown = with_member(members, RunMember(producer_id=2))
    assert (set(members), set(grown)) == ({1}, {1, 2})


# --- the log ----------------------------------------------------------------------------------


def log_bytes(shard: Any) -> int:
    return sum(len(record.key or b"") + len(record.value or b"") for record in shard.log)


def test_a_member_costs_the_log_as_much_as_the_one_before(shard: Any) -> None:
    sizes = []
    for _ in range(4):
        before = log_bytes(shard)
        for _ in range(50):
            enlist(shard, RUN, *FLIGHTS)
        sizes.append(log_bytes(shard) - before)
    assert sizes[3] < 1.1 * sizes[1]
    assert sizes[3] < 50 * 250


def test_prepare_alone_has_every_member(shard: Any) -> None:
    """1. Two members enrol. 2. The run ends. 3. A reader of that one record knows who won."""
    first, second = enlist(shard, RUN, FLIGHTS[0]), enlist(shard, RUN, FLIGHTS[1])
    shard.end_run(RUN, winners={first[0]: 3})
    prepare = shard.log[-1]
    shard.log = [prepare]
    shard.fail_over()
    assert verdicts(shard) == {
        first[0]: (1, True, (FLIGHTS[0],)),
        second[0]: (1, False, (FLIGHTS[1],)),
    }


def test_complete_brings_a_tombstone_for_each_member(shard: Any) -> None:
    producer_ids = sorted(enlist(shard, RUN, FLIGHTS[0])[0] for _ in range(3))
    shard.end_run(RUN, committed=False, token=None)
    shard.complete()
    tombstones = [record for record in shard.log if record.value is None]
    keys = [decode_member_key(record.key) for record in tombstones]
    assert keys == [RunMemberKey("loader", producer_id) for producer_id in producer_ids]


def test_a_record_of_a_run_that_is_over_means_nothing_to_the_next(shard: Any) -> None:
    """1. A member of the old run enrols. 2. Compaction left its record, not the tombstone. 3. The
    next run, with the same member, begins without its partitions."""
    enlist(shard, OLD)
    stale_from = len(shard.log)
    old = enlist(shard, OLD, FLIGHTS[0])
    stale = shard.log[stale_from:]
    shard.end_run(OLD, token=None, committed=False)
    shard.complete()
    again = [enlist(shard, RUN) for _ in range(2)]
    assert old[0] in {producer_id for producer_id, _ in again}
    before = shard.known
    for record in stale:
        shard.machine.ids.apply(record)
    assert shard.known == before
    assert shard.known.all_partitions == frozenset()


def test_a_record_without_its_id_is_passed_over(shard: Any) -> None:
    enlist(shard, RUN)
    start = len(shard.log)
    enlist(shard, RUN, FLIGHTS[0])
    shard.log = shard.log[start:]
    shard.fail_over()
    assert shard.machine.ids.metadata("loader") is None


def test_a_run_that_was_begun_before_members_had_records_goes_on(shard: Any) -> None:
    """1. The record of an open id has its members. 2. One more enlists, an old one enrols."""
    old = RunMember(producer_id=50, status=MemberStatus.ENLISTED, partitions=frozenset(FLIGHTS[:1]))
    shard.install(state=S.ONGOING, run=RUN, is_run_current=True, members={50: old})
    more = enlist(shard, RUN, FLIGHTS[1])
    assert shard.add(50, 0, FLIGHTS[2]).error is ErrorCode.NONE
    assert member(shard, 50).partitions == {FLIGHTS[0], FLIGHTS[2]}
    assert member(shard, more[0]).partitions == {FLIGHTS[1]}
    assert shard.reload().ids.metadata("loader") == shard.known
