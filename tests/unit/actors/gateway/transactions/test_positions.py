"""Positions in transactions of Kafka's producers: the order in which their commits count."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from kafka_new_client import ABORTABLE, FENCED, NOT_ALLOWED, new_client
from kafka_transactions import GROUP, JAVA, NAME, Kafka, Play, abort_as_operator
from virtual_time import give_turns

from oncelog.actors.gateway.calls import Client
from oncelog.actors.gateway.transactions.requests import SEQUENCE_WITHIN_MS, next_sequence
from oncelog.actors.groups.group_coordinator import GroupCoordinator
from oncelog.actors.protocol.access import Principal
from oncelog.actors.protocol.messages.access import Access, Acl, Operation, Resource, Rules
from oncelog.actors.protocol.messages.partition import DescribeProducersReply, ProducerDescription
from oncelog.actors.rpc.door import Door
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import CONSUMER_OFFSETS_TOPIC, SEQUENCE_MAX, TopicPartition


def _group(kafka: Kafka) -> GroupCoordinator:
    return kafka.groups[int(_group_actor(kafka).split(":")[1][0])]


def _group_actor(kafka: Kafka) -> str:
    shard = next(
        number
        for number, coordinator in kafka.groups.items()
        if coordinator._unavailable(GROUP) is ErrorCode.NONE
    )
    return f"group:{shard}@1"


def _sequences(kafka: Kafka) -> list[int]:
    return [request.base_sequence for _, _, request in kafka.world.calls_of("txn_offset_commit")]


class _OnlyDescribes:
    def __init__(self, coordinator: Any) -> None:
        self.describe_producers = coordinator.describe_producers

    async def txn_offset_commit(self, request: Any) -> Any:
        return request.failed(ErrorCode.NOT_COORDINATOR)


def test_positions_count_with_the_commit_of_their_transaction(play: Play) -> None:
    async def scenario(kafka: Kafka) -> None:
        gateway = kafka.gateway()
        producer = await new_client(kafka, gateway)
        assert await producer.commit_offsets(gateway, 9, metadata="here") == [0]
        assert await kafka.position() is ErrorCode.UNSTABLE_OFFSET_COMMIT
        assert await producer.end(gateway) == 0
        assert await kafka.position() == 9
        assert await producer.commit_offsets(gateway, 12) == [0]
        assert await producer.end(gateway, committed=False) == 0
        assert await kafka.position() == 9

    play(scenario)


def test_each_commit_of_a_transaction_has_the_sequence_after_the_last(play: Play) -> None:
    async def scenario(kafka: Kafka) -> None:
        gateway = kafka.gateway()
        producer = await new_client(kafka, gateway)
        assert await producer.commit_offsets(gateway, 1, topics=("flights", "delays")) == [0, 0]
        assert await producer.commit_offsets(gateway, 2) == [0]
        assert await producer.commit_offsets(gateway, 3) == [0]
        assert await producer.end(gateway) == 0
        assert await producer.commit_offsets(gateway, 4) == [0]
        assert _sequences(kafka) == [0, 2, 3, 0]
        assert await producer.end(gateway) == 0
        assert await kafka.position() == 4

    play(scenario)


def test_a_commit_counts_though_its_gateway_has_missed_others(play: Play) -> None:
    # 1. A client commits through one gateway, then through another, and then again through the
    # first, which knows only of its own. A sequence of its memory would be taken for a copy.
    async def scenario(kafka: Kafka) -> None:
        one, other = kafka.gateway(), kafka.gateway()
        producer = await new_client(kafka, one)
        for offset, gateway in enumerate((one, other, one, kafka.gateway()), start=1):
            assert await producer.commit_offsets(gateway, offset) == [0]
        assert await producer.end(one) == 0
        assert await kafka.position() == 4

    play(scenario)


@pytest.mark.parametrize("count", [1, 2], ids=["of as many", "of more"])
def test_a_late_copy_of_a_commit_does_not_undo_a_later_one(play: Play, count: int) -> None:
    # 1. A client commits 10; the gateway's call to the group's coordinator is delayed. 2. It gives
    # up, and repeats that through another gateway, with success. 3. It commits 20. 4. The call of
    # 1 arrives. 5. The transaction commits.
    async def scenario(kafka: Kafka) -> None:
        one, other = kafka.gateway(), kafka.gateway()
        producer = await new_client(kafka, one)
        held = kafka.hold(_group_actor(kafka), "txn_offset_commit")
        late = asyncio.ensure_future(producer.commit_offsets(one, 10))
        await held.has_come.wait()
        assert await producer.commit_offsets(other, 10) == [0]
        topics = ("flights", "delays")[:count]
        assert await producer.commit_offsets(other, 20, topics=topics) == [0] * count
        held.go.set()
        await late
        assert await producer.end(other) == 0
        assert await kafka.position() == 20

    play(scenario)


def test_a_gateway_that_took_long_to_enrol_does_not_undo_a_later_commit(play: Play) -> None:
    # As above, but the call of 1 to the transaction's coordinator is delayed.
    async def scenario(kafka: Kafka) -> None:
        one, other = kafka.gateway(), kafka.gateway()
        producer = await new_client(kafka, one)
        held = kafka.hold("transaction:0@1", "add_offsets_to_txn")
        late = asyncio.ensure_future(producer.commit_offsets(one, 10))
        await held.has_come.wait()
        assert await producer.commit_offsets(other, 10) == [0]
        # More than a leader remembers: it can no longer tell that the first one is a copy.
        for offset in range(20, 26):
            assert await producer.commit_offsets(other, offset) == [0]
        held.go.set()
        assert await late == [int(ErrorCode.CONCURRENT_TRANSACTIONS)]
        assert await producer.end(other) == 0
        assert await kafka.position() == 25

    play(scenario)


def test_a_copy_that_comes_after_the_decision_changes_nothing(play: Play) -> None:
    # 1. A commit of positions is delayed on its way, and repeated with success. 2. The transaction
    # is decided; the marker of the group's log is on its way. 3. The copy arrives before it.
    async def scenario(kafka: Kafka) -> None:
        one, other = kafka.gateway(), kafka.gateway()
        producer = await new_client(kafka, one)
        actor = _group_actor(kafka)
        held = kafka.hold(actor, "txn_offset_commit")
        late = asyncio.ensure_future(producer.commit_offsets(one, 10))
        await held.has_come.wait()
        assert await producer.commit_offsets(other, 10) == [0]
        marker = kafka.hold(actor, "write_txn_markers")
        ending = asyncio.ensure_future(producer.end(other))
        await marker.has_come.wait()
        machine = _group(kafka).replica.machine
        log_end_offset = machine.log_end_offset
        held.go.set()
        await late
        assert machine.log_end_offset == log_end_offset
        # 4. One that the gateway gets only now is refused before anyone is asked to write.
        asked = len(_sequences(kafka))
        assert await producer.at(0).commit_offsets(one, 10) == [FENCED]
        assert len(_sequences(kafka)) == asked
        marker.go.set()
        assert await ending == 0
        assert await kafka.position() == 10

    play(scenario)


def test_commits_of_one_id_are_made_in_the_order_in_which_they_came(play: Play) -> None:
    # A client that breaks Kafka's rule and has two under way: the later one counts.
    async def scenario(kafka: Kafka) -> None:
        gateway = kafka.gateway()
        producer = await new_client(kafka, gateway)
        held = kafka.hold("transaction:0@1", "add_offsets_to_txn")
        commits = [
            asyncio.ensure_future(producer.commit_offsets(gateway, offset)) for offset in (10, 20)
        ]
        await held.has_come.wait()
        await give_turns()
        held.go.set()
        assert await asyncio.gather(*commits) == [[0], [0]]
        assert _sequences(kafka) == [0, 1]
        assert await producer.end(gateway) == 0
        assert await kafka.position() == 20
        assert not gateway.transactions._turns

    play(scenario)


def test_no_sequence_is_asked_for_long_after_a_commit_has_come(play: Play) -> None:
    # Its client has given up by then, and may have committed something newer.
    async def scenario(kafka: Kafka) -> None:
        gateway = kafka.gateway()
        producer = await new_client(kafka, gateway)
        held = kafka.hold(_group_actor(kafka), "describe_producers")
        began_s = asyncio.get_running_loop().time()
        codes = await producer.commit_offsets(gateway, 10)
        assert codes == [int(ErrorCode.COORDINATOR_NOT_AVAILABLE)]
        waited_ms = 1_000 * (asyncio.get_running_loop().time() - began_s)
        assert waited_ms == pytest.approx(SEQUENCE_WITHIN_MS, abs=50)
        # 2. One that has waited that long for its turn is not even asked about.
        held = kafka.hold("transaction:0@1", "add_offsets_to_txn")
        first = asyncio.ensure_future(producer.commit_offsets(gateway, 20))
        await held.has_come.wait()
        second = asyncio.ensure_future(producer.commit_offsets(gateway, 30))
        await asyncio.sleep(SEQUENCE_WITHIN_MS / 1_000 + 1)
        held.go.set()
        assert await first == [0]
        assert await second == [int(ErrorCode.COORDINATOR_NOT_AVAILABLE)]
        assert len(_sequences(kafka)) == 1
        assert len(kafka.world.calls_of("describe_producers")) == 2

    play(scenario)


def test_one_bad_position_keeps_the_others_from_being_committed_and_all_say_so(play: Play) -> None:
    async def scenario(kafka: Kafka) -> None:
        gateway = kafka.gateway()
        producer = await new_client(kafka, gateway)
        codes = await producer.commit_offsets(gateway, 9, topics=("flights", "none"))
        assert codes == [int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)] * 2
        codes = await producer.commit_offsets(gateway, 9, metadata="m" * 5_000)
        assert codes == [int(ErrorCode.OFFSET_METADATA_TOO_LARGE)]
        assert await producer.end(gateway) == 0
        assert await kafka.position() == -1

    play(scenario)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"generation_id_or_member_epoch": 3, "member_id": "m"}, ErrorCode.ILLEGAL_GENERATION),
        ({}, ErrorCode.NONE),
    ],
)
def test_the_groups_generation_fences_a_zombie(
    play: Play, fields: dict[str, Any], code: ErrorCode
) -> None:
    async def scenario(kafka: Kafka) -> None:
        gateway = kafka.gateway()
        producer = await new_client(kafka, gateway)
        assert await producer.commit_offsets(gateway, 9, **fields) == [int(code)]

    play(scenario)


def test_nothing_to_commit_asks_nobody(play: Play) -> None:
    async def scenario(kafka: Kafka) -> None:
        gateway = kafka.gateway()
        producer = await new_client(kafka, gateway)
        asked = len(kafka.world.calls)
        assert await producer.commit_offsets(gateway, 9, topics=()) == []
        assert len(kafka.world.calls) == asked

    play(scenario)


def test_a_group_coordinator_that_has_moved_is_found_or_the_client_looks_for_it(play: Play) -> None:
    async def scenario(kafka: Kafka) -> None:
        gateway = kafka.gateway()
        producer = await new_client(kafka, gateway)
        actor = _group_actor(kafka)
        assert await producer.commit_offsets(gateway, 1) == [0]
        # 1. The shard is at another broker, which the gateway does not know yet.
        moved = actor.replace("@1", "@2")
        tp = TopicPartition(CONSUMER_OFFSETS_TOPIC, int(actor.split(":")[1][0]))
        kafka.world.actors[moved] = kafka.world.actors.pop(actor)
        kafka.world.leaders[tp] = 2
        assert await producer.commit_offsets(gateway, 2) == [0]
        assert _sequences(kafka) == [0, 1]
        # 2. It moves between the two questions: another leader might know another sequence.
        coordinator = kafka.world.actors.pop(moved)
        kafka.world.actors[moved] = _OnlyDescribes(coordinator)
        asked = len(_sequences(kafka))
        codes = await producer.commit_offsets(gateway, 3)
        assert codes == [int(ErrorCode.NOT_COORDINATOR)]
        assert len(_sequences(kafka)) == asked + 1
        assert not gateway.cluster.view.cached((CONSUMER_OFFSETS_TOPIC,), as_of_ms=0)
        # 3. Nobody leads.
        kafka.world.leaders[tp] = -1
        codes = await producer.commit_offsets(gateway, 3)
        assert codes == [int(ErrorCode.NOT_COORDINATOR)]

    play(scenario)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.CONCURRENT_TRANSACTIONS),
        (ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTION_ABORTABLE),
        (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.CONCURRENT_TRANSACTIONS),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        # The coordinator sees nothing wrong with the transaction.
        (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_EPOCH),
    ],
)
def test_what_the_groups_log_refuses_is_told_so_that_the_client_does_the_right_thing(
    play: Play, said: ErrorCode, told: ErrorCode
) -> None:
    async def scenario(kafka: Kafka) -> None:
        gateway = kafka.gateway()
        producer = await new_client(kafka, gateway)
        actor = _group_actor(kafka)
        refusing = _OnlyDescribes(kafka.world.actors[actor])

        async def refuse(request: Any) -> Any:
            return request.failed(said)

        refusing.txn_offset_commit = refuse  # type: ignore[method-assign]
        kafka.world.actors[actor] = refusing
        assert await producer.commit_offsets(gateway, 9) == [int(told)]

    play(scenario)


def test_a_marker_that_overtakes_a_commit_is_explained_by_the_coordinator(play: Play) -> None:
    # 1. A commit of positions is on its way to the group's log. 2. The transaction times out, and
    # its marker arrives. 3. The commit is refused: the client is to abort, not to die.
    async def scenario(kafka: Kafka) -> None:
        gateway = kafka.gateway()
        producer = await new_client(kafka, gateway)
        held = kafka.hold(_group_actor(kafka), "txn_offset_commit")
        late = asyncio.ensure_future(producer.commit_offsets(gateway, 9))
        await held.has_come.wait()
        await abort_as_operator(kafka)
        held.go.set()
        assert await late == [ABORTABLE]

    play(scenario)


def test_who_may_not_read_the_group_commits_nothing(play: Play) -> None:
    who = "User:alice"
    acls = tuple(
        Acl(principal=who, operation=operation, resource=resource, name=name)
        for operation, resource, name in (
            (Operation.WRITE, Resource.TRANSACTIONAL_ID, NAME),
            (Operation.READ, Resource.TOPIC, "flights"),
        )
    )

    async def scenario(kafka: Kafka) -> None:
        producer = await new_client(kafka, kafka.gateway())
        reading = Acl(principal=who, operation=Operation.READ, resource=Resource.GROUP, name=GROUP)
        client = Client(principal=Principal(who), host="h", name=JAVA)
        kafka.door = Door(Access(rules=Rules(is_on=True, version=1, acls=acls)))
        gateway = kafka.gateway()
        codes = await producer.commit_offsets(gateway, 9, call=gateway.call(5, client))
        assert codes == [int(ErrorCode.GROUP_AUTHORIZATION_FAILED)]
        assert not _sequences(kafka)
        # Of two topics she may read one, which is committed.
        kafka.door = Door(Access(rules=Rules(is_on=True, version=1, acls=(*acls, reading))))
        gateway = kafka.gateway()
        codes = await producer.commit_offsets(
            gateway, 9, topics=("delays", "flights"), call=gateway.call(5, client)
        )
        assert codes == [int(ErrorCode.TOPIC_AUTHORIZATION_FAILED), 0]
        # 3. An id that is not hers.
        stranger = Client(principal=Principal("User:bob"), host="h", name=JAVA)
        assert await producer.end(gateway, call=gateway.call(5, stranger)) == NOT_ALLOWED

    play(scenario)


@pytest.mark.parametrize(
    ("producers", "sequence"),
    [
        ((), 0),
        (
            (
                ProducerDescription(
                    producer_id=1,
                    producer_epoch=4,
                    last_sequence=7,
                    last_timestamp_ms=0,
                    coordinator_epoch=0,
                ),
            ),
            0,
        ),
        (
            (
                ProducerDescription(
                    producer_id=1,
                    producer_epoch=5,
                    last_sequence=-1,
                    last_timestamp_ms=0,
                    coordinator_epoch=0,
                ),
            ),
            0,
        ),
        (
            (
                ProducerDescription(
                    producer_id=1,
                    producer_epoch=5,
                    last_sequence=7,
                    last_timestamp_ms=0,
                    coordinator_epoch=0,
                ),
            ),
            8,
        ),
        (
            (
                ProducerDescription(
                    producer_id=1,
                    producer_epoch=5,
                    last_sequence=SEQUENCE_MAX,
                    last_timestamp_ms=0,
                    coordinator_epoch=0,
                ),
            ),
            0,
        ),
    ],
)
def test_the_next_sequence_follows_the_last_of_the_epoch(
    producers: tuple[ProducerDescription, ...], sequence: int
) -> None:
    assert next_sequence(DescribeProducersReply(producers=producers), 5) == sequence
