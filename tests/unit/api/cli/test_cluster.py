"""Starting and stopping the process that holds a cluster, here one that only pretends to."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest

from oncelog.api.cli import cluster as cli_cluster
from oncelog.api.cli import main as cli
from oncelog.api.session import cluster_connection
from oncelog.storage.exceptions import InvalidSettingError

FAKE_HEAD = """
import argparse, os, pathlib, signal, socket, sys
from oncelog.api.session import cluster_connection
parser = argparse.ArgumentParser()
for name in ("--data-dir", "--num-cpus", "--dashboard-port", "--config"):
    parser.add_argument(name)
args = parser.parse_args()
path, mode = pathlib.Path(args.data_dir.split(",")[0]), os.environ["FAKE_HEAD_MODE"]
if mode == "failing":
    sys.exit("Traceback\\n  some line\\noncelog: Ray could not be started — free some memory")
if mode == "silent":
    sys.exit(3)
server = socket.create_server(("127.0.0.1", 0))
word = cluster_connection.Discovery(
    address=f"127.0.0.1:{server.getsockname()[1]}", dashboard_url="http://d", process_id=os.getpid()
)
if mode == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
cluster_connection.write_discovery(path, word)
if mode == "deaf":
    signal.pause()
signal.sigwait({signal.SIGTERM})
if mode == "unclean":
    sys.exit("oncelog: the log did not stop in time — wait")
cluster_connection.forget_discovery(path)
"""


@pytest.fixture
def head(tmp_path, monkeypatch):
    """The data directory of clusters whose head is ``FAKE_HEAD`` in the mode that is set."""
    (tmp_path / "fake_head.py").write_text(FAKE_HEAD)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("FAKE_HEAD_MODE", "fine")
    monkeypatch.setattr(cli_cluster.head, "MODULE", "fake_head")
    data_dir = tmp_path / "data"
    yield data_dir
    word = cluster_connection.read_discovery(data_dir)
    if word is not None and cli_cluster.is_head(word.process_id):
        os.kill(word.process_id, signal.SIGKILL)


def run(command, data_dir, *arguments):
    return cli.main([command, "--data-dir", str(data_dir), *arguments])


# --- start ------------------------------------------------------------------------------------


def test_start_leaves_a_process_of_its_own_session_behind(head, capsys):
    assert run("start", head, "--num-cpus", "2") == 0
    word = cluster_connection.read_discovery(head)
    lines = capsys.readouterr().out.splitlines()
    shown = dict(line.split(maxsplit=1) for line in lines[:-2])
    assert shown.pop("next") == f"oncelog topics create flights --partitions 6 --data-dir {head}"
    assert list(shown) == ["starting", "process", "log", "serving", "address", "dashboard"]
    assert shown == {
        "starting": str(head),
        "serving": str(head),
        "address": word.address,
        "dashboard": "http://d",
        "process": str(word.process_id),
        "log": str(head / "oncelog.log"),
    }
    assert os.getsid(word.process_id) == word.process_id


def test_what_lies_in_the_data_directory_is_not_run_and_is_read_by_nobody_else(head, capsys):
    assert run("start", head) == 0
    assert run("stop", head) == 0
    assert head.stat().st_mode & 0o077 == 0
    assert (head / "oncelog.log").stat().st_mode & 0o077 == 0
    (head / "argparse.py").write_text(f"open({str(head / 'was run')!r}, 'w')\nraise SystemExit")
    assert run("start", head) == 0
    assert not (head / "was run").exists()
    capsys.readouterr()


def test_a_data_directory_that_others_could_read_is_closed_to_them(tmp_path):
    """An earlier version made it. A directory that is not ours yet keeps its mode."""
    for name, mode in (("meta.properties", 0o700), ("notes", 0o755)):
        path = tmp_path / name / "data"
        path.mkdir(parents=True)
        path.chmod(0o755)
        (path / name).touch()
        cluster_connection.check_data_dir(path)
        assert path.stat().st_mode & 0o777 == mode


def test_several_directories_are_told_to_the_process_and_the_first_is_its_own(head, capsys):
    both = f"{head},{head.parent / 'more'}"
    assert run("start", both) == 0
    word = cluster_connection.read_discovery(head)
    command = Path(f"/proc/{word.process_id}/cmdline").read_bytes().split(b"\0")
    assert command[command.index(b"--data-dir") + 1] == both.encode()
    assert run("stop", both) == 0
    assert cluster_connection.read_discovery(head) is None


def test_the_port_for_clients_of_kafka_is_a_setting_of_the_cluster(head, capsys):
    assert run("start", head, "--kafka-port", "9092") == 0
    assert "\nkafka      port 9092; `oncelog status" in capsys.readouterr().out
    word = cluster_connection.read_discovery(head)
    command = Path(f"/proc/{word.process_id}/cmdline").read_bytes().split(b"\0")
    assert command[command.index(b"--config") + 1] == b"kafka_port=9092"
    assert run("stop", head) == 0
    assert run("start", head, "--kafka-port", "65536") == 2


@pytest.mark.parametrize(
    ("others", "told"),
    [
        ("{head}", "twice"),
        ("{head}/../data", "twice"),
        ("", "give 1 to 64 directories"),
        (",".join(f"/d{number}" for number in range(64)), "give 1 to 64 directories"),
    ],
)
def test_directories_that_cannot_be_told_apart_are_refused(head, capsys, others, told):
    assert run("start", f"{head},{others.format(head=head)}") == 1
    assert told in capsys.readouterr().err
    assert not head.exists()


def test_a_sequence_names_several_directories_and_a_comma_is_in_none(tmp_path):
    named = cluster_connection.directory_paths([tmp_path / "a", str(tmp_path / "b")])
    assert named == cluster_connection.directory_paths(f"{tmp_path}/a,{tmp_path}/b")
    for wrong in (tmp_path / "a,b", [str(tmp_path / "a,b")]):
        with pytest.raises(InvalidSettingError, match="has a comma"):
            cluster_connection.directory_paths(wrong)
    with pytest.raises(InvalidSettingError, match="give 1 to 64"):
        cluster_connection.directory_paths([])


def test_a_second_start_on_the_directory_finds_the_first(head, capsys):
    assert run("start", head) == 0
    first = cluster_connection.read_discovery(head)
    capsys.readouterr()
    assert run("start", head) == 0
    assert cluster_connection.read_discovery(head) == first
    assert capsys.readouterr().out.startswith(f"runs already, process {first.process_id}\n")


def test_a_start_that_fails_prints_what_the_process_said(head, monkeypatch, capsys):
    monkeypatch.setenv("FAKE_HEAD_MODE", "failing")
    assert run("start", head) == 1
    assert capsys.readouterr().err == "oncelog: Ray could not be started — free some memory\n"


def test_an_older_error_in_the_log_is_not_mistaken_for_this_one(head, monkeypatch, capsys):
    monkeypatch.setenv("FAKE_HEAD_MODE", "silent")
    head.mkdir()
    (head / "oncelog.log").write_text("oncelog: an old error — ignore it\n")
    assert run("start", head) == 1
    assert capsys.readouterr().err == (
        f"oncelog: the cluster did not start (it said nothing) — see {head / 'oncelog.log'}\n"
    )


def test_a_start_that_takes_too_long_is_given_up_and_its_process_killed(head, monkeypatch, capsys):
    killed = []
    monkeypatch.setattr(cli_cluster, "START_TIMEOUT_S", 0.0)
    end = cli_cluster._end
    monkeypatch.setattr(cli_cluster, "_end", lambda pid: (killed.append(pid), end(pid)))
    assert run("start", head) == 1
    assert "did not start within 0 s — see" in capsys.readouterr().err
    assert cli_cluster.wait_until_gone(killed[0], 0)


def test_a_port_that_is_taken_is_refused_before_anything_starts(head, capsys):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert run("start", head, "--dashboard-port", str(port)) == 1
    assert capsys.readouterr().err == (
        f"oncelog: port {port} cannot be used for the dashboard (Address already in use) — "
        "give a free one with --dashboard-port, or leave it out to have one chosen\n"
    )
    assert not (head / "oncelog.log").exists()


def test_a_data_directory_that_is_a_file_is_refused(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert run("start", tmp_path / "file") == 1
    assert "is a file — give a directory" in capsys.readouterr().err


def test_a_data_directory_without_permission_is_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert run("start", tmp_path) == 1
    assert "cannot be read and written by this user — change its" in capsys.readouterr().err


def test_an_unknown_setting_is_refused_with_the_nearest_known(head, capsys):
    assert run("start", head, "--config", "offset_partitions=2") == 1
    assert capsys.readouterr().err == (
        "oncelog: offset_partitions=2 is not a setting — did you mean offsets_partitions?\n"
    )
    assert not head.exists()


@pytest.mark.parametrize("option", ["--num-cpus", "--dashboard-port"])
def test_options_of_a_local_ray_do_not_go_with_an_address(head, capsys, option):
    assert run("start", head, "--address", "127.0.0.1:1", option, "2") == 2
    assert "leave them out with --address" in capsys.readouterr().err


def test_a_cluster_that_has_to_be_there_is_one_of_ray_nodes(head, capsys):
    assert run("start", head, "--cluster-id", "c" * 32) == 2
    assert "give its --address" in capsys.readouterr().err


def test_start_at_an_address_where_nothing_listens_says_so(head, capsys):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert run("start", head, "--address", f"127.0.0.1:{port}") == 1
    assert f"no Ray cluster answers at --address '127.0.0.1:{port}' — " in capsys.readouterr().err


# --- stop -------------------------------------------------------------------------------------


def test_stop_ends_the_process_and_waits_for_it(head, capsys):
    assert run("start", head) == 0
    word = cluster_connection.read_discovery(head)
    capsys.readouterr()
    assert run("stop", head) == 0
    assert capsys.readouterr().out == "stopped\n"
    assert cli_cluster.wait_until_gone(word.process_id, 0)


def test_stop_without_a_cluster_says_so(head, capsys):
    assert run("stop", head) == 1
    assert capsys.readouterr().err.startswith(
        f"oncelog: no cluster runs on the data directory {str(head)!r} — start one"
    )


def test_a_process_that_does_not_stop_is_killed_by_its_number(head, monkeypatch, capsys):
    monkeypatch.setenv("FAKE_HEAD_MODE", "deaf")
    assert run("start", head) == 0
    word = cluster_connection.read_discovery(head)
    assert run("stop", head, "--timeout-ms", "0") == 1
    assert f"process {word.process_id} did not stop within 0 ms and was killed — nothing " in (
        capsys.readouterr().err
    )
    assert cli_cluster.wait_until_gone(word.process_id, 0)
    assert not (head / "cluster.json").exists()


def test_a_stop_that_is_not_clean_says_why(head, monkeypatch, capsys):
    monkeypatch.setenv("FAKE_HEAD_MODE", "unclean")
    assert run("start", head) == 0
    assert run("stop", head) == 1
    assert "stopped, but not cleanly (the log did not stop in time) — nothing acknowledged" in (
        capsys.readouterr().err
    )
    assert not (head / "cluster.json").exists()


def cluster_of(address, data_dir):
    """What ``client.connect`` gives; its story is what is asked of it."""
    story = []
    return types.SimpleNamespace(
        address=address,
        data_dir=str(data_dir),
        story=story,
        close=lambda: story.append("close"),
        shutdown=lambda: story.append("shutdown"),
    )


@pytest.fixture
def connected(monkeypatch):
    """Makes a cluster what every address leads to."""

    def use(cluster):
        client = types.SimpleNamespace(connect=lambda address: cluster)
        monkeypatch.setitem(sys.modules, "oncelog.api.client", client)
        monkeypatch.setattr(sys.modules["oncelog.api"], "client", client, raising=False)
        monkeypatch.setattr(cli_cluster, "quiet_libraries", lambda: None)
        return cluster

    return use


def test_a_program_that_holds_the_cluster_is_not_signalled_but_asked(tmp_path, connected, capsys):
    """The process id is this test's own: a signal would end it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        cluster = connected(cluster_of(address, tmp_path))
        word = cluster_connection.Discovery(
            address=address, dashboard_url="", process_id=os.getpid()
        )
        cluster_connection.write_discovery(tmp_path, word)
        assert run("stop", tmp_path) == 0
    assert cluster.story == ["shutdown"]
    assert capsys.readouterr().out == f"stopped; the Ray cluster at {address} keeps running\n"


def test_stop_by_address_ends_the_process_that_start_left_there(head, connected, capsys):
    assert run("start", head) == 0
    word = cluster_connection.read_discovery(head)
    cluster = connected(cluster_of(word.address, head))
    capsys.readouterr()
    assert cli.main(["stop", "--address", word.address]) == 0
    assert cluster.story == ["close"]
    assert capsys.readouterr().out == "stopped\n"
    assert cli_cluster.wait_until_gone(word.process_id, 0)


# --- as whom ----------------------------------------------------------------------------------


def test_the_process_that_start_leaves_connects_as_the_same_user(head, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run("start", head, "--user", "admin", "--password-file", "secret") == 0
    word = cluster_connection.read_discovery(head)
    variables = Path(f"/proc/{word.process_id}/environ").read_bytes().split(b"\0")
    assert b"ONCELOG_USER=admin" in variables
    assert f"ONCELOG_PASSWORD_FILE={tmp_path / 'secret'}".encode() in variables


def test_a_user_without_a_password_is_told_before_anything_starts(head, monkeypatch, capsys):
    monkeypatch.delenv("ONCELOG_USER", raising=False)
    monkeypatch.delenv("ONCELOG_PASSWORD_FILE", raising=False)
    assert run("start", head, "--user", "admin") == 1
    assert "user='admin' has no password_file" in capsys.readouterr().err
    assert cluster_connection.read_discovery(head) is None


def test_a_user_stops_the_log_before_its_process_is_ended(head, monkeypatch, capsys):
    assert run("start", head) == 0
    word = cluster_connection.read_discovery(head)
    cluster = contextlib.nullcontext(cluster_of(word.address, head))
    monkeypatch.setattr(cli_cluster, "connect", lambda args: cluster)
    assert run("stop", head, "--user", "admin", "--password-file", "secret") == 0
    assert cluster.enter_result.story == ["shutdown"]
    assert cli_cluster.wait_until_gone(word.process_id, 0)


# --- processes --------------------------------------------------------------------------------


def test_only_a_process_of_the_head_module_counts_as_one():
    assert not cli_cluster.is_head(os.getpid())
    assert not cli_cluster.is_head(2**22 + 1)


def test_waiting_for_a_process_that_stays_ends_in_time():
    assert not cli_cluster.wait_until_gone(os.getpid(), 1)


def test_waiting_for_a_process_ends_with_it():
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    process.stdin.close()
    began = time.monotonic()
    assert cli_cluster.wait_until_gone(process.pid, 60_000)
    assert time.monotonic() - began < 50
    process.wait()


def test_the_last_error_is_found_behind_other_output(tmp_path):
    log = Path(tmp_path / "log")
    log.write_text("oncelog: first — a\noncelog: last: is — give more\nsome exit message\n")
    assert cli_cluster.last_error(log, 0) == ("last: is", "give more")


def test_without_an_error_line_the_last_line_is_told(tmp_path):
    log = Path(tmp_path / "log")
    log.write_text("killed\n\n")
    assert cli_cluster.last_error(log, 0) == ("the cluster did not start (killed)", "")
