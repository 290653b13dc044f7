"""A leader of voters: what a majority commits, confirmations, and other voters."""

from __future__ import annotations

import pytest
from cluster_worlds import TOPIC_ID
from replica_model import Replica, batch_at

from oncelog.actors.protocol.messages.brokers import Disk
from oncelog.actors.protocol.messages.replication import ReplicateReply
from oncelog.actors.protocol.partition.followers import BACKOFF_MIN_MS, Push
from oncelog.actors.protocol.partition.quorum_replication import QuorumReplication
from oncelog.actors.protocol.tickets import NO_KEYS
from oncelog.storage.errors import ErrorCode

EPOCH = 5


class Leading:
    """Broker 1 leads in epoch 5, with batches 0 to 5 of epoch 4; its own is not appended yet."""

    def __init__(self, *voters: int) -> None:
        self.replica = Replica(1)
        self.disks: dict[int, Disk] = {}
        for offset in range(6):
            self.replica.append(batch_at(offset, 4))
        self.replica.sync()
        self.replica.machine.become_leader(EPOCH, TOPIC_ID, NO_KEYS)
        self.leader = QuorumReplication(
            self.replica.machine,
            voters=voters,
            leader_epoch=EPOCH,
            broker_id=1,
            synced_end_offset=6,
            now_ms=0,
            disks=self.disks,
        )

    @property
    def watermark(self) -> int:
        return self.replica.machine.high_watermark

    def append(self) -> None:
        self.replica.append(batch_at(self.replica.end_offset, EPOCH))
        self.replica.sync()
        self.leader.synced(self.replica.end_offset)

    def answer(self, push: Push, end_offset: int, now_ms: int = 0) -> None:
        self.leader.answered(push, ReplicateReply(log_end_offset=end_offset), now_ms)

    def pushes(self, now_ms: int = 0) -> dict[int, Push]:
        return {push.broker_id: push for push in self.leader.pushes(now_ms)}

    def exchange(self, **ends: int) -> None:
        """Answers of brokers ``b<n>``; calls to others fail, and are made again at once."""
        for broker_id, push in self.pushes().items():
            if f"b{broker_id}" in ends:
                self.answer(push, ends[f"b{broker_id}"])
            else:
                failed = ReplicateReply(error=ErrorCode.NETWORK_EXCEPTION)
                self.leader.answered(push, failed, -100_000)


def test_a_lone_voter_commits_what_it_has_synced() -> None:
    assert Leading(1).watermark == 6


def test_a_majority_commits_nothing_before_a_batch_of_this_epoch() -> None:
    leading = Leading(1, 2, 3)
    leading.exchange(b2=6, b3=6)
    assert leading.watermark == 0
    leading.append()
    leading.exchange(b2=7)
    assert leading.watermark == 7


def test_two_of_three_are_a_majority_whoever_they_are() -> None:
    leading = Leading(1, 2, 3)
    leading.append()
    leading.append()
    leading.exchange(b2=6)
    leading.exchange(b3=7)
    assert leading.watermark == 7
    leading.exchange(b3=8)
    assert leading.watermark == 8


def test_two_voters_need_each_other() -> None:
    leading = Leading(1, 2)
    leading.append()
    assert leading.watermark == 0
    leading.exchange(b2=7)
    assert leading.watermark == 7


def test_followers_that_have_but_the_leader_has_not_synced_count() -> None:
    leading = Leading(1, 2, 3)
    leading.replica.append(batch_at(6, EPOCH))
    leading.exchange(b2=6, b3=6)
    leading.exchange(b2=7, b3=7)
    assert leading.watermark == 7


def test_what_an_older_copy_of_a_disk_answers_does_not_count() -> None:
    leading = Leading(1, 2, 3)
    known = Disk(directory_id="a", broker_epoch=7)
    leading.disks[2] = known
    leading.append()
    for disk in (Disk(directory_id="a", broker_epoch=6), Disk(directory_id="b")):
        number = leading.leader.ask_to_confirm()
        push = leading.pushes(now_ms=10_000)[2]
        leading.leader.answered(push, ReplicateReply(log_end_offset=7, disk=disk), -100_000)
        assert (leading.watermark, leading.leader.confirmed < number) == (0, True)
    push = leading.pushes(now_ms=10_000)[2]
    leading.leader.answered(push, ReplicateReply(log_end_offset=7, disk=known), 0)
    assert leading.watermark == 7
    assert leading.leader.caught_up() == {2}
    leading.leader.has_other_disk(2)
    assert leading.leader.caught_up() == set()


def test_learners_get_copies_and_do_not_count() -> None:
    leading = Leading(1)
    leading.leader.set_voters((1,), (2, 3), 0)
    assert leading.leader.voters == {1}
    leading.exchange(b2=6)
    assert leading.leader.caught_up() == {2}
    leading.append()
    assert leading.watermark == 7
    assert leading.leader.caught_up() == frozenset()


def test_voters_may_change_once_all_and_something_of_this_epoch_is_committed() -> None:
    alone = Leading(1)
    assert alone.leader.may_change_voters
    leading = Leading(1, 2, 3)
    assert not leading.leader.may_change_voters
    leading.append()
    leading.exchange(b2=6)
    leading.exchange(b2=7)
    assert leading.leader.may_change_voters
    leading.append()
    assert not leading.leader.may_change_voters


def test_other_voters_count_from_now_on_and_lose_nothing_that_is_committed() -> None:
    leading = Leading(1)
    leading.append()
    assert leading.watermark == 7
    leading.leader.set_voters((1, 2), (), 0)
    leading.append()
    assert leading.watermark == 7
    leading.exchange(b2=8)
    assert leading.watermark == 8
    leading.append()
    leading.leader.set_voters((1,), (), 0)
    assert leading.watermark == 9
    assert leading.pushes(100_000) == {}


def test_nothing_is_proposed_however_far_a_voter_lags() -> None:
    leading = Leading(1, 2, 3)
    leading.append()
    for push in leading.pushes().values():
        leading.leader.answered(push, ReplicateReply(error=ErrorCode.REQUEST_TIMED_OUT), 0)
    assert leading.leader.proposal(1_000_000) is None
    assert leading.leader.wake_ms(0) == BACKOFF_MIN_MS


def test_a_newer_epoch_ends_it() -> None:
    leading = Leading(1, 2, 3)
    push = leading.pushes()[2]
    leading.leader.answered(push, ReplicateReply(error=ErrorCode.FENCED_LEADER_EPOCH), 0)
    assert not leading.leader.is_leading
    assert leading.leader.confirmed == 0


# --- confirmations ---------------------------------------------------------------------------


def test_a_lone_voter_confirms_by_itself() -> None:
    leading = Leading(1)
    assert leading.leader.ask_to_confirm() == 1
    assert leading.leader.confirmed == 1


@pytest.fixture
def quiet() -> Leading:
    """A leader of three that has nothing to send."""
    leading = Leading(1, 2, 3)
    leading.append()
    leading.exchange(b2=6, b3=6)
    leading.exchange(b2=7, b3=7)
    for push in leading.pushes(1_000).values():
        leading.answer(push, 7, 1_000)
    assert leading.pushes(1_000) == {}
    return leading


def test_a_confirmation_is_asked_of_all_voters_and_comes_with_a_majority(quiet: Leading) -> None:
    number = quiet.leader.ask_to_confirm()
    assert quiet.leader.wake_ms(1_000) == 1_000
    pushes = quiet.pushes(1_000)
    assert set(pushes) == {2, 3}
    assert quiet.leader.confirmed < number
    quiet.answer(pushes[3], 7)
    assert quiet.leader.confirmed == number


def test_a_push_that_was_sent_before_confirms_nothing(quiet: Leading) -> None:
    quiet.append()
    earlier = quiet.pushes(1_000)
    number = quiet.leader.ask_to_confirm()
    assert quiet.pushes(1_000) == {}
    for push in earlier.values():
        quiet.answer(push, 8)
    assert quiet.leader.confirmed < number
    for push in quiet.pushes(1_000).values():
        quiet.answer(push, 8)
    assert quiet.leader.confirmed == number


def test_a_call_that_fails_confirms_nothing_and_is_made_again(quiet: Leading) -> None:
    number = quiet.leader.ask_to_confirm()
    for push in quiet.pushes(1_000).values():
        quiet.leader.answered(push, ReplicateReply(error=ErrorCode.REQUEST_TIMED_OUT), 1_000)
    assert quiet.leader.confirmed < number
    assert quiet.leader.wake_ms(1_000) == 1_000 + BACKOFF_MIN_MS
    again = quiet.pushes(1_000 + BACKOFF_MIN_MS)
    quiet.answer(again[2], 7)
    assert quiet.leader.confirmed == number


def test_a_learner_confirms_nothing(quiet: Leading) -> None:
    quiet.leader.set_voters((1, 2), (3,), 1_000)
    number = quiet.leader.ask_to_confirm()
    assert set(quiet.pushes(1_000)) == {2}
    assert quiet.leader.confirmed < number
