"""Who waits at a replica is answered once."""

from __future__ import annotations

from oncelog.actors.replica.replica_log import ReplicaWaiters
from oncelog.storage.errors import ErrorCode


def test_an_answer_that_sends_all_others_away_leaves_nobody_to_be_answered_again() -> None:
    waiters = ReplicaWaiters()
    answers: list[tuple[str, ErrorCode]] = []

    def first(error: ErrorCode) -> None:
        answers.append(("first", error))
        waiters.fail_all(ErrorCode.KAFKA_STORAGE_ERROR)

    waiters.when_committed(1, first)
    waiters.when_committed(2, lambda error: answers.append(("second", error)))
    waiters.release(2)
    assert answers == [("first", ErrorCode.NONE), ("second", ErrorCode.KAFKA_STORAGE_ERROR)]


def test_a_retry_that_waits_for_less_than_those_before_it_is_answered_in_its_place() -> None:
    waiters = ReplicaWaiters()
    answered: list[str] = []

    def wait(name: str, next_offset: int) -> None:
        waiters.when_committed(next_offset, lambda error: answered.append(name))

    wait("first", 10)
    wait("second", 20)
    wait("retry of first", 10)
    waiters.release(9)
    assert answered == []
    waiters.release(10)
    assert answered == ["first", "retry of first"]
    wait("third", 20)
    waiters.release(30)
    assert answered == ["first", "retry of first", "second", "third"]
