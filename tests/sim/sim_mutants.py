"""More protections removed, one at a time: of readers, clients, groups, coordinators and disks.

Like ``sim_saboteurs``, which has the vocabulary; here are those whose absence one checker shows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from msgspec import structs
from sim_disk import SimDisk
from sim_saboteurs import ALONE, LATE, Saboteur

from oncelog.actors.launch import assembly
from oncelog.actors.protocol.partition.bounds import PartitionBounds, Role
from oncelog.actors.protocol.partition.producers import ProducerStates
from oncelog.actors.replica import group_sync, replica, replica_log, topic_rules
from oncelog.actors.rpc import message_codec
from oncelog.actors.rpc.frames import FramedProtocol
from oncelog.api.consuming.commit_order import CommitOrderPartition
from oncelog.api.consuming.fetch_buffer import AssignedPartition
from oncelog.api.consuming.fetcher import Fetcher
from oncelog.api.processing.loop import ProcessLoop
from oncelog.api.producing.sender import Sender
from oncelog.api.records import CommitPosition
from oncelog.storage.disk import sync_point
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import IsolationLevel

Wrap = Callable[..., Any]


def replaced(owner: Any, name: str, wrap: Callable[[Wrap], Wrap]) -> Any:
    """``owner.name`` is what ``wrap`` makes of it while a block runs."""
    return mock.patch.object(owner, name, wrap(getattr(owner, name)))


@contextmanager
def together(*patches: Any) -> Iterator[None]:
    with ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        yield


# --- logs and readers -------------------------------------------------------------------------


def _ends_that_waver() -> Any:
    """Now and then the end of a partition is told far too low to who reads all."""

    def wrap(real: Wrap) -> Wrap:
        def fetch_bound(self: PartitionBounds, isolation_level: IsolationLevel) -> int:
            bound = int(real(self, isolation_level))
            if isolation_level is IsolationLevel.READ_UNCOMMITTED and bound % 3 == 0:
                return max(bound // 2, self.log_start_offset)
            return bound

        return fetch_bound

    return replaced(PartitionBounds, "fetch_bound", wrap)


def _without_what_is_open(position: CommitPosition) -> CommitPosition:
    return CommitPosition(position.reading_offset, position.reading_offset, position.record_count)


def _without_counts(position: CommitPosition) -> CommitPosition:
    return CommitPosition(int(position), position.reading_offset)


def _positions_in_commit_order(less: Callable[[CommitPosition], CommitPosition]) -> Any:
    """A reader in commit order begins again from a part of its position."""

    def wrap(real: Wrap) -> Wrap:
        def seek(self: CommitOrderPartition, offset: int) -> None:
            real(self, less(offset) if isinstance(offset, CommitPosition) else offset)

        return seek

    return replaced(CommitOrderPartition, "seek", wrap)


def _committed_reads_of_all() -> Any:
    """Who reads committed data gets all that is replicated."""

    def fetch_bound(self: PartitionBounds, isolation_level: IsolationLevel) -> int:
        return self.high_watermark

    return mock.patch.object(PartitionBounds, "fetch_bound", fetch_bound)


class _RowsOfOneOffset:
    """Rows that all have the offset of the first."""

    def __init__(self, rows: Any) -> None:
        self._rows = rows
        self._offset: int | None = None

    @property
    def left(self) -> int:
        return int(self._rows.left)

    def take(self, count_max: int) -> list[Any]:
        taken = self._rows.take(count_max)
        if taken and self._offset is None:
            self._offset = taken[0].offset
        return [record._replace(offset=self._offset) for record in taken]


def _offsets_of_batches() -> Any:
    """Every record of a batch is given the offset of its first one."""

    def wrap(real: Wrap) -> Wrap:
        def decode(self: AssignedPartition, piece: Any) -> Any:
            found = real(self, piece)
            return _RowsOfOneOffset(found)

        return decode

    return replaced(AssignedPartition, "_decode", wrap)


def _bounds_that_fall() -> Any:
    """Now and then a leader's high watermark is back at its log start."""
    calls = itertools.count(1)

    def wrap(real: Wrap) -> Wrap:
        def advance_high_watermark(self: PartitionBounds, offset: int) -> bool:
            has_moved = bool(real(self, offset))
            if self.role is Role.LEADER and next(calls) % 50 == 0:
                self._high_watermark = self._log_start_offset
            return has_moved

        return advance_high_watermark

    return replaced(PartitionBounds, "advance_high_watermark", wrap)


def _stable_offset_past_all() -> Any:
    """The last stable offset is past everything, and nobody inside asserts the order of bounds."""
    return together(
        mock.patch.object(
            PartitionBounds,
            "last_stable_offset",
            property(lambda self: self.high_watermark + (self.first_unstable_offset < 0)),
        ),
        mock.patch.object(PartitionBounds, "_check_bounds"),
    )


def _two_writers_of_a_directory() -> Any:
    """No lock: a zombie and its successor append to one log."""

    def wrap(real: Wrap) -> Wrap:
        def lock(self: SimDisk, path: Any) -> Any:
            self._locked.discard(path)
            return real(self, path)

        return lock

    return replaced(SimDisk, "lock", wrap)


def _offsets_of_duplicates() -> Any:
    """A retry that is answered as a duplicate is told another offset."""

    def wrap(real: Wrap) -> Wrap:
        def find_duplicate(self: ProducerStates, *arguments: Any) -> Any:
            found = real(self, *arguments)
            return None if found is None else found._replace(last_offset=found.last_offset + 1)

        return find_duplicate

    return replaced(ProducerStates, "find_duplicate", wrap)


def _epochs_of_producers() -> Any:
    """A leader takes data of an epoch that is over, as if its ticket were enough."""

    def wrap_data(real: Wrap) -> Wrap:
        def check_data(self: ProducerStates, header: Any, *more: Any, **named: Any) -> Any:
            error, is_early = real(self, header, *more, **named)
            if error is ErrorCode.INVALID_PRODUCER_EPOCH:
                return ErrorCode.NONE, False
            return error, is_early

        return check_data

    def wrap_enrolment(real: Wrap) -> Wrap:
        def check_enrolment(self: ProducerStates, header: Any) -> Any:
            found = real(self, header)
            return type(found).TICKET_NEEDED if found.name == "FENCED" else found

        return check_enrolment

    return together(
        replaced(ProducerStates, "check_data", wrap_data),
        replaced(ProducerStates, "check_enrolment", wrap_enrolment),
    )


def _refusals_for_good() -> Any:
    """A disk that was full for a while is taken for a broken one."""
    users = (assembly, group_sync, replica, replica_log, sync_point)
    return together(
        *(mock.patch.object(user, "is_transient", return_value=False) for user in users)
    )


# --- clients ----------------------------------------------------------------------------------


def _positions_of_readers() -> Any:
    """A reader forgets where its last reply ended, and delivers what is below its position."""

    def wrap_add(real: Wrap) -> Wrap:
        def add(self: AssignedPartition, records: Any, visible: Any) -> None:
            real(self, records, visible)
            if visible.batches:
                self.fetch_offset = visible.batches[-1].header.base_offset

        return add

    def wrap_decode(real: Wrap) -> Wrap:
        def decode(self: AssignedPartition, piece: Any) -> Any:
            position, self.position = self.position, 0
            try:
                return real(self, piece)
            finally:
                self.position = position

        return decode

    return together(
        replaced(AssignedPartition, "add", wrap_add),
        replaced(AssignedPartition, "_decode", wrap_decode),
    )


def _first_batches_of_replies() -> Any:
    """A reader drops the first batch of each longer reply."""

    def wrap(real: Wrap) -> Wrap:
        def add(self: AssignedPartition, records: Any, visible: Any) -> None:
            if len(visible.batches) > 1:
                fields = {name: getattr(visible, name) for name in type(visible).__slots__}
                visible = type(visible)(**fields | {"batches": visible.batches[1:]})
            real(self, records, visible)

        return add

    return replaced(AssignedPartition, "add", wrap)


def _aborted_lists_in_messages() -> Any:
    """The codec loses the list of aborted transactions."""

    def wrap(real: Wrap) -> Wrap:
        def decode_reply(method: str, data: Any) -> Any:
            reply = real(method, data)
            return structs.replace(reply, aborted_transactions=()) if method == "fetch" else reply

        return decode_reply

    return replaced(message_codec, "decode_reply", wrap)


def _torn_frames() -> Any:
    """What has come of a frame is forgotten when it is not whole."""

    def wrap(real: Wrap) -> Wrap:
        def buffer_updated(self: FramedProtocol, nbytes: int) -> None:
            real(self, nbytes)
            self._start = self._end = 0

        return buffer_updated

    return replaced(FramedProtocol, "buffer_updated", wrap)


def _commits_without_their_records() -> Any:
    """A commit does not wait for what was sent."""

    async def deliver_all(self: Sender) -> None:
        return None

    return mock.patch.object(Sender, "deliver_all", deliver_all)


def _workers_that_go_on() -> Any:
    """After an abort a worker of ``process`` does not go back."""
    return mock.patch.object(ProcessLoop, "_rewind")


BUSY = {"writers": 3, "pause_ms": 10.0}


def _cancelled_sends_go_unseen() -> Any:
    """A producer waits on for what a program has cancelled."""
    return mock.patch.object(Sender, "_cancelled")


def _cancelled_fetches_go_unseen() -> Any:
    """A consumer polls on without what fetches for it."""
    return mock.patch.object(Fetcher, "_ended")


def _refusals_of_nobody() -> Any:
    """A leader that refuses a batch does not say for which of its records."""
    return mock.patch.object(topic_rules, "_refused_records", return_value=())


MUTANTS = (
    Saboteur(
        name="refused records",
        sabotage=_refusals_of_nobody,
        checker="World",
        changes=ALONE | {"wrong_times": 0.1, "plain_writers": 2},
    ),
    Saboteur(
        name="cancelled sends",
        sabotage=_cancelled_sends_go_unseen,
        checker="World",
        changes=ALONE | {"shutdowns": 0.3, "readers": 0, "writers": 3},
    ),
    Saboteur(
        name="cancelled fetches",
        sabotage=_cancelled_fetches_go_unseen,
        checker="World",
        changes=ALONE | {"shutdowns": 0.3},
    ),
    Saboteur(
        name="ends told exactly",
        sabotage=_ends_that_waver,
        checker="EndsGoBack",
        changes=ALONE | {"uncommitted_readers": 3, "topics": {"t0": 1}},
    ),
    Saboteur(
        name="bound of committed reads",
        sabotage=_committed_reads_of_all,
        checker="UncommittedReads",
        changes=ALONE | BUSY,
    ),
    Saboteur(
        name="open transactions in a position",
        sabotage=lambda: _positions_in_commit_order(_without_what_is_open),
        checker="CommitOrder",
        changes=ALONE | BUSY | {"commit_readers": 2},
    ),
    Saboteur(
        name="counts in a position",
        sabotage=lambda: _positions_in_commit_order(_without_counts),
        checker="CommitOrder",
        changes=ALONE | BUSY | {"commit_readers": 2},
    ),
    Saboteur(
        name="offsets of records",
        sabotage=_offsets_of_batches,
        checker="InconsistentOffsets",
        changes=ALONE | BUSY,
    ),
    Saboteur(
        name="bounds only rise",
        sabotage=_bounds_that_fall,
        checker="FallingBounds",
        changes=ALONE | {"kill": 1.0},
    ),
    Saboteur(
        name="order of bounds",
        sabotage=_stable_offset_past_all,
        checker="CrossedBounds",
        changes=ALONE,
    ),
    Saboteur(
        name="one writer of a directory",
        sabotage=_two_writers_of_a_directory,
        checker="ChangedBatches",
        changes=ALONE | BUSY | {"replace": 2.0, "peace": 0.0},
    ),
    Saboteur(
        name="offsets of duplicates",
        sabotage=_offsets_of_duplicates,
        checker="MismatchedOffsets",
        changes=ALONE | {"drop_reply": 0.2, "plain_writers": 2},
    ),
    Saboteur(
        name="epochs of producers",
        sabotage=_epochs_of_producers,
        checker="FallingEpochs",
        changes=ALONE | LATE | BUSY,
    ),
    Saboteur(
        name="errors of the disk that pass",
        sabotage=_refusals_for_good,
        checker="World",
        changes=ALONE | BUSY | {"disk_refusal": 2.0},
    ),
    Saboteur(
        name="positions of readers",
        sabotage=_positions_of_readers,
        checker="ReadsGoBack",
        changes=ALONE,
    ),
    Saboteur(
        name="whole replies",
        sabotage=_first_batches_of_replies,
        checker="SkippedReads",
        changes=ALONE | BUSY,
    ),
    Saboteur(
        name="messages with all their fields",
        sabotage=_aborted_lists_in_messages,
        checker="AbortedReads",
        changes=ALONE,
    ),
    Saboteur(name="torn frames", sabotage=_torn_frames, checker="World", changes=ALONE),
    Saboteur(
        name="commits with their records",
        sabotage=_commits_without_their_records,
        checker="OpenAtTheEnd",
        changes=ALONE | BUSY,
    ),
    Saboteur(
        name="workers that go back",
        sabotage=_workers_that_go_on,
        checker="SkippedInputs",
        changes=ALONE | {"processors": 2, "writers": 2, "pause_ms": 20.0},
    ),
)
