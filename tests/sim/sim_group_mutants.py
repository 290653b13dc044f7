"""Groups with one protection less: their members, and the positions they commit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from msgspec import structs
from sim_coordinator_mutants import QUIET
from sim_mutants import Wrap, replaced
from sim_saboteurs import ALONE, LATE, Saboteur

from oncelog.actors.protocol.group import group_offsets, group_records
from oncelog.actors.protocol.group.group_machine import GroupMachine
from oncelog.actors.protocol.group.group_offsets import GroupOffsets
from oncelog.actors.protocol.group.group_records import GroupValue
from oncelog.actors.protocol.group.group_state import Group
from oncelog.actors.protocol.group.rebalance import GroupTurn
from oncelog.actors.protocol.messages.group import (
    JoinGroupRequest,
    OffsetAndMetadata,
    TxnOffsetCommitRequest,
)
from oncelog.api.consuming.group_membership import GroupMembership
from oncelog.api.processing.left_out import LeftOut
from oncelog.api.processing.loop import ProcessLoop
from oncelog.api.producing import producer
from oncelog.api.records import ConsumerGroupMetadata
from oncelog.api.transacting import producer_transaction
from oncelog.api.transacting.producer_transaction import ProducerTransaction
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import NO_PRODUCER_ID


@contextmanager
def _positions_of_any_generation() -> Iterator[None]:
    real = GroupMachine.admit_commit

    def admit_commit(self: GroupMachine, request: Any, now_ms: int) -> Any:
        if isinstance(request, TxnOffsetCommitRequest):
            return ErrorCode.NONE, []
        return real(self, request, now_ms)

    with mock.patch.object(GroupMachine, "admit_commit", admit_commit):
        yield


@contextmanager
def _members_put_out_are_nobody() -> Iterator[None]:
    """Who was put out of its group commits as nobody in particular, and nobody may commit."""
    real = GroupMachine.admit_commit

    def metadata(self: GroupMembership) -> ConsumerGroupMetadata:
        joined = self._joined
        if self.generation_id == joined.generation_id:
            return joined
        return ConsumerGroupMetadata(group_id=joined.group_id)

    def admit_commit(self: GroupMachine, request: Any, now_ms: int) -> Any:
        if isinstance(request, TxnOffsetCommitRequest) and not request.member_id:
            return ErrorCode.NONE, []
        return real(self, request, now_ms)

    with (
        mock.patch.object(GroupMembership, "metadata", metadata),
        mock.patch.object(GroupMachine, "admit_commit", admit_commit),
    ):
        yield


@contextmanager
def _static_members_join_at_once() -> Iterator[None]:
    """Whoever names a static member without a member id is given its place, as in Kafka."""
    real = GroupMachine._join_new

    def join_new(
        self: GroupMachine, turn: Any, request: JoinGroupRequest, call_id: int, fresh_id: str
    ) -> ErrorCode:
        if request.group_instance_id not in turn.group.static_members:
            return real(self, turn, request, call_id, fresh_id)
        turn.replace_static(request, f"{request.group_instance_id}-{fresh_id}", call_id)
        return ErrorCode.NONE

    with mock.patch.object(GroupMachine, "_join_new", join_new):
        yield


def _positions_of_a_name() -> Any:
    """Positions are decided without the id of their topic."""
    real = group_offsets.GroupOffsets.decide_commit

    def decide_commit(self: Any, request: Any, now_ms: int, topic_ids: dict[str, str]) -> Any:
        offsets = tuple(
            (tp, structs.replace(position, topic_id="")) for tp, position in request.offsets
        )
        nameless = structs.replace(request, offsets=offsets)
        return real(self, nameless, now_ms, dict.fromkeys(topic_ids, ""))

    return mock.patch.object(group_offsets.GroupOffsets, "decide_commit", decide_commit)


def _positions_before_their_marker() -> Any:
    def wrap(real: Wrap) -> Wrap:
        def apply(self: GroupOffsets, key: Any, value: Any, **named: Any) -> None:
            real(self, key, value, **named | {"producer_id": NO_PRODUCER_ID})

        return apply

    return replaced(GroupOffsets, "apply", wrap)


def _positions_of_aborts() -> Any:
    def wrap(real: Wrap) -> Wrap:
        def apply_marker(self: GroupOffsets, producer_id: int, *, committed: bool) -> Any:
            return real(self, producer_id, committed=True)

        return apply_marker

    return replaced(GroupOffsets, "apply_marker", wrap)


def _positions_of_commits() -> Any:
    """A commit marker drops the positions of its transaction."""
    return mock.patch.object(GroupOffsets, "_install")


def _new_ids_told_at_once() -> Any:
    """In a rebalance the join of a static member counts before its new id is in the log."""
    return mock.patch.object(GroupTurn, "_has_durable_id", return_value=True)


def _new_ids_one_at_a_time() -> Any:
    """A static member's new id goes into the record that is durable, where others are to follow.

    So records on their way to the log are forgotten, and with them the new ids of others.
    """

    def records(self: GroupTurn) -> list[GroupValue]:
        return [] if self._logged is None else [self._logged]

    def wrap(real: Wrap) -> Wrap:
        def replace_static(self: GroupTurn, request: Any, new_id: str, call_id: int) -> None:
            def with_present_ids(_: Group, logged: GroupValue) -> GroupValue:
                return _renamed(logged, request.group_instance_id, new_id)

            with (
                mock.patch.object(Group, "with_present_ids", with_present_ids),
                mock.patch.object(GroupTurn, "_records", property(records)),
            ):
                real(self, request, new_id, call_id)

        return replace_static

    return replaced(GroupTurn, "replace_static", wrap)


def _renamed(logged: GroupValue, instance_id: str, new_id: str) -> GroupValue:
    members = tuple(
        structs.replace(member, member_id=new_id)
        if member.group_instance_id == instance_id
        else member
        for member in logged.members
    )
    former_ids = {member.member_id for member in logged.members} - {
        member.member_id for member in members
    }
    leader_id = new_id if logged.leader_id in former_ids else logged.leader_id
    return structs.replace(logged, leader_id=leader_id, members=members)


def _input_read_again() -> Any:
    """A worker of ``process`` takes whatever a poll brings for new."""
    return mock.patch.object(ProcessLoop, "_repeated", return_value=[])


def _generations_forgotten() -> Any:
    """A coordinator that comes back counts the generations of its groups from the first."""

    def wrap(real: Wrap) -> Wrap:
        def restored(group_id: str, value: Any) -> Group:
            group: Group = real(group_id, value)
            group.generation_id = 0
            return group

        return staticmethod(restored)  # type: ignore[return-value]

    return replaced(Group, "restored", wrap)


def _refused_positions_forgotten() -> Any:
    """A transaction in which the positions were refused commits without them."""
    return mock.patch.object(ProducerTransaction, "offsets_refused")


@contextmanager
def _positions_sent_as_they_are() -> Iterator[None]:
    """What is no position is sent, and the coordinator's refusal is taken for the producer's."""

    def unchecked(offsets: Any, group: Any) -> Any:
        return {
            tp: offset
            if isinstance(offset, OffsetAndMetadata)
            else OffsetAndMetadata(offset=int(offset))
            for tp, offset in offsets.items()
        }

    with (
        mock.patch.object(producer, "checked_offsets", unchecked),
        mock.patch.dict(producer_transaction._FATAL_INSIDE, clear=True),
    ):
        yield


def _topics_not_logged() -> Any:
    """Of which topic an offset was committed is lost between the log and whoever loads it."""
    return mock.patch.object(group_records, "_topic_id", return_value="")


COPIES = ALONE | {"copiers": 2, "topics": {"t0": 2, "copies": 1}, "pause_ms": 20.0}

COME_BACK = QUIET | {"kill_group": 0.5, "peace": 0.0, "writers": 1}
"""Members of a group come back all at once."""

STATIC = COPIES | COME_BACK | {"copiers": 5, "static_ratio": 0.7, "slow_disk": 1.0}

SLOW = QUIET | {
    "processors": 2,
    "slow_functions": 0.1,
    "transaction_timeout_ms": 30_000,
    "writers": 3,
    "pause_ms": 50.0,
    "topics": {"t0": 2, "processed": 1},
    "duration_s": 40.0,
}
"""Functions so slow that their workers are put out of the group, and join again as they were."""

SLOW_COPIES = QUIET | {
    "copiers": 4,
    "slow_copies": 0.2,
    "transaction_timeout_ms": 30_000,
    "writers": 2,
    "pause_ms": 100.0,
    "topics": {"t0": 2, "copies": 1},
    "duration_s": 20.0,
    "peace": 0.0,
}
"""Copiers so slow that others have their input by the time they commit."""

DEAD_LETTERS = SLOW | {"on_error": "dead_letter", "bad_inputs": 0.3, "duration_s": 20.0}
"""Much that the function refuses, in workers that are put out of the group before they commit."""


def _dead_letters_outside() -> Any:
    """A dead letter is sent outside of the transaction that commits the position after it."""

    def send(self: LeftOut, producer: Any, topic: str, config: Any) -> None:
        producer.send_outside(self, topic)

    return mock.patch.object(LeftOut, "send", send)


GROUP_MUTANTS = (
    Saboteur(
        name="dead letters in their transaction",
        checker="DoubleProcessing",
        sabotage=_dead_letters_outside,
        changes=DEAD_LETTERS,
    ),
    Saboteur(
        name="generations in transactions",
        checker="DoubleProcessing",
        sabotage=_positions_of_any_generation,
        changes=SLOW_COPIES,
    ),
    Saboteur(
        name="identity of a member that was put out",
        sabotage=_members_put_out_are_nobody,
        checker="DoubleProcessing",
        changes=SLOW_COPIES,
    ),
    Saboteur(
        name="member ids before static members join",
        sabotage=_static_members_join_at_once,
        checker="FencedMembers",
        changes=ALONE
        | LATE
        | {"copiers": 3, "static_ratio": 1.0, "delay_max_ms": 3_000.0, "duplicate": 0.2}
        | {"topics": {"t0": 2, "copies": 1}},
    ),
    Saboteur(
        name="positions belong to a topic id",
        sabotage=_positions_of_a_name,
        checker="InheritedPositions",
        changes=ALONE | {"remakers": 2, "peace": 1.0},
    ),
    Saboteur(
        name="input that is read again",
        sabotage=_input_read_again,
        checker="DoubleProcessing",
        changes=SLOW,
    ),
    Saboteur(
        name="durable ids of static members",
        sabotage=_new_ids_told_at_once,
        checker="FencedMembers",
        changes=STATIC,
    ),
    Saboteur(
        name="durable ids of all static members",
        sabotage=_new_ids_one_at_a_time,
        checker="FencedMembers",
        changes=STATIC,
    ),
    Saboteur(
        name="positions after their marker",
        sabotage=_positions_before_their_marker,
        checker="WrongOffsets",
        changes=COPIES,
    ),
    Saboteur(
        name="positions of commits only",
        sabotage=_positions_of_aborts,
        checker="SkippedInputs",
        changes=COPIES,
    ),
    Saboteur(
        name="positions of commits",
        sabotage=_positions_of_commits,
        checker="TornOffsets",
        changes=COPIES,
    ),
    Saboteur(
        name="refused positions",
        sabotage=_refused_positions_forgotten,
        checker="DoubleProcessing",
        changes=COPIES | {"plain_writers": 2},
    ),
    Saboteur(
        name="positions that are looked at",
        sabotage=_positions_sent_as_they_are,
        checker="World",
        changes=COPIES | {"copiers": 4},
    ),
    Saboteur(
        name="generations remembered",
        sabotage=_generations_forgotten,
        checker="FallingGenerations",
        changes=COPIES | {"copiers": 3, "kill": 1.0},
    ),
    Saboteur(
        name="topics in the log",
        sabotage=_topics_not_logged,
        checker="UnequalStates",
    ),
)
