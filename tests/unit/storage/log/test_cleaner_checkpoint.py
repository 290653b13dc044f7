from __future__ import annotations

import pytest

from oncelog.storage.log.side_files import (
    CLEANER_CHECKPOINT_FILE,
    read_first_dirty_offset,
    write_first_dirty_offset,
)


def test_offset_is_read_back_and_stands_in_kafkas_format(tmp_path, filesystem):
    directory = tmp_path / "my-topic-3"
    filesystem.make_directory(directory)
    write_first_dirty_offset(filesystem, directory, 12_345)
    assert (directory / CLEANER_CHECKPOINT_FILE).read_bytes() == b"0\n1\nmy-topic 3 12345\n"
    assert read_first_dirty_offset(filesystem, directory) == 12_345


def test_log_that_was_never_compacted_has_none(tmp_path, filesystem):
    assert read_first_dirty_offset(filesystem, tmp_path) is None


@pytest.mark.parametrize(
    "damaged", [b"", b"0\n1\n", b"9\n1\nt 0 5\n", b"0\n1\nt 0 x\n", b"\xff\n", b"0\n1\nt 0 -5\n"]
)
def test_damaged_file_has_everything_looked_at_again(tmp_path, filesystem, damaged):
    (tmp_path / CLEANER_CHECKPOINT_FILE).write_bytes(damaged)
    assert read_first_dirty_offset(filesystem, tmp_path) == 0
