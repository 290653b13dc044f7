"""A damaged file is rebuilt, or refused until somebody restores it: it is never trusted."""

from __future__ import annotations

from random import Random

import pytest
from file_damage import SIDE_KINDS, DamagedKind
from sim_replica_stage import administer
from sim_schedules import Play

from oncelog.storage.model import TopicPartition

LEADER = "partition:a-0@1"


@pytest.mark.parametrize("kind", SIDE_KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("number", range(4))
def test_what_was_committed_is_read_after_a_file_beside_the_log_was_damaged(kind, number):
    """1. T1 commits, T2 aborts. 2. L dies, and a file of it is harmed. 3. L is back, by itself or
    once the file is put back: T1 is read, T2 is not.
    """
    with Play() as play:
        writer = play.writer()
        writer.begin()
        writer.send("a", "committed")
        writer.commit()
        writer.begin()
        writer.send("a", "aborted")
        writer.abort()
        play.world.media.harm(LEADER, Random(f"{kind} {number}"), [kind])
        play.world.quiesce()
        assert play.read("a") == ["committed"]


@pytest.mark.parametrize("kind", [DamagedKind.RECOVERY, DamagedKind.LOG_START], ids=str)
@pytest.mark.parametrize("number", range(4))
def test_what_was_deleted_stays_deleted_after_a_file_beside_the_log_was_damaged(kind, number):
    """1. The first of two records is deleted, and its segment stays. 2. L dies, and one of the two
    files that say where the log begins is harmed. 3. L is back: only the second record is.
    """
    with Play() as play:
        writer = play.writer()
        for value in ("deleted", "kept"):
            writer.begin()
            writer.send("a", value)
            writer.commit()
        administer(play.world, lambda admin: admin.delete_records({TopicPartition("a", 0): 1}))
        assert play.world.media.harm(LEADER, Random(number), [kind]) is not None
        play.world.quiesce()
        assert play.read("a") == ["kept"]


@pytest.mark.parametrize("number", range(4))
def test_a_log_that_is_damaged_below_its_synced_end_waits_for_its_file(number):
    with Play() as play:
        writer = play.writer()
        writer.begin()
        writer.send("a", "kept")
        writer.commit()
        assert play.world.media.harm(LEADER, Random(number), [DamagedKind.LOG]) is not None
        play.pass_time(20)
        assert "cannot open /data/a-0" in play.world.server(LEADER).replica.failure
        play.world.media.attend()
        play.world.quiesce()
        assert play.world.counts["damage_refused"] == 1
        assert play.read("a") == ["kept"]
