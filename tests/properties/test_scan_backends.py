"""The compiled loops over whole batches say what their twins in Python say, whatever the bytes."""

from __future__ import annotations

import random
from pathlib import Path
from unittest import mock

import pytest
from codec_fuzz import run_of_batches
from crash_disk import CrashDisk
from hypothesis import example, given
from hypothesis import strategies as st

from oncelog.storage import scan_kernel
from oncelog.storage.batch_check import find_damage
from oncelog.storage.segment import Segment
from oncelog.storage.segment_scan import SegmentScan

pytestmark = pytest.mark.skipif(scan_kernel.kernel is None, reason="the kernel is not built")

EPOCHS = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from([0, 1, 5, 20, 2**31])), max_size=3
).map(lambda pairs: sorted(pairs, key=lambda pair: pair[1]))


def scanned(data, base_offset, gaps_end, known_epochs, interval):
    """All that a recovery scan of these bytes leaves."""
    disk, directory = CrashDisk(), Path("/log")
    disk.make_directory(directory)
    segment = Segment(
        filesystem=disk,
        directory=directory,
        base_offset=base_offset,
        next_offset=base_offset,
        index_interval_bytes=interval,
    )
    segment.create()
    segment.log.append((data,))
    segment.begin_scan()
    epochs = []
    scan = SegmentScan(segment, gaps_end=gaps_end, leader_epochs=epochs, known_epochs=known_epochs)
    scan.run()
    offsets, times = segment.indexes
    return (
        scan.position,
        scan.expected_offset,
        epochs,
        offsets.to_bytes(),
        times.to_bytes(),
        segment.counting.count,
        segment.first_timestamp_ms,
    )


@given(st.integers(0, 2**64), st.sampled_from([0, 7, 2**62]))
def test_both_find_the_same_damage(seed, lowest_offset):
    data = run_of_batches(random.Random(seed))
    found = find_damage(data, lowest_offset=lowest_offset)
    with mock.patch.object(scan_kernel, "kernel", None):
        assert find_damage(data, lowest_offset=lowest_offset) == found


@given(
    st.integers(0, 2**64),
    st.sampled_from([0, 7, 2**31 - 300]),
    st.sampled_from([0, 0, 20, 2**40]),
    EPOCHS,
    st.sampled_from([0, 61, 500, 4096]),
)
@example(1, 0, 2**40, [], 0)
def test_both_scans_leave_the_same_indexes(seed, base_offset, gaps_end, known_epochs, interval):
    data = run_of_batches(random.Random(seed))
    found = scanned(data, base_offset, gaps_end, known_epochs, interval)
    with mock.patch.object(scan_kernel, "kernel", None):
        assert scanned(data, base_offset, gaps_end, known_epochs, interval) == found
