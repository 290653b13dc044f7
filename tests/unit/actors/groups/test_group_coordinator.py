"""The group coordinator on a real directory: what it answers, what is durable, what survives."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from deadlines import until
from msgspec import structs
from virtual_time import give_turns

from oncelog.actors.coordination import process_watch
from oncelog.actors.protocol.messages.group import (
    LeaveGroupRequest,
    LeavingMember,
    OffsetAndMetadata,
    OffsetFetchRequest,
)
from oncelog.actors.protocol.messages.transaction import DriverProcess
from oncelog.storage.errors import ErrorCode, InvariantViolation
from oncelog.storage.model import CONSUMER_OFFSETS_TOPIC, TopicPartition, shard_of

TP = TopicPartition("flights", 0)
OFFSETS = TopicPartition(CONSUMER_OFFSETS_TOPIC, 0)
GROUP = "billing"
FLIGHTS_ID = "f1" * 16
RETENTION_MS = 604_800_000
PROCESS = DriverProcess(machine="here", process_id=7, start_ticks=8)
Shard = Any
Play = Callable[[Callable[[Shard], Awaitable[None]]], None]


# --- membership ------------------------------------------------------------------------------


def test_two_members_share_a_generation_and_get_the_leaders_assignment(play: Play) -> None:
    async def scenario(shard: Shard) -> None:
        first = await shard.enter()
        assert (await shard.sync(first)).assignment == b"all"
        entering = asyncio.ensure_future(shard.enter())
        await give_turns(20)
        assert await shard.heartbeat(first) is ErrorCode.REBALANCE_IN_PROGRESS
        leader = await shard.join(first.member_id)
        follower = await entering
        assert leader.generation_id == follower.generation_id == 2
        parked = asyncio.ensure_future(shard.sync(follower))
        await give_turns(20)
        assert not parked.done()
        await shard.sync(leader, b"leader's")
        assert (await parked).assignment == b""
        assert await shard.state() == "Stable"

    play(scenario)


def test_sync_is_answered_only_when_the_assignment_is_durable(play: Play) -> None:
    async def scenario(shard: Shard) -> None:
        member = await shard.enter()
        shard.background.gate.clear()
        syncing = asyncio.ensure_future(shard.sync(member))
        await give_turns(20)
        assert not syncing.done()
        assert await shard.state() == "CompletingRebalance"
        shard.background.gate.set()
        assert (await syncing).error is ErrorCode.NONE

    play(scenario)


def test_member_and_assignment_survive_a_restart(play: Play) -> None:
    async def scenario(shard: Shard) -> None:
        member = await shard.enter()
        await shard.sync(member)
        await shard.restart()
        assert await shard.heartbeat(member) is ErrorCode.NONE
        assert (await shard.sync(member)).assignment == b"all"

    play(scenario)


def test_silent_member_is_removed_after_its_session_timeout(play: Play) -> None:
    async def scenario(shard: Shard) -> None:
        loop = asyncio.get_running_loop()
        delays: list[tuple[float, Any, Any]] = []
        loop.call_later = lambda delay, *rest: delays.append((delay, *rest)) or Handle()  # type: ignore[method-assign, assignment, return-value, func-returns-value]
        member = await shard.enter()
        await shard.sync(member)
        delay, fire, timer = delays[-1]
        assert delay == 45.0
        fire(timer)
        assert await shard.heartbeat(member) is ErrorCode.UNKNOWN_MEMBER_ID
        await give_turns(20)
        assert await shard.state() == "Empty"

    play(scenario)


class Handle:
    """A timer handle that has nothing to cancel."""

    def cancel(self) -> None:
        return None


def test_a_member_whose_process_has_ended_leaves_also_after_a_failover(play: Play) -> None:
    async def scenario(shard: Shard) -> None:
        member = await shard.enter(process=PROCESS, session_timeout_ms=300_000)
        await shard.sync(member)
        shard.controller.gone.add(PROCESS)
        await shard.crash()
        # Its last heartbeat is on its way still.
        assert await shard.heartbeat(member, process=PROCESS) is ErrorCode.NONE
        await until(lambda: not shard.coordinator._machine.processes())
        await shard.restart()
        assert await shard.state() == "Empty"

    play(scenario)


def test_a_member_that_is_wrongly_taken_for_dead_commits_nothing_and_joins_again(
    play: Play,
) -> None:
    async def scenario(shard: Shard) -> None:
        member = await shard.enter(process=PROCESS)
        await shard.sync(member)
        named = {"generation_id": member.generation_id, "member_id": member.member_id}
        assert await shard.commit(5, **named) is ErrorCode.NONE
        shard.controller.gone.add(PROCESS)
        assert await shard.coordinator.remove_ended()
        shard.controller.gone.clear()
        for refused in (await shard.commit(6, **named), await shard.txn_commit(6, **named)):
            assert refused is ErrorCode.UNKNOWN_MEMBER_ID
        assert await shard.heartbeat(member, process=PROCESS) is ErrorCode.UNKNOWN_MEMBER_ID
        again = await shard.enter(process=PROCESS)
        assert again.generation_id > member.generation_id
        assert await shard.position() == 5

    play(scenario)


def test_what_a_look_at_processes_has_found_is_void_if_another_leads_meanwhile(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_watch, "LOOKED_AT_ONCE", 1)

    async def scenario(shard: Shard) -> None:
        await shard.enter(process=PROCESS)
        await shard.enter(process=structs.replace(PROCESS, process_id=8), group_id="other")
        shard.controller.gone.add(PROCESS)
        looking = asyncio.ensure_future(shard.coordinator.remove_ended())
        await asyncio.sleep(0)
        assert not looking.done()
        replica = shard.coordinator.replica
        epoch = replica.leader_epoch + 1
        replica.leadership = structs.replace(replica.leadership, leader_epoch=epoch)
        assert not await looking
        assert len(shard.coordinator._machine.processes()) == 2

    play(scenario)


def test_a_static_member_keeps_its_place_when_its_process_has_ended(play: Play) -> None:
    async def scenario(shard: Shard) -> None:
        static = {"group_instance_id": "w-0"}
        await shard.sync(await shard.enter(process=PROCESS, **static))
        shard.controller.gone.add(PROCESS)
        assert not await shard.coordinator.remove_ended()
        assert await shard.state() == "Stable"

    play(scenario)


def test_leaving_member_empties_the_group_durably(play: Play) -> None:
    async def scenario(shard: Shard) -> None:
        member = await shard.enter()
        await shard.sync(member)
        leaving = LeavingMember(member_id=member.member_id)
        reply = await shard.coordinator.leave_group(
            LeaveGroupRequest(group_id=GROUP, members=(leaving,))
        )
        assert reply.results == (ErrorCode.NONE,)
        await shard.restart()
        assert await shard.state() == "Empty"

    play(scenario)


def test_resigning_coordinator_answers_parked_calls_and_refuses_new_ones(play: Play) -> None:
    async def scenario(shard: Shard) -> None:
        member = await shard.enter()
        await shard.sync(member)
        parked = asyncio.ensure_future(shard.enter())
        await give_turns(20)
        shard.coordinator.resign()
        assert (await parked).error is ErrorCode.NOT_COORDINATOR
        assert await shard.heartbeat(member) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        await shard.coordinator.load()
        assert await shard.heartbeat(member) is ErrorCode.NONE

    play(scenario)


def test_given_up_join_does_not_disturb_the_group(play: Play) -> None:
    async def scenario(shard: Shard) -> None:
        first = await shard.enter()
        await shard.sync(first)
        entering = asyncio.ensure_future(shard.enter())
        await give_turns(20)
        entering.cancel()
        await give_turns(20)
        assert (await shard.join(first.member_id)).generation_id == 2

    play(scenario)


# --- positions -------------------------------------------------------------------------------


def test_commit_is_answered_only_when_it_is_durable(play: Play) -> None:
    async def scenario(shard: Shard) -> None:
        shard.background.gate.clear()
        committing = asyncio.ensure_future(shard.commit(5))
        await give_turns(20)
        assert not committing.done()
        assert await shard.position() == -1
        shard.background.gate.set()
        assert await committing is ErrorCode.NONE
        assert await shard.position() == 5

    play(scenario)


def test_commits_in_flight_are_applied_in_log_order(play: Play) -> None:
    async def scenario(shard: Shard) -> None:
        shard.background.gate.clear()
        commits = [asyncio.ensure_future(shard.commit(offset)) for offset in (5, 7, 6)]
        await give_turns(20)
        shard.background.gate.set()
        assert await asyncio.gather(*commits) == [ErrorCode.NONE] * 3
        assert await shard.position() == 6

    play(scenario)


# --- removal ---------------------------------------------------------------------------------


def test_deletion_takes_commits_on_their_way_along(play: Play) -> None:
    async def scenario(shard: Shard) -> None:
        await shard.commit(5)
        shard.background.gate.clear()
        other = TopicPartition("flights", 1)
        late = asyncio.ensure_future(
            shard.commit(7, offsets=((other, OffsetAndMetadata(offset=7)),))
        )
        await give_turns(20)
        deleting = asyncio.ensure_future(shard.delete())
        await give_turns(20)
        assert await shard.commit(8) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        shard.background.gate.set()
        assert (await late, await deleting) == (ErrorCode.NONE, ErrorCode.NONE)
        assert await shard.state() is None
        await shard.restart()
        assert await shard.state() is None

    play(scenario)


def test_deletion_of_a_missing_or_used_group_is_refused(play: Play) -> None:
    async def scenario(shard: Shard) -> None:
        assert await shard.delete() is ErrorCode.GROUP_ID_NOT_FOUND
        await shard.enter()
        assert await shard.delete() is ErrorCode.NON_EMPTY_GROUP

    play(scenario)


def test_given_up_deletion_leaves_the_group_usable(play: Play) -> None:
    async def scenario(shard: Shard) -> None:
        await shard.commit(5)
        shard.background.gate.clear()
        late = asyncio.ensure_future(shard.commit(6))
        await give_turns(20)
        deleting = asyncio.ensure_future(shard.delete())
        await give_turns(20)
        deleting.cancel()
        await give_turns(20)
        shard.background.gate.set()
        await late
        assert await shard.commit(7) is ErrorCode.NONE

    play(scenario)


def test_unused_positions_are_removed_for_good(play: Play) -> None:
    async def scenario(shard: Shard) -> None:
        await shard.commit(5)
        shard.clock.time_ms += RETENTION_MS - 1
        await shard.coordinator.expire_offsets()
        assert await shard.position() == 5
        shard.clock.time_ms += 1
        await shard.coordinator.expire_offsets()
        assert await shard.position() == -1
        await shard.restart()
        assert await shard.state() is None

    play(scenario)


# --- availability ----------------------------------------------------------------------------


def test_requests_before_the_load_are_told_to_come_back(
    new_shard: Callable[..., Shard], tmp_path: Path
) -> None:
    async def body() -> None:
        shard = new_shard(tmp_path)
        await shard.start(loads=False)
        loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert (await shard.join()).error is loading
        assert await shard.commit(5) is loading
        assert await shard.position() is loading
        assert await shard.mark(committed=True) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        await shard.coordinator.load()
        assert await shard.commit(5) is ErrorCode.NONE
        await shard.stop()

    asyncio.run(body())


def test_group_of_another_shard_is_refused(new_shard: Callable[..., Shard], tmp_path: Path) -> None:
    async def body() -> None:
        shard = new_shard(tmp_path)
        shard.offsets_partitions = 2
        await shard.start()
        ours, other = sorted(("g0", "g1"), key=lambda group_id: shard_of(group_id, 2))
        assert await shard.commit(5, group_id=ours) is ErrorCode.NONE
        assert await shard.commit(5, group_id=other) is ErrorCode.NOT_COORDINATOR
        assert await shard.commit(5, group_id="") is ErrorCode.INVALID_GROUP_ID
        await shard.stop()

    asyncio.run(body())


def test_broken_disk_acknowledges_nothing_and_ends_the_service(play: Play) -> None:
    async def scenario(shard: Shard) -> None:
        member = await shard.enter()
        await shard.sync(member)
        parked = asyncio.ensure_future(shard.enter())
        await give_turns(20)
        shard.background.is_broken = True
        ids = {"generation_id": 1, "member_id": member.member_id}
        assert await shard.commit(5, **ids) is ErrorCode.NOT_COORDINATOR
        await give_turns(2)
        assert parked.done()
        assert (await parked).error is ErrorCode.NOT_COORDINATOR
        assert await shard.txn_commit(5) is ErrorCode.NOT_COORDINATOR
        assert await shard.position() is ErrorCode.NOT_COORDINATOR

    play(scenario)


def test_assignment_that_cannot_be_written_is_not_handed_out(play: Play) -> None:
    async def scenario(shard: Shard) -> None:
        member = await shard.enter()
        shard.background.is_broken = True
        assert (await shard.sync(member)).error is ErrorCode.NOT_COORDINATOR

    play(scenario)


def test_offsets_that_are_committed_in_another_epoch_than_written_are_not_told(play: Play) -> None:
    """Whoever leads in the newer epoch has loaded them: see I-18."""

    async def scenario(shard: Shard) -> None:
        await shard.commit(5)
        shard.background.gate.clear()
        committing = asyncio.ensure_future(shard.commit(6))
        await give_turns(20)
        replica = shard.coordinator.replica
        epoch = replica.leader_epoch + 1
        replica.leadership = structs.replace(replica.leadership, leader_epoch=epoch)
        shard.background.gate.set()
        assert await committing is ErrorCode.NOT_COORDINATOR

    play(scenario)


@pytest.mark.parametrize("kind", [InvariantViolation, KeyError])
def test_what_goes_wrong_in_a_timer_is_raised_by_every_call_and_ends_the_process(
    play: Play, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    async def scenario(shard: Shard) -> None:
        member = await shard.enter()
        await shard.sync(member)
        parked = asyncio.ensure_future(shard.enter())
        await give_turns(20)
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)

        def broken(*_: Any) -> None:
            raise kind("a bug")

        machine = shard.coordinator._machine
        monkeypatch.setattr(type(machine), "timer_fired", broken)
        with pytest.raises(kind):
            shard.coordinator._timer_fired(next(iter(shard.coordinator._timers)))
        with pytest.raises(kind):
            await parked
        with pytest.raises(kind):
            await shard.heartbeat(member)
        assert [type(failure) for failure in shard.failures] == [kind]

    play(scenario)


def test_a_committed_record_that_cannot_be_applied_ends_the_process(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(shard: Shard) -> None:
        def broken(*_: Any, **__: Any) -> None:
            raise KeyError("a bug")

        with monkeypatch.context() as patch:
            patch.setattr(type(shard.coordinator._machine), "apply", broken)
            with pytest.raises(KeyError):
                await shard.commit(5)
            assert [type(failure) for failure in shard.failures] == [KeyError]
            with pytest.raises(KeyError):
                await shard.position()
        await shard.crash()
        assert await shard.position() == 5

    play(scenario)


async def positions(shard: Shard) -> list[int]:
    reply = await shard.coordinator.offset_fetch(OffsetFetchRequest(group_id=GROUP))
    return [item.offset for item in reply.offsets]


def test_positions_in_a_deleted_topic_go_also_when_the_shard_was_away_meanwhile(play: Play) -> None:
    async def scenario(shard: Shard) -> None:
        assert await shard.commit(50) is ErrorCode.NONE
        await shard.coordinator.forget_deleted_topics()
        assert await positions(shard) == [50]
        await shard.stop()
        shard.controller.topic_ids["flights"] = "f2" * 16
        await shard.start()
        await shard.coordinator.forget_deleted_topics()
        assert await positions(shard) == []
        await shard.crash()
        assert await positions(shard) == []

    play(scenario)


def test_while_the_controller_does_not_answer_positions_stay_and_new_ones_wait(play: Play) -> None:
    async def scenario(shard: Shard) -> None:
        await shard.commit(50)
        await shard.stop()
        shard.controller.is_away = True
        await shard.start()
        await shard.coordinator.forget_deleted_topics()
        assert await positions(shard) == [50]
        assert await shard.commit(51) is ErrorCode.COORDINATOR_NOT_AVAILABLE

    play(scenario)


def test_a_position_in_a_topic_of_the_same_name_that_is_deleted_is_refused(play: Play) -> None:
    """1. A reader learns of the topic, 2. it is made anew, 3. both readers commit."""

    async def scenario(shard: Shard) -> None:
        old, new = FLIGHTS_ID, "f2" * 16

        def at(offset: int, topic_id: str) -> Any:
            return ((TP, OffsetAndMetadata(offset=offset, topic_id=topic_id)),)

        assert await shard.commit(50, offsets=at(50, old)) is ErrorCode.NONE
        shard.controller.topic_ids["flights"] = new
        assert await shard.commit(3, offsets=at(3, new)) is ErrorCode.NONE
        assert await shard.commit(60, offsets=at(60, old)) is ErrorCode.UNKNOWN_TOPIC_ID
        assert await positions(shard) == [3]

    play(scenario)


def test_a_transactions_position_in_a_deleted_topic_is_taken_until_that_is_known_and_goes_with_it(
    play: Play,
) -> None:
    async def scenario(shard: Shard) -> None:
        offsets = ((TP, OffsetAndMetadata(offset=50, topic_id=FLIGHTS_ID)),)
        assert await shard.commit(40, offsets=offsets) is ErrorCode.NONE
        del shard.controller.topic_ids["flights"]
        reply = await shard.txn_commit_reply(offsets=offsets, base_sequence=0)
        assert [result.error for result in reply.results] == [ErrorCode.NONE]
        await shard.mark(committed=True)
        await shard.coordinator.forget_deleted_topics()
        assert await positions(shard) == []
        reply = await shard.txn_commit_reply(offsets=offsets, base_sequence=1)
        assert [result.error for result in reply.results] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert reply.detail == "there is no topic 'flights'"

    play(scenario)


def test_commits_in_a_topic_that_is_known_ask_nobody(play: Play) -> None:
    async def scenario(shard: Shard) -> None:
        position = OffsetAndMetadata(offset=1, topic_id=FLIGHTS_ID)
        await shard.commit(1, offsets=((TP, position),))
        before = shard.controller.questions
        await shard.commit(1, offsets=((TP, position),))
        assert shard.controller.questions == before

    play(scenario)


def test_a_transactions_positions_are_taken_all_or_none(play: Play) -> None:
    """1. One of two topics is missing: refused. 2. It is made. 3. The same call comes again."""

    async def scenario(shard: Shard) -> None:
        other = TopicPartition("delays", 0)
        offsets = tuple((tp, OffsetAndMetadata(offset=9)) for tp in (TP, other))
        reply = await shard.txn_commit_reply(offsets=offsets, base_sequence=0)
        assert [result.error for result in reply.results] == [
            ErrorCode.OPERATION_NOT_ATTEMPTED,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]
        assert await shard.position() == -1
        shard.controller.topic_ids["delays"] = "d1" * 16
        reply = await shard.txn_commit_reply(offsets=offsets, base_sequence=0)
        assert [result.error for result in reply.results] == [ErrorCode.NONE] * 2
        assert await shard.mark(committed=True) is ErrorCode.NONE
        assert await positions(shard) == [9, 9]

    play(scenario)
