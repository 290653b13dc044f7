"""``oncelog dump`` of a follower's log: batches with gaps, and a log that is being dropped."""

from __future__ import annotations

import pytest

from oncelog.storage.disk.file_system import RealFileSystem
from oncelog.storage.log.partition import LogSettings, PartitionLog
from oncelog.storage.log.side_files import begin_restart
from oncelog.storage.records.batch import parse_header, patch
from oncelog.storage.records.codec import encode_records


@pytest.fixture
def copied(tmp_path):
    """Batches at 0, 1, 5, 6 and 9 in two segments; the directory."""
    directory = tmp_path / "flights-0"
    log = PartitionLog.open(
        filesystem=RealFileSystem(), directory=directory, settings=LogSettings(), now_ms=0
    )
    for offset in (0, 1, 5, 6, 9):
        batch = encode_records([(None, b"v", 0, ())])
        patch(batch, base_offset=offset, leader_epoch=0)
        if offset == 6:
            log.roll([])
        log.append_as_is(batch, parse_header(batch))
    log.close([])
    return directory


def test_gaps_of_a_copied_log_are_no_problem(copied, verify):
    assert verify(copied)[:2] == (0, [])
    (copied / "offset-gaps").unlink()
    assert verify(copied)[0] == 1


def test_the_files_of_a_follower_are_shown(copied, dump):
    begin_restart(RealFileSystem(), copied, 70)
    status, lines = dump(copied)
    assert status == 0
    assert f"  gaps_end={2**31}" in lines
    assert "  restart_offset=70" in lines


def test_a_damaged_restart_offset_is_a_problem(copied, dump):
    (copied / "restart-offset").write_text("0\nrestart_offset 70\ncrc32c 00000000\n")
    status, lines = dump(copied / "restart-offset")
    assert status == 1
    assert any("does not match its CRC" in line for line in lines)
