"""What is read from the disks of several brokers."""

from __future__ import annotations

import pytest
from faults.replicas import (
    coordinators_keys,
    count_moves,
    logged_changes,
    replica_differences,
)

from oncelog.actors.protocol.cluster.cluster_records import (
    IsrChanged,
    LeaderElected,
    encode_cluster_record,
)
from oncelog.storage.disk.file_system import RealFileSystem
from oncelog.storage.log.partition import LogSettings, PartitionLog
from oncelog.storage.records.batch import parse_header, patch
from oncelog.storage.records.codec import encode_records


def write(directory, values, *, rolls_at=-1, leader_epoch=0, first_offset=0):
    """One batch per value; a new file begins with that numbered ``rolls_at``."""
    log = PartitionLog.open(
        filesystem=RealFileSystem(), directory=directory, settings=LogSettings(), now_ms=0
    )
    for offset, value in enumerate(values, first_offset):
        batch = encode_records([(None, value, 0, ())])
        patch(batch, base_offset=offset, leader_epoch=leader_epoch)
        if offset == rolls_at:
            log.roll([])
        log.append_as_is(batch, parse_header(batch))
    log.close([])


@pytest.fixture
def disks(tmp_path):
    return {number: tmp_path / str(number) for number in (1, 2, 3)}


def test_equal_batches_in_other_files_are_equal(disks):
    for number, path in disks.items():
        write(path / "a-0", [b"x", b"y", b"z"], rolls_at=number)
    assert replica_differences(disks, ["a-0"], 3) == ""


def test_a_replica_that_is_nowhere_is_told(disks):
    write(disks[1] / "a-0", [b"x"])
    write(disks[3] / "a-0", [b"x"])
    assert replica_differences(disks, ["a-0"], 3) == "a-0 is on brokers [1, 3] only"


@pytest.mark.parametrize(
    ("values", "leader_epoch"),
    [([b"x", b"y"], 0), ([b"x", b"y", b"other"], 0), ([b"x", b"y", b"z"], 1)],
)
def test_a_batch_that_lacks_or_differs_is_told(disks, values, leader_epoch):
    write(disks[1] / "a-0", [b"x", b"y", b"z"])
    write(disks[2] / "a-0", [b"x", b"y", b"z"])
    write(disks[3] / "a-0", values, leader_epoch=leader_epoch)
    found = replica_differences(disks, ["a-0"], 3)
    assert found.startswith("a-0 of brokers 1 and 3: offsets")
    assert "brokers 1 and 2" not in found


KEY = "__consumer_offsets-0"


def test_of_coordinators_logs_what_several_have_whole_is_compared(disks):
    """Compaction has taken a batch from one of them."""
    for number, path in disks.items():
        write(path / KEY, [b"x", b"y", b"z"][number == 2 :], first_offset=number == 2)
    assert coordinators_keys(disks) == [KEY]
    assert replica_differences(disks, [KEY], 3) == ""


@pytest.mark.parametrize("values", [[b"x", b"other", b"z"], [b"x", b"y"], [b"x", b"y", b"other"]])
def test_a_coordinators_log_that_differs_or_ends_elsewhere_is_told(disks, values):
    write(disks[1] / KEY, [b"x", b"y", b"z"])
    write(disks[2] / KEY, [b"x", b"y", b"z"])
    write(disks[3] / KEY, values)
    found = replica_differences(disks, [KEY], 3)
    assert found.startswith(f"{KEY} of brokers 1 and 3: ")
    assert "brokers 1 and 2" not in found


def test_elections_and_changes_of_the_isr_are_counted(tmp_path):
    def elected(leader, epoch, isr):
        return LeaderElected(
            topic_id="t", partition=0, leader=leader, leader_epoch=epoch, isr=isr, incarnation=""
        )

    records = [
        elected(1, 0, (1, 2, 3)),
        elected(1, 1, (1, 2, 3)),
        elected(2, 2, (2, 3)),
        IsrChanged(topic_id="t", partition=0, partition_version=4, isr=(1, 2, 3)),
        elected(-1, 3, (2,)),
        elected(2, 4, (2,)),
    ]
    write(tmp_path / "__cluster_metadata-0", [encode_cluster_record(r).value for r in records])
    moves = count_moves(logged_changes(tmp_path))
    assert (moves.epochs, moves.leaders_moved, moves.leaderless) == (5, 1, 1)
    assert (moves.shrinks, moves.growths) == (2, 1)
