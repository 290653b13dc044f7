"""Every file beside the log, damaged in every way: the log is what it was, or it is refused.

A history of transactions over several segments is closed cleanly, or its process is killed; one
file is damaged; a replica starts on the directory. What both kinds of readers get, what a search
for a time finds, what retention lets go, what is known of producers and leader epochs: all of it
equals the undamaged log's, or the start is refused and names the file.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
from crash_disk import CrashDisk
from crash_life import DIRECTORY, NOW_MS, History, Life
from file_damage import SIDE_KINDS, Damage, DamagedKind, contents, damage
from hypothesis import given
from hypothesis import strategies as st
from written_logs import written

from oncelog.api.consuming.fetch_buffer import visible_batches
from oncelog.storage.log_settings import RetentionPolicy


def seen(life: Life) -> dict[str, Any]:
    """All that anybody may ask of the log, but for the epoch that began just now."""
    log, machine = life.replica.log, life.replica.machine
    end = machine.log_end_offset
    committed, offset = [], log.log_start_offset
    while offset < machine.last_stable_offset:
        found = log.fetch(offset, max_bytes=900, upper_offset=machine.last_stable_offset)
        visible = visible_batches(
            found.records,
            fetch_offset=offset,
            aborted_transactions=log.aborted_transactions(offset, found.next_offset),
        )
        committed += [batch.header.base_offset for batch in visible.batches]
        offset = found.next_offset
    times = range(NOW_MS - 10_000, NOW_MS + 1_000 * end + 5_000, 7_000)
    return {
        "records": log.read(log.log_start_offset, max_bytes=1 << 30, upper_offset=end),
        "committed": committed,
        "bounds": (log.log_start_offset, machine.last_stable_offset, end),
        "times": [log.offset_for_timestamp(time_ms, end) for time_ms in times],
        "largest": log.max_timestamp(),
        "retained": [
            log.retention.retained_from(
                RetentionPolicy(time_ms=1_000, size_bytes=-1),
                log_start_offset=log.log_start_offset,
                upper_offset=end,
                now_ms=time_ms,
            )
            for time_ms in times
        ],
        "producers": machine.snapshot(),
        "epochs": log.leader_epochs[:-1],
    }


def differences(
    disk: CrashDisk, kind: DamagedKind, how: Damage, random: Random, **rest: Any
) -> list[str]:
    """Damage a copy, start twice, and compare: what is not as without the damage."""
    sound = Life(disk.after_kill(), History())
    sound.start()
    damaged = disk.after_kill()
    done = damage(damaged, DIRECTORY, kind, how, random, **rest)
    if done is None:
        return []
    for _ in range(2):
        life = Life(damaged, History())
        life.start()
        if life.replica.failure is not None:
            named = str(done.path), str(done.path.with_suffix(".log"))
            is_named = any(name in life.replica.failure for name in named)
            return [] if is_named else [life.replica.failure]
        found, expected = seen(life), seen(sound)
        if found != expected:
            return [f"{done}: {name}" for name in expected if found[name] != expected[name]]
        # The next start finds the same, now without the damage, after either kind of stop.
        sound = Life(sound.disk.after_kill(), History())
        sound.start()
        damaged = damaged.after_kill()
    return []


@pytest.fixture(scope="module")
def disks() -> dict[bool, tuple[CrashDisk, dict[str, bytes]]]:
    return {is_clean: written(3, is_clean=is_clean) for is_clean in (False, True)}


@pytest.mark.parametrize("is_clean", [True, False], ids=["clean", "killed"])
@pytest.mark.parametrize("is_sealed", [True, False], ids=["sealed", "active"])
@pytest.mark.parametrize("how", Damage)
@pytest.mark.parametrize("kind", SIDE_KINDS)
def test_damaged_side_file_changes_nothing_or_is_refused(disks, kind, how, is_sealed, is_clean):
    disk, older = disks[is_clean]
    random = Random(1)
    assert not differences(disk, kind, how, random, older=older, is_sealed=is_sealed)


@given(
    st.integers(0, 2**32),
    st.sampled_from(SIDE_KINDS),
    st.sampled_from(list(Damage)),
    st.booleans(),
)
def test_any_history_survives_any_damage_beside_it(seed, kind, how, is_clean):
    disk, older = written(seed, is_clean=is_clean)
    assert not differences(disk, kind, how, Random(seed), older=older)


def test_what_is_damaged_is_there_to_be_damaged(disks):
    names = contents(disks[True][0], DIRECTORY)
    for kind in SIDE_KINDS:
        if kind is not DamagedKind.CLEANER:
            assert any(name.endswith(kind.value) for name in names), kind
    assert sum(Path(name).suffix == ".log" for name in names) >= 4
