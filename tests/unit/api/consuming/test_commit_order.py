from __future__ import annotations

import pickle

import pytest

from oncelog.actors.protocol.messages.group import OffsetAndMetadata
from oncelog.api.config import ConsumerSettings
from oncelog.api.consuming.commit_order import CommitOrderPartition
from oncelog.api.consuming.consumer import AsyncConsumer
from oncelog.api.producing.arguments import checked_offsets
from oncelog.api.records import CommitPosition
from oncelog.storage.exceptions import (
    IllegalStateError,
    InvalidSettingError,
    PolicyViolationError,
    SerializationError,
    SpillFailedError,
)
from oncelog.storage.model import TopicPartition

TP = TopicPartition("t", 0)


def consumer_of(cluster, **settings):
    settings = {"auto_offset_reset": "earliest", "order": "commit", **settings}
    return AsyncConsumer(cluster.router(), ConsumerSettings.from_options(settings), cluster.random)


def member_of(cluster, **settings):
    return consumer_of(cluster, group_id="g", enable_auto_commit=False, **settings)


def values(records):
    return [record.value for record in records]


@pytest.fixture
def log(fake_cluster):
    """Transaction 1 is open; 2 began later and is committed; there is a record outside both."""
    (log,) = fake_cluster.create("t")
    log.append(b"1a", producer_id=1)
    log.append(b"2a", producer_id=2)
    log.append(b"plain")
    log.append(b"2b", producer_id=2)
    log.mark(2, committed=True)
    return log


# --- order ----------------------------------------------------------------------------------------


def test_a_transaction_comes_when_it_commits_however_old_another_open_one_is(
    fake_cluster, log, run
):
    async def scenario():
        consumer = consumer_of(fake_cluster)
        await consumer.assign(TP)
        first = values(await consumer.poll(1_000))
        log.append(b"1b", producer_id=1)
        log.mark(1, committed=True)
        second = values(await consumer.poll(1_000))
        return first, second

    assert run(scenario()) == ([b"plain", b"2a", b"2b"], [b"1a", b"1b"])


def test_records_of_an_aborted_transaction_never_come(fake_cluster, log, run):
    log.mark(1, committed=False)

    async def scenario():
        consumer = consumer_of(fake_cluster)
        await consumer.assign(TP)
        found = values(await consumer.poll(1_000))
        return found, await consumer.position(TP)

    assert run(scenario()) == ([b"plain", b"2a", b"2b"], log.log_end_offset)


def test_columns_come_in_commit_order_too(fake_cluster, log, run):
    async def scenario():
        consumer = consumer_of(fake_cluster)
        await consumer.assign(TP)
        first = await consumer.poll_arrow(1_000, max_records=2)
        return first.column("value").to_pylist(), (await consumer.poll_arrow(1_000)).to_pylist()

    first, second = run(scenario())
    assert first == [b"plain", b"2a"]
    assert [row["value"] for row in second] == [b"2b"]


# --- positions ------------------------------------------------------------------------------------


def test_the_next_member_goes_on_inside_a_transaction_and_with_an_open_one(fake_cluster, log, run):
    async def scenario():
        first = member_of(fake_cluster)
        await first.subscribe("t")
        taken = values(await first.poll(1_000, max_records=2))
        await first.commit()
        await first.close()
        log.mark(1, committed=True)
        second = member_of(fake_cluster)
        await second.subscribe("t")
        return taken, values(await second.poll(1_000)) + values(await second.poll(1_000))

    assert run(scenario()) == ([b"plain", b"2a"], [b"2b", b"1a"])


def test_an_iteration_commits_what_it_has_delivered_and_no_more(fake_cluster, log, run):
    async def scenario():
        first = member_of(fake_cluster)
        await first.subscribe("t")
        taken = [(await anext(first)).value for _ in range(2)]
        await first.commit()
        # To poll takes back what the iteration has not delivered.
        again = values(await first.poll(1_000))
        second = member_of(fake_cluster)
        await second.subscribe("t")
        return taken, again, values(await second.poll(1_000))

    assert run(scenario()) == ([b"plain", b"2a"], [b"2b"], [b"2b"])


def test_an_automatic_commit_has_the_whole_position(fake_cluster, log, run):
    async def scenario():
        consumer = consumer_of(fake_cluster, group_id="g")
        await consumer.subscribe("t")
        await consumer.poll(1_000)
        await consumer.close()

    run(scenario())
    assert (fake_cluster.committed[TP], fake_cluster.metadata[TP]) == (0, "commit-order 5 0")


def test_a_consumer_in_commit_order_takes_over_from_one_in_offset_order(fake_cluster, log, run):
    fake_cluster.committed[TP] = 2
    log.mark(1, committed=True)

    async def scenario():
        consumer = member_of(fake_cluster)
        await consumer.subscribe("t")
        return values(await consumer.poll(1_000))

    # The other had delivered offsets 0 and 1, below the last stable offset.
    assert run(scenario()) == [b"plain", b"2b"]


def test_offsets_of_records_are_no_positions(fake_cluster, log, run):
    async def scenario():
        consumer = member_of(fake_cluster)
        await consumer.subscribe("t")
        await consumer.poll(1_000)
        with pytest.raises(IllegalStateError, match=r"offset 4 of t-0 .*consumer\.positions"):
            await consumer.commit({TP: 4})
        group = consumer.group_metadata()
        with pytest.raises(IllegalStateError, match="offset 4 of t-0"):
            checked_offsets({TP: 4}, group)
        return checked_offsets(await consumer.positions(), group)

    assert run(scenario())[TP].metadata == "commit-order 5 0"
    assert not fake_cluster.committed


@pytest.mark.parametrize("metadata", ["commit-order", "commit-order 1", "commit-order 1 -2"])
def test_a_damaged_position_is_named(metadata):
    with pytest.raises(IllegalStateError, match=metadata):
        CommitPosition.of(OffsetAndMetadata(offset=3, metadata=metadata))


def test_a_position_is_an_offset_with_more_in_it():
    position = CommitPosition(3, 7, 2)
    assert position == 3
    assert CommitPosition.of(position.committed()).is_same(position)
    assert pickle.loads(pickle.dumps(position)).is_same(position)
    assert not position.is_same(CommitPosition(3, 7, 1))
    assert not position.is_same(3)
    assert repr(position.advanced(1)) == "CommitPosition(3, 7, 3)"


def test_a_record_that_cannot_be_deserialized_leaves_the_position_before_it(fake_cluster, log, run):
    log.append(b"2c", producer_id=2)
    log.mark(2, committed=True)

    async def scenario():
        consumer = member_of(fake_cluster, value_deserializer=_unless("2b"))
        await consumer.subscribe("t")
        first = values(await consumer.poll(1_000))
        with pytest.raises(SerializationError, match="offset 3"):
            await consumer.poll(1_000)
        await consumer.commit()
        second = member_of(fake_cluster)
        await second.subscribe("t")
        return first, values(await second.poll(1_000))

    assert run(scenario()) == (["plain", "2a"], [b"2b", b"2c"])


def _unless(text):
    def text_of(data, _):
        if data.decode() == text:
            raise ValueError(text)
        return data.decode()

    return text_of


# --- what it does not read ------------------------------------------------------------------------


def test_a_compacted_topic_is_refused(fake_cluster, log, run):
    fake_cluster.settings["t"] = (("cleanup_policy", "compact,delete"),)

    async def scenario():
        consumer = consumer_of(fake_cluster)
        await consumer.assign(TP)
        await consumer.poll(1_000)

    with pytest.raises(PolicyViolationError, match="t has cleanup_policy='compact,delete'"):
        run(scenario())


def test_commit_order_needs_read_committed():
    with pytest.raises(InvalidSettingError, match="order='commit'"):
        ConsumerSettings.from_options({"order": "commit", "isolation_level": "read_uncommitted"})


# --- memory and disk ------------------------------------------------------------------------------


@pytest.fixture
def partition(tmp_path):
    partition = CommitOrderPartition(
        TP, buffer_bytes=1, spill_directory=str(tmp_path / "spill"), spill_max_bytes=400
    )
    partition.seek(0)
    return partition


def receive(partition, log):
    partition.receive(log.read(partition.fetch_offset, log.log_end_offset, 1), (), checks_crc=True)


def test_what_is_open_beyond_the_memory_waits_in_a_file(partition, log, tmp_path):
    (tmp_path / "spill").mkdir()
    for _ in range(4):
        receive(partition, log)
    assert partition.spilled_bytes
    assert [record.value for record in partition.take_records(9)] == [b"plain"]
    receive(partition, log)
    assert [record.value for record in partition.take_records(1)] == [b"2a"]
    assert partition.take_columns(None)[0].column("value").to_pylist() == [b"2b"]
    log.append(b"1b", producer_id=1)
    log.mark(1, committed=True)
    receive(partition, log)
    receive(partition, log)
    assert [record.value for record in partition.take_records(9)] == [b"1a", b"1b"]
    assert (partition.open_bytes, partition.spilled_bytes) == (0, 0)


@pytest.mark.parametrize("end", [lambda one: one.seek(0), lambda one: one.release()])
def test_a_seek_and_a_release_give_the_room_in_the_file_back(partition, log, tmp_path, end):
    (tmp_path / "spill").mkdir()
    for _ in range(5):
        receive(partition, log)
    assert partition.spilled_bytes
    assert list((tmp_path / "spill").iterdir()) == []
    end(partition)
    assert partition.spilled_bytes == 0


def test_a_directory_that_fails_is_named_and_loses_nothing(partition, log, tmp_path):
    receive(partition, log)
    with pytest.raises(SpillFailedError, match=r"spill_directory='.*/spill' \(No such file"):
        receive(partition, log)
    assert partition.fetch_offset == 1
    (tmp_path / "spill").mkdir()
    for _ in range(2):
        receive(partition, log)
    assert partition.fetch_offset == 3


def test_a_full_file_is_named_and_loses_nothing(partition, log, tmp_path):
    (tmp_path / "spill").mkdir()
    log.append(bytes(500), producer_id=1)
    log.append(b"x")
    for _ in range(6):
        receive(partition, log)
    spilled_bytes = partition.spilled_bytes
    with pytest.raises(SpillFailedError, match="spill_max_bytes=400"):
        receive(partition, log)
    assert (partition.spilled_bytes, partition.fetch_offset) == (spilled_bytes, 6)


def test_a_poll_tells_and_the_next_one_goes_on(fake_cluster, log, run, tmp_path):
    fake_cluster.fetch_max_bytes = 1

    async def scenario():
        consumer = consumer_of(
            fake_cluster, commit_order_buffer_bytes=1, spill_directory=str(tmp_path / "spill")
        )
        await consumer.assign(TP)
        with pytest.raises(SpillFailedError, match="spill_directory"):
            await consumer.poll(1_000)
        (tmp_path / "spill").mkdir()
        found = []
        while len(found) < 3:
            found += values(await consumer.poll(1_000))
        return found

    assert run(scenario()) == [b"plain", b"2a", b"2b"]
