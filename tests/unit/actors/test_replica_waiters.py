"""Who waits at a replica is answered once."""

from __future__ import annotations

from oncelog.actors.replica_waiters import ReplicaWaiters
from oncelog.storage.errors import ErrorCode


def test_an_answer_that_sends_all_others_away_leaves_nobody_to_be_answered_again() -> None:
    waiters = ReplicaWaiters()
    answers: list[tuple[str, ErrorCode]] = []

    def first(error: ErrorCode) -> None:
        answers.append(("first", error))
        waiters.send_away(ErrorCode.KAFKA_STORAGE_ERROR)

    waiters.when_committed(1, first)
    waiters.when_committed(2, lambda error: answers.append(("second", error)))
    waiters.release(2)
    assert answers == [("first", ErrorCode.NONE), ("second", ErrorCode.KAFKA_STORAGE_ERROR)]
