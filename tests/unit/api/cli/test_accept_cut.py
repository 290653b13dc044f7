"""``oncelog accept-cut``, as an operator uses it after a refusal."""

from __future__ import annotations

import re

import pytest

from oncelog.api.cli import main as cli
from oncelog.storage.disk.file_system import RealFileSystem
from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.log.partition import LogSettings, PartitionLog
from oncelog.storage.records.batch import parse_header
from oncelog.storage.records.codec import encode_records


def open_log(directory):
    return PartitionLog.open(
        filesystem=RealFileSystem(), directory=directory, settings=LogSettings(), now_ms=0
    )


def test_command_that_the_refusal_names_lets_the_log_open_without_what_follows(tmp_path, capsys):
    directory = tmp_path / "flights-0"
    log = open_log(directory)
    for number in range(3):
        batch = encode_records([(None, b"value", 0, ())])
        log.append(batch, parse_header(batch).with_offset(number, 0))
    log.close(None)
    path = directory / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    data[len(data) // 3 + 70] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptDataError) as refusal:
        open_log(directory)
    command = re.search(r"oncelog (accept-cut \S+ \d+)$", str(refusal.value))
    assert command is not None
    assert cli.main(command[1].split()) == 0
    assert "truncates its log at offset 1" in capsys.readouterr().out
    assert open_log(directory).log_end_offset == 1


def test_directory_of_no_partition_is_refused(tmp_path, capsys):
    assert cli.main(["accept-cut", str(tmp_path), "3"]) == 1
    assert "is not the directory of a partition" in capsys.readouterr().err
