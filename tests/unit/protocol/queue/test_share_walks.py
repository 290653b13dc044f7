"""Walks of members and transactions against a model that has one entry for each offset."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from share_world import TOPIC_ID, TP, ShareWorld, runs, state_of

from oncelog.actors.protocol.messages.share import AcknowledgeType, ShareOrder
from oncelog.actors.protocol.queue.share_groups import ReadableRange, ShareTurn
from oncelog.actors.protocol.queue.share_keys import NO_KEY, NO_RECORD, KnownKeys
from oncelog.storage.errors import ErrorCode

MEMBERS = ("a", "b")
PRODUCERS = (7, 8)
OFFSETS = st.integers(0, 7)
KINDS = st.sampled_from([AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("join"), st.sampled_from(MEMBERS)),
        st.tuples(st.just("remove"), st.sampled_from(MEMBERS)),
        st.tuples(st.just("acquire"), st.sampled_from(MEMBERS), st.integers(1, 4)),
        st.tuples(st.just("acquire"), st.sampled_from(MEMBERS), st.integers(1, 4)),
        st.tuples(st.just("acknowledge"), st.sampled_from(MEMBERS), OFFSETS, OFFSETS, KINDS),
        st.tuples(st.just("acknowledge"), st.sampled_from(MEMBERS), OFFSETS, OFFSETS, KINDS),
        st.tuples(
            st.just("accept"),
            st.sampled_from(MEMBERS),
            OFFSETS,
            OFFSETS,
            st.sampled_from(PRODUCERS),
        ),
        st.tuples(st.just("mark"), st.sampled_from(PRODUCERS), st.booleans(), st.booleans()),
        st.tuples(st.just("move"), st.booleans()),
    ),
    max_size=40,
)
END = 8


class Walker:
    """A world and a model of it: what each offset is, and who has it."""

    def __init__(self, keys: Sequence[int] | None = None) -> None:
        """With ``keys``, one for each offset, or ``NO_RECORD``, the group is in their order."""
        self.world = ShareWorld()
        self.world.ranges = {TP: ReadableRange(TOPIC_ID, 0, END)}
        self.keys = keys
        if keys is not None:
            known = self.world.keys[TP] = KnownKeys(TOPIC_ID)
            known.learn(0, END, dict(enumerate(keys)))
        self.model: list[tuple[str, Any]] = [("AVAILABLE", None)] * END
        self.deliveries = [0] * END
        self.epochs: dict[str, int] = {}
        self.sequence = 0

    def take(self, kind: str, *rest: Any) -> None:
        getattr(self, f"_{kind}")(*rest)
        self._compare()

    def _join(self, member: str) -> None:
        self._forget(member)
        self.epochs[member] = self.world.join(member, order=self.order).member_epoch

    @property
    def order(self) -> ShareOrder:
        return ShareOrder.NONE if self.keys is None else ShareOrder.KEY

    def _is_free(self, offset: int) -> bool:
        """Whether it may be acquired: available, and the first of its key that is not done with."""
        if self.model[offset][0] != "AVAILABLE":
            return False
        key = NO_KEY if self.keys is None else self.keys[offset]
        earlier = [n for n in range(offset) if self.keys is not None and self.keys[n] == key]
        return key == NO_KEY or all(self.model[n][0] == "DONE" for n in earlier)

    def _remove(self, member: str) -> None:
        epoch = self.epochs.get(member, 99)
        self.world.turn(lambda turn: turn.remove(member, epoch))
        self._forget(member)

    def _forget(self, member: str) -> None:
        epoch = self.epochs.pop(member, None)
        self.model = [
            ("AVAILABLE", None) if one == ("ACQUIRED", epoch) and epoch is not None else one
            for one in self.model
        ]

    def _acquire(self, member: str, count: int) -> None:
        if member not in self.epochs:
            return
        epoch = self.epochs[member]
        got = self.world.acquire(member, epoch, count).acquired
        for offset, key in enumerate(self.keys or ()):
            if key == NO_RECORD:
                self.model[offset] = ("DONE", None)
        offsets = [n for run in got for n in range(run.first_offset, run.last_offset + 1)]
        free = [n for n in range(END) if self._is_free(n)]
        assert offsets == free[:count]
        for run in got:
            for offset in range(run.first_offset, run.last_offset + 1):
                self.model[offset] = ("ACQUIRED", epoch)
                self.deliveries[offset] += 1
                assert run.delivery_count == self.deliveries[offset]

    def _holds(self, member: str, first: int, last: int) -> bool:
        mine = ("ACQUIRED", self.epochs.get(member))
        return first <= last and all(one == mine for one in self.model[first : last + 1])

    def _acknowledge(self, member: str, first: int, last: int, kind: AcknowledgeType) -> None:
        if member not in self.epochs:
            return
        reply = self.world.acknowledge(member, self.epochs[member], runs((first, last), kind=kind))
        assert reply.refused == (() if self._holds(member, first, last) else (0,))
        if not reply.refused:
            state = "AVAILABLE" if kind is AcknowledgeType.RELEASE else "DONE"
            self.model[first : last + 1] = [(state, None)] * (last + 1 - first)

    def _accept(self, member: str, first: int, last: int, producer_id: int) -> None:
        if member not in self.epochs:
            return
        mine = ("PENDING", producer_id)
        is_repeated = first <= last and all(one == mine for one in self.model[first : last + 1])
        self.sequence += 1
        reply = self.world.txn_acknowledge(
            member,
            self.epochs[member],
            runs((first, last)),
            producer_id=producer_id,
            base_sequence=self.sequence,
        )
        may = is_repeated or self._holds(member, first, last)
        assert reply.error is (ErrorCode.NONE if may else ErrorCode.INVALID_RECORD_STATE)
        if may:
            self.model[first : last + 1] = [mine] * (last + 1 - first)

    def _mark(self, producer_id: int, committed: bool, settles: bool) -> None:
        self.world.mark(committed=committed, pid=producer_id, settles=settles)
        after = ("DONE" if committed else "AVAILABLE", None)
        self.model = [after if one == ("PENDING", producer_id) else one for one in self.model]

    def _move(self, is_compacted: bool) -> None:
        """The next coordinator loads the log, of which a cleaner may have removed what it may.

        The cleaner removes markers only long after they were written: what they ended is settled.
        """
        world = self.world
        for group_id in world.groups.group_ids() if is_compacted else ():
            world.turn(ShareTurn.settle, group_id)
        log = world.compacted() if is_compacted else None
        before = state_of(world.groups)
        world.groups = world.replayed(log)
        assert state_of(world.groups) == before

    def _compare(self) -> None:
        group = self.world.groups.find("resize")
        partition = None if group is None else group.partitions.get(TP)
        seen: list[tuple[str, Any]] = [("AVAILABLE", None)] * END
        if partition is not None:
            partition.check()
            seen[: partition.start_offset] = [("DONE", None)] * partition.start_offset
            for run in partition.runs:
                is_done = run.state.name in {"ACKNOWLEDGED", "ARCHIVED"}
                one = ("DONE" if is_done else run.state.name, run.owner or None)
                seen[run.first : run.last + 1] = [one] * run.count
        assert seen == self.model


@given(STEPS)
@settings(max_examples=300, deadline=None)
def test_a_walk_does_what_the_model_does_and_every_reload_finds_it(steps):
    walker = Walker()
    for step in steps:
        walker.take(*step)
    walker.take("move", False)
    assert len(walker.model) == END


KEYS = st.lists(st.sampled_from([NO_KEY, NO_RECORD, 1, 2, 3]), min_size=END, max_size=END)


@given(KEYS, STEPS)
@settings(max_examples=300, deadline=None)
def test_a_walk_in_order_of_keys_delivers_each_key_in_order_and_loses_nothing(keys, steps):
    walker = Walker(keys)
    for step in steps:
        walker.take(*step)
    walker.take("move", True)
    for producer_id in PRODUCERS:
        walker.take("mark", producer_id, False, True)
    # Whoever is left finishes the rest: nothing waits for ever.
    for member in MEMBERS:
        walker.take("remove", member)
    walker.take("join", "a")
    for _ in range(END):
        walker.take("acquire", "a", END)
        for offset in range(END):
            walker.take("acknowledge", "a", offset, offset, AcknowledgeType.ACCEPT)
    assert {state for state, _ in walker.model} == {"DONE"}


def test_all_short_lives_of_two_records_do_what_the_model_does():
    """Each sequence of four events, after one member has acquired two records."""
    accept, release = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE
    events = [
        ("join", "a"),
        ("remove", "a"),
        ("acquire", "b", 2),
        ("acknowledge", "a", 0, 0, accept),
        ("acknowledge", "a", 0, 1, accept),
        ("acknowledge", "a", 1, 1, release),
        ("acknowledge", "b", 0, 0, accept),
        ("accept", "a", 0, 0, 7),
        ("accept", "b", 0, 1, 8),
        ("mark", 7, True, False),
        ("mark", 7, False, True),
        ("mark", 8, True, True),
        ("move", True),
    ]
    for steps in itertools.product(events, repeat=3):
        walker = Walker()
        for step in (("join", "a"), ("join", "b"), ("acquire", "a", 2), *steps):
            walker.take(*step)
        assert walker.deliveries[0] >= 1
