"""Groups with cooperative rebalances: who keeps a partition reads on, and none has two owners."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from sim_world import World

from oncelog.api.consuming.core import ConsumerRebalanceListener
from oncelog.storage.model import TopicPartition

PARTITIONS = 6
SOON_S = 10.0
"""A heartbeat, two rebalances, and the back-off of clients; far less than a session."""

EAGER, BOTH, COOPERATIVE = "range", ("cooperative-sticky", "range"), "cooperative-sticky"


@pytest.fixture
def world() -> Iterator[World]:
    with World(seed=5, topics={"a": PARTITIONS}) as world:
        yield world


class Member(ConsumerRebalanceListener):
    """Reads topic "a" in the group "g"; ``owners`` is who has which partition, of all members."""

    def __init__(self, world: World, owners: dict[TopicPartition, Member], **settings: Any) -> None:
        self.world, self.owners = world, owners
        self.read: list[str] = []
        self.read_at: dict[TopicPartition, list[float]] = {}
        self.told: list[tuple[str, int]] = []
        self.is_open = True
        self.busy_s = 0.0
        """How long it works on what it polled; once."""
        self.rewinds: TopicPartition | None = None
        """Which partition it reads from the beginning; once."""
        client = world.client(f"member-{world.process_count}")
        self._settings = {"heartbeat_interval_ms": 500, "max_poll_interval_ms": 60_000} | settings
        self.consumer: Any = None
        self._reading = client.spawn(self._read(client))

    async def _read(self, client: Any) -> None:
        consumer = self.consumer = client.consumer(
            group_id="g", auto_offset_reset="earliest", **self._settings
        )
        await consumer.subscribe("a", listener=self)
        while self.is_open:
            for record in await consumer.poll(100):
                assert self.owners[record.topic_partition] is self
                self.read.append(record.value.decode())
                self.read_at.setdefault(record.topic_partition, []).append(self.world.now_s)
            if self.busy_s:
                busy_s, self.busy_s = self.busy_s, 0.0
                await asyncio.sleep(busy_s)
            if self.rewinds is not None:
                tp, self.rewinds = self.rewinds, None
                await consumer.seek_to_beginning(tp)
        await consumer.close()

    def on_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        self.told.append(("assigned", len(partitions)))
        for tp in partitions:
            assert tp not in self.owners, f"{tp} has two owners"
            self.owners[tp] = self

    def on_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        self.told.append(("revoked", len(partitions)))
        for tp in partitions:
            assert self.owners.pop(tp) is self

    def on_lost(self, partitions: frozenset[TopicPartition]) -> None:
        self.told.append(("lost", len(partitions)))
        for tp in partitions:
            if self.owners.get(tp) is self:
                del self.owners[tp]

    @property
    def owned(self) -> set[TopicPartition]:
        return {tp for tp, owner in self.owners.items() if owner is self}

    def close(self) -> None:
        self.is_open = False
        self.world.run(self._reading)


class Writer:
    """Writes to each partition in turn, every 50 ms, until it is closed."""

    def __init__(self, world: World) -> None:
        self.world, self.written, self._is_open = world, [], True
        client = world.client("writer")
        self._writing = client.spawn(self._write(client))

    written: list[str]

    async def _write(self, client: Any) -> None:
        producer = client.producer()
        number = 0
        while self._is_open:
            value = f"v{number}"
            await (await producer.send("a", value=value.encode(), partition=number % PARTITIONS))
            self.written.append(value)
            number += 1
            await asyncio.sleep(0.05)
        await producer.close()

    def close(self) -> None:
        self._is_open = False
        self.world.run(self._writing)


def settle(world: World) -> None:
    world.run_for(SOON_S)


def test_a_newcomer_takes_its_share_while_the_others_read_on_and_nothing_is_read_twice(
    world: World,
) -> None:
    owners: dict[TopicPartition, Member] = {}
    writer = Writer(world)
    first, second = Member(world, owners), Member(world, owners)
    settle(world)
    former = [first.owned, second.owned]
    assert [len(owned) for owned in former] == [3, 3]
    told = [len(first.told), len(second.told)]
    third = Member(world, owners)
    settle(world)
    assert [len(member.owned) for member in (first, second, third)] == [2, 2, 2]
    for member, before, count in zip((first, second), former, told, strict=True):
        assert member.owned < before
        assert member.told[count:] == [("revoked", 1), ("assigned", 0), ("assigned", 0)]
        for tp in member.owned:
            times = member.read_at[tp]
            gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
            # A record comes every 0.3 s, and a rebalance takes a heartbeat of each member.
            assert max(gaps) < 0.8
    writer.close()
    settle(world)
    for member in (first, second, third):
        member.close()
    assert sorted(first.read + second.read + third.read) == sorted(writer.written)


def test_members_read_on_while_a_rebalance_waits_for_one_that_works(world: World) -> None:
    """1. One works for long on what it polled. 2. Another joins, and the group waits for the first.
    3. The third reads all its partitions meanwhile, also where it seeks to. 4. The group goes on.
    """
    owners: dict[TopicPartition, Member] = {}
    writer = Writer(world)
    busy, other = Member(world, owners), Member(world, owners)
    settle(world)
    busy.busy_s = 30.0
    world.run_for(1.0)
    newcomer = Member(world, owners)
    world.run_for(5.0)
    count = len(other.read)
    other.rewinds = min(other.owned)
    world.run_for(10.0)
    assert not newcomer.owned
    assert len(other.owned) == 3
    assert len(other.read) > count + 50
    again = [value for value in set(other.read) if other.read.count(value) == 2]
    assert len(again) > 30
    world.run_for(20.0)
    assert [len(member.owned) for member in (busy, other, newcomer)] == [2, 2, 2]
    writer.close()
    settle(world)
    for member in (busy, other, newcomer):
        member.close()
    assert sorted({*busy.read, *other.read, *newcomer.read}) == sorted(writer.written)


def test_a_member_that_lost_its_place_gives_all_up_at_once_and_rejoins(world: World) -> None:
    """1. One works for longer than it may. 2. The others get its partitions. 3. It comes back."""
    owners: dict[TopicPartition, Member] = {}
    first = Member(world, owners, max_poll_interval_ms=2_000)
    second = Member(world, owners)
    settle(world)
    assert len(first.owned) == 3
    first.busy_s = 10.0
    world.run_for(1.9)
    # To the group it is gone soon; the program learns of it with its next poll.
    for tp in first.owned:
        del owners[tp]
    world.run_for(6.1)
    assert len(second.owned) == PARTITIONS
    settle(world)
    assert ("lost", 3) in first.told
    assert [len(member.owned) for member in (first, second)] == [3, 3]
    for member in (first, second):
        member.close()


def test_a_group_changes_from_eager_to_cooperative_in_two_rounds(world: World) -> None:
    """KIP-429: 1. Each member is restarted with both strategies, and is eager. 2. Each is restarted
    with the cooperative one alone. No partition has two owners at any time.
    """
    owners: dict[TopicPartition, Member] = {}
    writer = Writer(world)
    members = [Member(world, owners, partition_assignment_strategy=EAGER) for _ in range(3)]
    read: list[str] = []
    settle(world)
    for strategy in (BOTH, COOPERATIVE):
        for place in range(3):
            members[place].close()
            read += members[place].read
            world.run_for(1.0)
            members[place] = Member(world, owners, partition_assignment_strategy=strategy)
            settle(world)
            assert [len(member.owned) for member in members] == [2, 2, 2]
    former, newcomer = members[0].owned, Member(world, owners)
    settle(world)
    assert members[0].owned <= former
    assert len(owners) == PARTITIONS
    writer.close()
    settle(world)
    for member in (*members, newcomer):
        member.close()
        read += member.read
    assert sorted(read) == sorted(writer.written)


def test_members_with_no_strategy_in_common_are_refused(world: World) -> None:
    owners: dict[TopicPartition, Member] = {}
    cooperative = Member(world, owners)
    settle(world)

    async def join(client: Any) -> str:
        consumer = client.consumer(group_id="g", partition_assignment_strategy="range")
        await consumer.subscribe("a")
        try:
            await consumer.poll(5_000)
        except Exception as error:
            return type(error).__name__
        finally:
            await consumer.close()
        return ""

    client = world.client("stranger")
    joining = client.spawn(join(client))
    world.run(joining)
    assert joining.result() == "InconsistentGroupProtocolError"
    cooperative.close()
