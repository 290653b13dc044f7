"""Each checker finds its anomaly in a handmade history, and none objects to a clean one."""

from __future__ import annotations

import pytest
from sample_histories import A, B, final, read, transaction
from sim_checkers import COMMITTED, UNCOMMITTED
from sim_history import Claim, CommittedOffset, EndOffset, History, LogEnd, Outcome, Remake
from sim_txn_checkers import ALL_CHECKERS, check_history

GROUP_A = ("copiers", A)


def names(history: History) -> set[str]:
    return {violation.checker for violation in check_history(history)}


def claim(history: History, owner: str, epoch: int, token: bytes | None = None) -> None:
    started_at = history.tick()
    history.claims.append(
        Claim(
            "loader",
            owner,
            started_at,
            history.tick(),
            producer_id=7,
            producer_epoch=epoch,
            tells_token=True,
            token=token,
        )
    )


def fetched(history: History, offset: int | None) -> None:
    started_at = history.tick()
    history.committed_offsets.append(
        CommittedOffset("copiers", A, offset, started_at, history.tick())
    )


def ends_at(history: History, offset: int) -> None:
    started_at = history.tick()
    history.end_offsets.append(EndOffset(A, COMMITTED, offset, started_at, history.tick()))


def test_a_record_without_an_outcome_after_its_delivery_timeout_is_found():
    history = History()
    transaction(history, {A: ["a"]}, Outcome.FAIL)
    history.overdue += history.writes[0].records
    assert names(history) == {"LateOutcomes"}


# --- records ----------------------------------------------------------------------------------


def test_a_value_that_nobody_sent_is_found():
    history = History()
    final(history, A, [(0, "stray")])
    assert names(history) == {"PhantomReads"}


def test_a_value_that_was_sent_to_another_partition_is_found():
    history = History()
    transaction(history, {A: ["a"]})
    final(history, A, [(0, "a")])
    final(history, B, [(0, "a")])
    assert names(history) == {"PhantomReads"}


@pytest.mark.parametrize("late", [False, True], ids=["while it runs", "at the end"])
def test_a_read_of_an_aborted_transaction_is_found(late):
    history = History()
    transaction(history, {A: ["a"]}, Outcome.FAIL)
    if late:
        final(history, A, [(0, "a")])
    else:
        read(history, A, 0, "a")
    assert names(history) == {"AbortedReads"}


def test_an_aborted_record_may_be_read_uncommitted():
    history = History()
    transaction(history, {A: ["a"]}, Outcome.FAIL)
    read(history, A, 0, "a", isolation=UNCOMMITTED)
    final(history, A, [], [(0, "a")])
    assert names(history) == set()


def test_a_read_before_the_commit_was_asked_for_is_found():
    history = History()
    write = history.begin("p1", "loader")
    history.send(write, A, "p1/0")
    read(history, A, 0, "p1/0")
    history.start_commit(write)
    history.end(write, Outcome.OK)
    final(history, A, [(0, "p1/0")])
    assert names(history) == {"UncommittedReads"}


def test_a_read_while_the_commit_is_under_way_is_allowed():
    history = History()
    write = history.begin("p1", "loader")
    history.send(write, A, "p1/0")
    history.start_commit(write)
    read(history, A, 0, "p1/0")
    history.end(write, Outcome.OK)
    final(history, A, [(0, "p1/0")])
    assert names(history) == set()


def test_a_read_before_the_record_was_sent_is_found():
    history = History()
    read(history, A, 0, "p1/0", isolation=UNCOMMITTED)
    write = history.begin("p1", "loader")
    history.send(write, A, "p1/0")
    history.start_commit(write)
    history.end(write, Outcome.OK)
    final(history, A, [(0, "p1/0")])
    assert names(history) == {"UncommittedReads"}


def test_a_committed_record_that_is_gone_is_found():
    history = History()
    transaction(history, {A: ["a"]})
    final(history, A, [], [(0, "a")])
    assert names(history) == {"LostRecords"}


def test_an_acknowledged_plain_record_that_is_gone_is_found():
    history = History()
    record = history.send_plain("p1", A, "p1/0")
    history.acknowledge(record, 3)
    final(history, A, [])
    assert names(history) == {"LostRecords"}


def test_a_plain_record_without_an_answer_may_be_there_or_not():
    history = History()
    history.end(history.send_plain("p1", A, "p1/0").write, Outcome.UNKNOWN)
    history.end(history.send_plain("p1", A, "p1/1").write, Outcome.UNKNOWN)
    final(history, A, [(0, "p1/1")])
    assert names(history) == set()


def test_an_acknowledged_record_of_an_aborted_transaction_stays_in_the_log():
    history = History()
    write = history.begin("p1", "loader")
    history.acknowledge(history.send(write, A, "p1/0"), 0)
    history.end(write, Outcome.FAIL)
    final(history, A, [])
    assert names(history) == {"LostRecords"}


def test_half_of_a_transaction_is_found():
    history = History()
    transaction(history, {A: ["a"], B: ["b"]}, Outcome.UNKNOWN)
    final(history, A, [(0, "a")])
    final(history, B, [], [(0, "b")])
    assert names(history) == {"TornWrites"}


@pytest.mark.parametrize("is_there", [False, True])
def test_a_transaction_of_unknown_outcome_may_be_there_or_not(is_there):
    history = History()
    transaction(history, {A: ["a"], B: ["b"]}, Outcome.UNKNOWN)
    final(history, A, [(0, "a")] if is_there else [])
    final(history, B, [(0, "b")] if is_there else [])
    assert names(history) == set()


def test_a_write_never_asked_to_commit_has_failed():
    history = History()
    write = history.begin("p1", "loader")
    history.send(write, A, "p1/0")
    history.settle()
    final(history, A, [(0, "p1/0")])
    assert names(history) == {"AbortedReads"}


def test_a_value_at_two_offsets_is_found():
    history = History()
    transaction(history, {A: ["a"]})
    final(history, A, [(0, "a"), (2, "a")])
    assert names(history) == {"DuplicateRecords"}


def test_an_offset_with_two_values_is_found():
    history = History()
    transaction(history, {A: ["a", "b"]})
    read(history, A, 1, "a")
    final(history, A, [(0, "a"), (1, "b")])
    assert names(history) == {"DuplicateRecords", "InconsistentOffsets"}


def test_a_record_elsewhere_than_its_producer_was_told_is_found():
    history = History()
    history.acknowledge(history.send_plain("p1", A, "p1/0"), 0)
    final(history, A, [(4, "p1/0")])
    assert names(history) == {"MismatchedOffsets"}


@pytest.mark.parametrize("second", [0, 1])
def test_a_reader_that_goes_back_is_found(second):
    history = History()
    transaction(history, {A: ["a", "b"]})
    read(history, A, 1, "b")
    read(history, A, second, "ab"[second])
    final(history, A, [(0, "a"), (1, "b")])
    assert names(history) == {"ReadsGoBack"}


def test_a_reader_may_go_back_by_a_seek():
    history = History()
    transaction(history, {A: ["a", "b"]})
    read(history, A, 1, "b", session=1)
    read(history, A, 0, "a", session=2)
    final(history, A, [(0, "a"), (1, "b")])
    assert names(history) == set()


def test_a_record_that_a_reader_was_led_past_is_found():
    history = History()
    transaction(history, {A: ["a", "b", "c"]})
    read(history, A, 0, "a")
    read(history, A, 4, "c")
    final(history, A, [(0, "a"), (2, "b"), (4, "c")])
    assert names(history) == {"SkippedReads"}


def test_a_gap_of_markers_and_aborted_data_is_no_skip():
    history = History()
    transaction(history, {A: ["a", "b"]})
    read(history, A, 0, "a")
    read(history, A, 7, "b")
    final(history, A, [(0, "a"), (7, "b")])
    assert names(history) == set()


def test_a_record_that_was_read_and_is_gone_is_found():
    history = History()
    transaction(history, {A: ["a"]}, Outcome.UNKNOWN)
    read(history, A, 0, "a")
    final(history, A, [])
    assert names(history) == {"VanishedRecords"}


def test_records_of_one_producer_out_of_order_are_found():
    history = History()
    transaction(history, {A: ["a", "b"]})
    final(history, A, [(0, "b"), (1, "a")])
    assert names(history) == {"ProducerOrder"}


def test_a_plain_record_that_was_given_up_may_come_late():
    history = History()
    history.end(history.send_plain("p1", A, "p1/0").write, Outcome.UNKNOWN)
    history.acknowledge(history.send_plain("p1", A, "p1/1"), 0)
    final(history, A, [(0, "p1/1"), (1, "p1/0")])
    assert names(history) == set()


def test_a_transaction_that_hangs_is_found():
    history = History()
    history.log_ends[A] = LogEnd(last_stable_offset=3, high_watermark=5, log_end_offset=5)
    assert names(history) == {"OpenAtTheEnd"}


def test_records_that_nobody_can_read_are_found():
    history = History()
    history.unreadable.append((A, 3, 5))
    assert names(history) == {"UnreadableRecords"}


# --- fences and tokens ------------------------------------------------------------------------


def test_a_commit_after_the_successor_took_over_is_found():
    history = History()
    claim(history, "p1", 0)
    claim(history, "p2", 2)
    transaction(history, {A: ["a"]}, Outcome.UNKNOWN)
    final(history, A, [(0, "a")])
    assert names(history) == {"FencedCommits"}


def test_a_commit_that_began_before_the_take_over_was_answered_is_allowed():
    history = History()
    claim(history, "p1", 0)
    write = history.begin("p1", "loader", token=b"t")
    history.send(write, A, "p1/0")
    history.start_commit(write)
    claim(history, "p2", 2, b"t")
    history.end(write, Outcome.UNKNOWN)
    final(history, A, [(0, "p1/0")])
    assert names(history) == set()


@pytest.mark.parametrize("second", [4, 3], ids=["the same", "lower"])
def test_an_epoch_given_twice_or_fallen_is_found(second):
    history = History()
    claim(history, "p1", 4)
    claim(history, "p2", second)
    assert names(history) == {"ReusedEpochs"}


@pytest.mark.parametrize(
    ("told", "is_right"), [(b"t2", True), (b"t1", False), (None, False), (b"other", False)]
)
def test_only_the_token_of_the_last_commit_may_be_told(told, is_right):
    history = History()
    claim(history, "p1", 0)
    transaction(history, {A: ["a"]}, token=b"t1")
    transaction(history, {A: ["b"]}, token=b"t2")
    transaction(history, {A: ["c"]}, Outcome.FAIL, token=b"t3")
    claim(history, "p2", 3, told)
    final(history, A, [(0, "a"), (1, "b")])
    assert names(history) == (set() if is_right else {"WrongTokens"})


@pytest.mark.parametrize("told", [b"t1", b"t2"])
def test_a_commit_of_unknown_outcome_may_or_may_not_have_set_the_token(told):
    history = History()
    claim(history, "p1", 0)
    transaction(history, {A: ["a"]}, token=b"t1")
    write = history.begin("p1", "loader", token=b"t2")
    history.start_commit(write)
    history.end(write, Outcome.UNKNOWN)
    claim(history, "p2", 3, told)
    final(history, A, [(0, "a")])
    assert names(history) == set()


def test_a_commit_without_token_takes_the_token_away():
    history = History()
    claim(history, "p1", 0)
    transaction(history, {A: ["a"]}, token=b"t1")
    transaction(history, {A: ["b"]})
    claim(history, "p2", 3, b"t1")
    final(history, A, [(0, "a"), (1, "b")])
    assert names(history) == {"WrongTokens"}


def test_two_committed_runs_of_one_token_are_found():
    history = History()
    transaction(history, {A: ["a"]}, owner="run 1", token=b"job")
    transaction(history, {A: ["b"]}, owner="run 2", token=b"job")
    final(history, A, [(0, "a"), (1, "b")])
    assert names(history) == {"RepeatedTokens"}


def test_a_write_that_is_refused_in_peace_is_found():
    history = History()
    transaction(history, {A: ["a"]})
    final(history, A, [(0, "a")])
    assert names(history) == set()
    history.shut_out.append("job: ProducerFencedError()")
    assert names(history) == {"ShutOutWrites"}


# --- what a commit promises -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("end", "is_visible", "expected"),
    [(0, True, {"UnreadableCommits"}), (1, True, set()), (0, False, set())],
)
def test_a_visible_commit_lies_below_the_end_that_is_told_later(end, is_visible, expected):
    history = History()
    write = history.begin("p1", "loader")
    history.acknowledge(history.send(write, A, "p1/0"), 0)
    history.start_commit(write)
    history.end(write, Outcome.OK, is_visible=is_visible)
    ends_at(history, end)
    final(history, A, [(0, "p1/0")])
    assert names(history) == expected


def test_an_end_that_goes_back_is_found():
    history = History()
    ends_at(history, 5)
    ends_at(history, 4)
    assert names(history) == {"EndsGoBack"}


# --- offsets ----------------------------------------------------------------------------------


def copied(history: History, source: int, value: str, outcome: Outcome = Outcome.OK) -> None:
    """One input of A at ``source`` becomes one output in B, with the offset behind it."""
    write = history.begin("c1", "copier")
    history.send(write, B, value, source=(A, source))
    write.offsets[GROUP_A] = source + 1
    if outcome is not Outcome.FAIL:
        history.start_commit(write)
    history.end(write, outcome)


def inputs(history: History, count: int) -> None:
    values = [f"p1/{number}" for number in range(count)]
    transaction(history, {A: values})
    final(history, A, list(enumerate(values)))


@pytest.mark.parametrize(
    ("offset", "expected"), [(1, set()), (None, {"WrongOffsets"}), (9, {"WrongOffsets"})]
)
def test_a_fetched_offset_is_the_one_that_was_committed(offset, expected):
    history = History()
    inputs(history, 1)
    copied(history, 0, "c1/0")
    fetched(history, offset)
    final(history, B, [(0, "c1/0")])
    history.final_positions[GROUP_A] = 1
    assert names(history) == expected


def test_an_offset_of_an_aborted_transaction_is_found():
    history = History()
    inputs(history, 1)
    copied(history, 0, "c1/0", Outcome.FAIL)
    fetched(history, 1)
    final(history, B, [])
    assert names(history) == {"WrongOffsets"}


def test_outputs_without_their_offsets_are_found():
    history = History()
    inputs(history, 1)
    copied(history, 0, "c1/0", Outcome.UNKNOWN)
    final(history, B, [(0, "c1/0")])
    history.final_positions[GROUP_A] = None
    assert names(history) == {"TornOffsets", "SkippedInputs"}


def test_offsets_without_their_outputs_are_found():
    history = History()
    inputs(history, 1)
    copied(history, 0, "c1/0", Outcome.UNKNOWN)
    final(history, B, [])
    history.final_positions[GROUP_A] = 1
    assert names(history) == {"WrongOffsets", "SkippedInputs"}


def test_two_outputs_of_one_input_are_found():
    history = History()
    inputs(history, 1)
    copied(history, 0, "c1/0")
    copied(history, 0, "c1/1")
    final(history, B, [(0, "c1/0"), (1, "c1/1")])
    history.final_positions[GROUP_A] = 1
    assert names(history) == {"DoubleProcessing"}


def test_an_input_that_was_passed_over_is_found():
    history = History()
    inputs(history, 2)
    copied(history, 1, "c1/0")
    final(history, B, [(0, "c1/0")])
    history.final_positions[GROUP_A] = 2
    assert names(history) == {"SkippedInputs"}


def test_every_checker_has_its_own_name():
    assert len({type(checker).__name__ for checker in ALL_CHECKERS}) == len(ALL_CHECKERS)


@pytest.mark.parametrize(
    ("read", "expected"),
    [(["a", "b"], []), (["b"], ["InheritedPositions"]), (["a"], [])],
    ids=["all", "first passed over", "not at the end yet"],
)
def test_the_first_records_of_a_remade_topic_must_not_be_passed_over(read, expected):
    history = History()
    history.remakes.append(Remake("remade-x", "1", offsets={"a": 0, "b": 1}, read=read))
    assert [violation.checker for violation in check_history(history)] == expected


def test_a_static_member_that_was_fenced_for_nothing_is_told():
    history = History()
    history.fenced_members.append("copier-0#1.2")
    assert [violation.checker for violation in check_history(history)] == ["FencedMembers"]


def test_a_producer_that_was_fenced_for_nothing_is_told():
    history = History()
    history.fenced_producers.append("kafka-writer-0#1.2")
    assert [violation.checker for violation in check_history(history)] == ["FencedProducers"]
