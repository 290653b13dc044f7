"""``oncelog dump`` shows each kind of file, internal records decoded."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import sample_logs
from partition_files import (
    FIRST,
    SECOND,
    file_of,
    positions,
)
from partition_logs import flip

from oncelog.actors.protocol.cluster.cluster_records import (
    AccessChanged,
    SnapshotPart,
    encode_cluster_record,
)
from oncelog.api.cli import main as cli
from oncelog.storage.disk.file_system import RealFileSystem
from oncelog.storage.log.side_files import write_log_start
from oncelog.storage.records.layout import HEADER_BYTES


def rows(lines):
    return [json.loads(line) for line in lines]


def test_every_file_of_a_partition_is_shown(samples, dump):
    status, lines = dump("--json", samples / "flights-0")
    shown = {Path(row["file"]).name for row in rows(lines)}
    there = {path.name for path in (samples / "flights-0").iterdir() if path.stat().st_size}
    assert status == 0
    assert shown == there


def test_what_a_crash_leaves_in_a_directory_is_shown(flights, dump):
    for suffix in (".log", ".index", ".timeindex"):
        whole = file_of(flights, FIRST, suffix)
        for state in (".cleaned", ".swap", ".deleted"):
            data = whole.read_bytes()
            if suffix == ".log":
                data = data[: positions(flights, FIRST)[1][0]]
            whole.with_name(whole.name + state).write_bytes(data)
    (flights / ".lock").touch()
    (flights / "partition.metadata").write_text("version: 0\ntopic_id: abc\n")
    (flights / "leader-epoch-checkpoint.tmp").write_text("0\n7")
    status, lines = dump(flights)
    shown = {Path(line.partition(" (")[0]).name for line in lines if not line.startswith(" ")}
    assert status == 0
    assert shown == {path.name for path in flights.iterdir()}
    assert "  version=0 topic_id=abc" in lines
    swapped = lines.index(f"{file_of(flights, FIRST, '.log')}.swap (log)")
    assert "base_offset=0 " in lines[swapped + 1]
    assert not lines[swapped + 2].startswith(" ")


def test_a_foreign_metadata_file_is_a_problem(flights, dump):
    path = flights / "partition.metadata"
    path.write_text("topic: x")
    assert dump(path)[1][1:] == ["  problem: at byte 0: no version and topic id"]


def test_batches_are_shown_with_what_they_have(samples, dump):
    _, lines = dump("--json", file_of(samples / "flights-0", FIRST, ".log"))
    first, second, third = rows(lines)[:3]
    assert (first["base_offset"], first["last_offset"], first["codec"]) == (0, 19, "none")
    assert "producer_id" not in first
    assert (second["producer_id"], second["base_sequence"], second["last_sequence"]) == (1000, 0, 9)
    assert third["is_transactional"] is True
    assert [row["control"] for row in rows(lines) if "control" in row][:2] == [
        "ABORT coordinator_epoch 5",
        "COMMIT coordinator_epoch 5",
    ]


def test_deep_shows_every_record(samples, dump):
    _, lines = dump("--json", "--deep", file_of(samples / "flights-0", FIRST, ".log"))
    records = [row for row in rows(lines) if "offset" in row]
    data = [
        header for _, header in positions(samples / "flights-0", FIRST) if not header.is_control
    ]
    assert len(records) == sum(header.record_count for header in data)
    assert records[0] == {
        "file": str(file_of(samples / "flights-0", FIRST, ".log")),
        "offset": 0,
        "timestamp_ms": sample_logs.TIME_MS,
        "key": None,
        "value": ("value 0 " * 40)[:40],
        "headers": [["h", "x"], ["n", None]],
    }


def test_people_see_one_line_per_entry(samples, dump):
    _, lines = dump(samples / "flights-0" / "recovery-checkpoint")
    assert lines[0].endswith("recovery-checkpoint (recovery checkpoint)")
    assert lines[1] == "  recovery_point=769 log_start_offset=0 high_watermark=0"


def test_where_the_log_begins_is_shown(flights, dump):
    write_log_start(RealFileSystem(), flights, 5)
    _, lines = dump(flights / "log-start-offset")
    assert lines[0].endswith("log-start-offset (log start offset)")
    assert lines[1] == "  log_start_offset=5"


def test_members_of_a_run_are_decoded(samples, dump):
    _, lines = dump("--json", "--deep", samples / "__transaction_state-0")
    member, ended = [row for row in rows(lines) if "member_producer_id" in row]
    assert (member["transactional_id"], member["member_producer_id"]) == ("loader", 5_000)
    assert member["member"]["partitions"] == ["delays-1", "flights-0", "flights-2"]
    assert (member["owner_producer_id"], member["owner_epoch"]) == (2_000, 1)
    assert ended["is_tombstone"]


def test_transactions_are_decoded(samples, dump):
    _, lines = dump("--json", "--deep", samples / "__transaction_state-0")
    decoded = {row["transactional_id"]: row for row in rows(lines) if "transactional_id" in row}
    assert decoded["exhausted"]["next_producer_id"] == 2_001
    assert decoded["exhausted"]["commit_token"] == "epoch 7"
    assert decoded["spark"]["state"] == "PrepareCommit"
    assert [member["status"] for member in decoded["spark"]["members"]] == [
        "COMMITTED",
        "ABORTED",
        "FREE",
    ]
    assert decoded["gone"]["is_tombstone"] is True


def test_offsets_and_groups_are_decoded(samples, dump):
    _, lines = dump("--json", "--deep", samples / "__consumer_offsets-0")
    decoded = [row for row in rows(lines) if "group_id" in row]
    assert decoded[0]["members"][0]["subscription"] == ["flights"]
    assert decoded[0]["members"][0]["assignment"] == ["flights-0", "flights-1"]
    assert (decoded[1]["topic_partition"], decoded[1]["committed_offset"]) == ("flights-0", 42)
    assert decoded[-1] | {"file": ""} == {
        "file": "",
        "offset": 8,
        "timestamp_ms": sample_logs.TIME_MS + 10,
        "group_id": "g",
        "is_tombstone": True,
    }


def test_cluster_records_are_decoded_but_the_key_is_kept(samples, dump):
    _, lines = dump("--deep", samples / "__cluster_metadata-0")
    text = "\n".join(lines)
    for kind in ("ClusterFounded", "BrokerRegistered", "TopicCreated", "LeaderElected"):
        assert f"kind={kind}" in text
    # What is long is shown in whole as JSON only.
    _, shown = dump("--json", "--deep", samples / "__cluster_metadata-0")
    (snapshot,) = [row for row in rows(shown) if row.get("kind") == "SnapshotPart"]
    assert "ClusterSnapshot" in {record["kind"] for record in snapshot["records"]}
    for hidden in ("secret", "cluster_key", "previous_key"):
        assert hidden not in text + "".join(shown)


SALT, STORED_KEY, SERVER_KEY = b"salt of 16 bytes", b"stored" * 6, b"server" * 6


@pytest.mark.parametrize("options", [("--json",), ()])
@pytest.mark.parametrize("cut", [0, -1, 1])
def test_what_servers_keep_of_passwords_is_not_shown(tmp_path, dump, options, cut):
    """``cut``: nor of a record that cannot be decoded, being too short, or too long."""
    changed = AccessChanged(
        access_version=1,
        users=(("alice", SALT, 4_096, STORED_KEY, SERVER_KEY),),
        acls=(("User:alice", "Topic", "flights", False, "Read", True, "*"),),
    )
    value = encode_cluster_record(changed).value
    part = encode_cluster_record(SnapshotPart(part=0, is_last=True, records=(value,))).value
    log = sample_logs.SampleLog(tmp_path, "__cluster_metadata")
    for one in (value, part):
        log.data([(None, (one + b"\x00")[: len(one) + cut], 0, ())])
    log.close()
    _, lines = dump(*options, "--deep", file_of(log.directory, 0, ".log"))
    shown = "\n".join(lines)
    for secret in (SALT, STORED_KEY, SERVER_KEY):
        for text in (secret.decode(), base64.b64encode(secret).decode(), secret.hex()):
            assert text[:12] not in shown
    if cut:
        assert shown.count("undecoded") == 2
        assert "base64" not in shown
        assert str(len(value) + cut) in shown
    else:
        assert "alice" in shown
        assert "flights" in shown


def test_an_internal_record_that_cannot_be_decoded_is_shown_as_it_is(tmp_path, dump):
    log = sample_logs.SampleLog(tmp_path, "__transaction_state")
    log.data([(b"\x00\x00\xff", b"\xff", 0, ())])
    log.close()
    _, lines = dump("--json", "--deep", file_of(log.directory, 0, ".log"))
    row = rows(lines)[-1]
    assert "undecoded" in row
    assert row["value"] == {"base64": "/w=="}


def test_the_discovery_file_of_a_cluster_is_shown(tmp_path, dump):
    (tmp_path / "cluster.json").write_text('{"address": "a:1", "process_id": 7}')
    assert dump(tmp_path)[1][1:] == ["  address=a:1 process_id=7"]


def test_damage_is_said_where_it_is_met_and_what_follows_is_shown(flights, dump):
    position = positions(flights, FIRST)[1][0]
    path = file_of(flights, FIRST, ".log")
    flip(path, position + HEADER_BYTES)
    status, lines = dump(path)
    assert status == 1
    assert lines[3] == f"  problem: at byte {position}: the batch does not match its CRC"
    assert len(lines) == len(positions(flights, FIRST)) + 2


def test_a_damaged_snapshot_is_a_problem_of_the_dump(flights, dump):
    path = file_of(flights, SECOND, ".snapshot")
    flip(path, 20)
    status, lines = dump(path)
    assert (status, lines[1:]) == (
        1,
        ["  problem: at byte 0: producer snapshot does not match its CRC"],
    )


@pytest.mark.parametrize(
    ("name", "reason"), [("missing", "there is no"), ("note.txt", "is not a file of a log")]
)
def test_a_path_that_is_no_log_is_one_line(tmp_path, capsys, name, reason):
    (tmp_path / "note.txt").write_text("x")
    assert cli.main(["dump", str(tmp_path / name)]) == 1
    error = capsys.readouterr().err
    assert reason in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("words", [[], ["--verify"]])
def test_a_directory_without_a_log_is_one_line(tmp_path, capsys, words):
    assert cli.main(["dump", *words, str(tmp_path)]) == 1
    assert "no log is in" in capsys.readouterr().err


def test_a_large_log_needs_little_memory(tmp_path):
    """100 MB of batches and 40 MB more for the interpreter do not fit into the limit together."""
    log = sample_logs.SampleLog(tmp_path, "flights")
    for number in range(100):
        log.data([(None, b"x" * 1_000_000, number, ())])
    log.close()
    code = (
        "import resource, sys\n"
        "from oncelog.api.cli.main import main\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "status = main(['dump', '--verify', '--deep', sys.argv[1]])\n"
        "grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before\n"
        "sys.exit(status or (f'{grown} KiB' if grown > 40_000 else 0))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(log.directory)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("words", [[], ["--deep"], ["--json"], ["--verify"]])
def test_a_reader_that_leaves_is_no_error_message(tmp_path, words):
    log = sample_logs.SampleLog(tmp_path, "flights")
    log.data([(None, b"x", 1, ())])
    log.close()
    reader, writer = os.pipe()
    os.close(reader)
    # Without a buffer, so that it meets this in the midst of the files.
    done = subprocess.run(
        [sys.executable, "-u", "-m", "oncelog.api.cli.main", "dump", *words, str(log.directory)],
        stdout=writer,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")
