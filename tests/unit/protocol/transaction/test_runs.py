"""Runs of distributed writes: the newest one, the versions they commit, and their drivers."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from oncelog.actors.protocol.messages.transaction import DriverProcess, Run
from oncelog.actors.protocol.transaction.commit_versions import version_token
from oncelog.actors.protocol.transaction.transaction_state import TransactionState
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import TopicPartition

FLIGHTS = TopicPartition("flights", 0)
DRIVER = DriverProcess(machine="here", process_id=7, start_ticks=8)
S = TransactionState


def begun(shard: Any, run_id: str, after: int = 0, **fields: Any) -> Run:
    reply = shard.begin(run_id, after, **fields)
    assert reply.error is ErrorCode.NONE
    return Run(number=reply.number, id=run_id)


def write(shard: Any, run: Run, token: bytes = b"batch-1") -> int:
    """Enlist and enrol; the member's producer id."""
    member = shard.enlist(run, token)
    assert member.error is ErrorCode.NONE
    assert shard.add(member.producer_id, member.producer_epoch, FLIGHTS).error is ErrorCode.NONE
    return int(member.producer_id)


def committed(shard: Any, run: Run, token: bytes) -> None:
    assert shard.end_run(run, token=token).error is ErrorCode.NONE
    shard.complete()


# --- numbers ----------------------------------------------------------------------------------


def test_the_run_that_begins_last_is_the_newest_whatever_any_clock_says(shard: Any) -> None:
    """1. A run writes. 2. Its time is over. 3. A re-run begins under a clock far behind."""
    first = begun(shard, "first")
    write(shard, first)
    shard.now_ms += 900_001
    shard.commit(shard.machine.upkeep.decide_timeout("loader", shard.now_ms))
    shard.complete()
    shard.now_ms -= 3_600_000
    second = begun(shard, "second", after=1)
    assert second.number == 2
    write(shard, second)
    assert shard.enlist(first).error is ErrorCode.PRODUCER_FENCED
    assert shard.end_run(second).error is ErrorCode.NONE


def test_a_begin_opens_no_transaction_and_its_time_does_not_run(shard: Any) -> None:
    run = begun(shard, "run")
    assert shard.known.state is S.EMPTY
    shard.now_ms += 2_000_000
    assert shard.machine.upkeep.expired_transactions(shard.now_ms) == ()
    write(shard, run)
    assert shard.known.start_ms == shard.now_ms


def test_a_begin_that_is_repeated_changes_nothing(shard: Any) -> None:
    run = begun(shard, "run")
    for step in (lambda: None, lambda: write(shard, run), lambda: shard.end_run(run, token=None)):
        step()
        before = shard.known
        assert begun(shard, "run") == run
        assert shard.known == before


def test_a_late_copy_of_a_begin_fences_nobody(shard: Any) -> None:
    """1. A begins, twice by the network. 2. B begins. 3. The copy of A's call comes."""
    begun(shard, "a")
    newest = begun(shard, "b", after=1)
    write(shard, newest)
    before = shard.known
    for after in (0, 1):
        late = shard.begin("a", after)
        assert (late.error, late.number) == (ErrorCode.CONCURRENT_TRANSACTIONS, 2)
    assert shard.known == before
    assert shard.end_run(newest).error is ErrorCode.NONE


def test_a_begin_names_the_newest_run_or_is_told_it(shard: Any) -> None:
    reply = shard.begin("a", 5)
    assert (reply.error, reply.number) == (ErrorCode.CONCURRENT_TRANSACTIONS, 0)
    assert shard.machine.ids.metadata("loader") is None
    assert begun(shard, "a", after=reply.number).number == 1


def test_a_run_that_waits_is_fenced_by_a_newer_one_and_by_the_ids_own_producer(shard: Any) -> None:
    first, second = begun(shard, "first"), begun(shard, "second", after=1)
    assert shard.enlist(first).error is ErrorCode.PRODUCER_FENCED
    known = shard.known
    guess = shard.add(known.producer_id, known.producer_epoch, FLIGHTS)
    assert guess.error is ErrorCode.PRODUCER_FENCED
    owner = shard.init()
    assert shard.enlist(second).error is ErrorCode.PRODUCER_FENCED
    assert shard.end_run(second).error is ErrorCode.PRODUCER_FENCED
    assert shard.add(owner.producer_id, owner.producer_epoch, FLIGHTS).error is ErrorCode.NONE


def test_a_run_of_an_id_that_was_deleted_meanwhile_is_none_of_the_new_one(shard: Any) -> None:
    old = Run(number=1, id="old")
    new = begun(shard, "new")
    assert new.number == old.number
    assert shard.enlist(old).error is ErrorCode.PRODUCER_FENCED
    assert shard.end_run(old).error is ErrorCode.PRODUCER_FENCED


# --- versions ---------------------------------------------------------------------------------


def version(number: int, app_id: str = "nightly") -> bytes:
    return version_token(app_id, number)


def test_an_equal_version_is_skipped_and_a_lower_one_is_an_error(shard: Any) -> None:
    run = begun(shard, "a", token=version(5))
    write(shard, run, version(5))
    committed(shard, run, version(5))
    shard.fail_over()
    before = shard.known
    assert shard.begin("b", 1, token=version(5)).error is ErrorCode.ALREADY_COMMITTED
    lower = shard.begin("b", 1, token=version(4))
    assert lower.error is ErrorCode.OUTDATED_VERSION
    assert "'nightly' is 5" in lower.detail
    assert shard.known == before
    assert begun(shard, "b", after=1, token=version(6)).number == 2


def test_a_begin_tells_what_its_id_has_committed_last(shard: Any) -> None:
    first = shard.begin("a", 0, token=version(5))
    assert first.commit_token is None
    committed(shard, Run(number=first.number, id="a"), version(5))
    for _ in range(2):
        assert shard.begin("b", 1, token=version(6)).commit_token == version(5)


def test_a_version_that_is_not_to_be_written_stops_no_other_run(shard: Any) -> None:
    """1. Version 5 is committed. 2. 6 is being written. 3. Drivers come with 5 and 4."""
    run = begun(shard, "a", token=version(5))
    committed(shard, run, version(5))
    run = begun(shard, "b", after=1, token=version(6))
    write(shard, run, version(6))
    assert shard.begin("c", 2, token=version(5)).error is ErrorCode.ALREADY_COMMITTED
    assert shard.begin("c", 2, token=version(4)).error is ErrorCode.OUTDATED_VERSION
    assert shard.end_run(run, token=version(6)).error is ErrorCode.NONE


def test_versions_are_judged_at_each_step_of_a_run(shard: Any) -> None:
    run = begun(shard, "a", token=version(5))
    committed(shard, run, version(5))
    run = begun(shard, "b", after=1, token=version(6))
    assert shard.enlist(run, version(5)).error is ErrorCode.ALREADY_COMMITTED
    assert shard.enlist(run, version(4)).error is ErrorCode.OUTDATED_VERSION
    write(shard, run, version(6))
    assert shard.end_run(run, token=version(4)).error is ErrorCode.OUTDATED_VERSION
    assert shard.known.state is S.ONGOING


@pytest.mark.parametrize("token", [b"", b"batch-1", version(9, "hourly"), b"[" * 1_000])
def test_a_version_is_never_forgotten_for_a_token_of_another_kind(shard: Any, token: bytes) -> None:
    run = begun(shard, "a", token=version(5))
    committed(shard, run, version(5))
    refused = shard.begin("b", 1, token=token)
    assert refused.error is ErrorCode.INVALID_REQUEST
    assert "version 5 of 'nightly'" in refused.detail


@pytest.mark.parametrize(
    ("token", "error", "words"),
    [
        (None, ErrorCode.INVALID_REQUEST, "version 5 of 'nightly'"),
        (b"batch-1", ErrorCode.INVALID_REQUEST, "version 5 of 'nightly'"),
        (version(9, "hourly"), ErrorCode.INVALID_REQUEST, "version 5 of 'nightly'"),
        (version(4), ErrorCode.OUTDATED_VERSION, "'nightly' is 5"),
        (version(5), ErrorCode.ALREADY_COMMITTED, "version 5 of 'nightly' is committed already"),
    ],
)
def test_the_ids_own_producer_keeps_to_its_versions_as_well(
    shard: Any, token: bytes | None, error: ErrorCode, words: str
) -> None:
    """What it may not commit it can abort; then the next version is committed as ever."""
    run = begun(shard, "a", token=version(5))
    committed(shard, run, version(5))
    own = shard.init()
    if token is not None:
        assert shard.end(own.producer_id, own.producer_epoch, token=token).error is error
    shard.add(own.producer_id, own.producer_epoch, FLIGHTS)
    before = shard.known
    refused = shard.end(own.producer_id, own.producer_epoch, token=token)
    assert refused.error is error
    assert words in refused.detail
    assert shard.known == before
    ended = shard.end(own.producer_id, own.producer_epoch, committed=False)
    assert ended.error is ErrorCode.NONE
    shard.complete()
    assert shard.begin("b", 1, token=version(5)).error is ErrorCode.ALREADY_COMMITTED
    for _ in range(2):  # The answer to the first may be lost.
        following = shard.end(ended.producer_id, ended.producer_epoch, token=version(6))
        assert following.error is ErrorCode.NONE
        shard.complete()


def test_the_ids_own_producer_may_repeat_a_token_that_names_no_version(shard: Any) -> None:
    own = shard.init()
    for _ in range(2):
        own = shard.end(own.producer_id, own.producer_epoch, token=b"batch-1")
        assert own.error is ErrorCode.NONE
        shard.complete()


def test_other_tokens_have_no_order(shard: Any) -> None:
    for number, token in enumerate((b"b", b"a", b"", b"[]", version(9), version(10))):
        run = begun(shard, f"run {number}", after=number, token=token)
        committed(shard, run, token)
        assert shard.known.commit_token == (token or None)


def test_a_version_is_known_however_it_is_written(shard: Any) -> None:
    spaced = b'{"txnAppId": "n\\u00e4chtlich", "txnVersion": 5}'
    run = begun(shard, "a", token=spaced)
    committed(shard, run, spaced)
    same = version(5, "nächtlich")
    assert same != spaced
    assert shard.begin("b", 1, token=same).error is ErrorCode.ALREADY_COMMITTED
    assert shard.begin("b", 1, token=version(4, "nächtlich")).error is ErrorCode.OUTDATED_VERSION


# --- drivers ----------------------------------------------------------------------------------


def gone(shard: Any, driver: DriverProcess = DRIVER) -> None:
    shard.commit(shard.machine.runs.decide_driver_gone("loader", driver, shard.now_ms))


def test_an_open_run_whose_driver_is_gone_is_aborted_with_all_its_members(shard: Any) -> None:
    run = begun(shard, "a", driver=DRIVER)
    assert shard.machine.runs.open_drivers() == ()
    write(shard, run)
    shard.fail_over()
    assert shard.machine.runs.open_drivers() == (("loader", DRIVER),)
    gone(shard)
    assert shard.known.state is S.PREPARE_ABORT
    assert [marker.committed for marker in shard.machine.upkeep.markers_due("loader")] == [False]
    shard.complete()
    assert shard.end_run(run).error is ErrorCode.INVALID_TXN_STATE
    assert shard.enlist(run).error is ErrorCode.PRODUCER_FENCED
    assert shard.machine.runs.open_drivers() == ()


def test_what_is_decided_stays_so_when_its_driver_goes(shard: Any) -> None:
    run = begun(shard, "a", driver=DRIVER)
    write(shard, run)
    shard.end_run(run)
    gone(shard)
    assert shard.known.state is S.PREPARE_COMMIT
    shard.complete()
    gone(shard)
    assert shard.known.state is S.COMPLETE_COMMIT


def test_only_the_run_of_the_driver_that_went_is_aborted(shard: Any) -> None:
    """1. A driver is seen to be gone. 2. Another run takes its place. 3. The abort comes."""
    old = begun(shard, "a", driver=DRIVER)
    write(shard, old)
    shard.begin("b", 1)
    shard.complete()
    new = begun(shard, "b", after=1, driver=structs.replace(DRIVER, start_ticks=9))
    write(shard, new)
    gone(shard)
    assert shard.known.state is S.ONGOING
    assert shard.end_run(new).error is ErrorCode.NONE


def test_a_run_without_a_driver_ends_by_its_timeout_alone(shard: Any) -> None:
    write(shard, begun(shard, "a"))
    gone(shard)
    assert shard.machine.runs.open_drivers() == ()
    assert shard.known.state is S.ONGOING


def test_nothing_is_asked_about_an_id_that_is_just_changing(shard: Any) -> None:
    run = begun(shard, "a", driver=DRIVER)
    member = shard.enlist(run)
    shard.add_decision(member.producer_id, member.producer_epoch, FLIGHTS)
    assert shard.machine.runs.open_drivers() == ()
    assert not shard.machine.runs.decide_driver_gone("loader", DRIVER, shard.now_ms).records
