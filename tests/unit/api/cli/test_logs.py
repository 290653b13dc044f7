"""Which actor ``oncelog logs`` takes, which of its files, and which of their lines."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from oncelog.actors.protocol.messages.cluster import (
    MetadataReply,
    PartitionMetadata,
    TopicMetadata,
)
from oncelog.api.cli import logs
from oncelog.api.cli import main as cli
from oncelog.api.cli import terminal as cli_terminal
from oncelog.api.cli.connect import Found
from oncelog.api.cli.logs import Wanted, chosen, read_life, shown_lines
from oncelog.api.cli.terminal import CliError
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC

NAMES = (
    "broker:2",
    "controller",
    "group:0@2",
    "partition:flights-0@1",
    "partition:flights-0@2",
    "partitions:1@1",
    "process:billing-0",
)


def metadata_of(*, leader: int = 2, hosts: tuple[int, ...] = ()) -> Callable[[str], MetadataReply]:
    partition = PartitionMetadata(
        partition=0, leader=leader, leader_epoch=5, replicas=(1, 2), isr=(1, 2), hosts=hosts
    )
    known = {"flights", TRANSACTION_STATE_TOPIC, CONSUMER_OFFSETS_TOPIC}

    def metadata(topic: str) -> MetadataReply:
        found = TopicMetadata(name=topic, topic_id="a" * 32, partitions=(partition,))
        return MetadataReply(topics=(found,) if topic in known else ())

    return metadata


def silent(topic: str) -> MetadataReply:
    """The controller does not answer."""
    return MetadataReply(error=ErrorCode.NETWORK_EXCEPTION)


@pytest.mark.parametrize("name", NAMES)
def test_the_name_of_an_actor_is_taken_also_without_a_controller(name):
    assert chosen(name, NAMES, silent) == name


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("flights-0", "partition:flights-0@2"),
        ("partition:flights-0", "partition:flights-0@2"),
        ("flights-0@1", "partition:flights-0@1"),
        ("group:0", "group:0@2"),
        ("transaction:0@1", "transaction:0@1"),
        ("billing-0", "process:billing-0"),
    ],
)
def test_a_short_name_means_the_leader_or_the_only_one_that_has_it(given, meant):
    assert chosen(given, NAMES, metadata_of()) == meant


@pytest.mark.parametrize("given", ["flights-0", "partition:flights-0@2"])
def test_a_replica_in_a_host_means_the_host(given):
    assert chosen(given, ("partitions:3@2",), metadata_of(hosts=(0, 3))) == "partitions:3@2"


def test_a_partition_without_a_leader_is_told_with_its_replicas():
    with pytest.raises(CliError) as raised:
        chosen("flights-0", NAMES, metadata_of(leader=-1))
    assert raised.value.what == "flights-0 has no leader now"
    assert "partition:flights-0@1, partition:flights-0@2" in raised.value.advice


def test_without_a_controller_all_that_may_be_meant_are_listed():
    with pytest.raises(CliError) as raised:
        chosen("flights-0", NAMES, silent)
    assert raised.value.what == (
        "'flights-0' may be one of partition:flights-0@1, partition:flights-0@2"
    )


def test_a_replica_whose_host_only_the_controller_knows_is_told_so():
    with pytest.raises(CliError) as raised:
        chosen("other-0", NAMES, silent)
    assert raised.value.what == (
        "the controller does not say which actor holds other-0 (NETWORK_EXCEPTION)"
    )
    assert "oncelog logs controller" in raised.value.advice


@pytest.mark.parametrize(
    ("given", "nearest"), [("flight-0", "flights-0"), ("controler", "controller"), ("xyz", None)]
)
def test_an_unknown_name_is_told_with_the_nearest(given, nearest):
    with pytest.raises(CliError) as raised:
        chosen(given, NAMES, metadata_of())
    assert f"there is no actor {given!r}" in raised.value.what
    assert (nearest is not None) is ("the nearest are" in raised.value.what)
    assert nearest is None or nearest in raised.value.what.split("nearest are")[1]


def test_an_actor_that_does_not_run_is_taken_by_its_full_name():
    assert chosen("broker:7", NAMES, silent) == "broker:7"


# --- files ------------------------------------------------------------------------------------


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Writes the file of one process of an actor; the later, the newer."""
    written = []

    def write_file(worker: str, actor: str, *lines: str, kind: str = "err") -> Path:
        path = tmp_path / f"worker-{worker}-ffffffff-1.{kind}"
        marks = (":job_id:01000000", ":actor_name:PartitionProcess", f":actor_name:{actor}")
        path.write_text("".join(f"{line}\n" for line in (*marks, *lines)))
        written.append(path)
        os.utime(path, (len(written), len(written)))
        return path

    return write_file


def lines_of(directory: Path, **wanted: object) -> list[str]:
    life = read_life(Wanted(**wanted), directory, "10.0.0.1")
    assert life is not None
    return [line for one in life.files for line in one.lines]


def test_the_process_that_runs_is_read_by_its_id_output_before_errors(tmp_path, write):
    write("aa", "controller", "out", kind="out")
    write("aa", "controller", "err")
    write("bb", "controller", "of another life")
    assert lines_of(tmp_path, actor="controller", worker_id="aa") == ["out", "err"]


@pytest.mark.parametrize(("runs", "meant"), [("cc", "second"), ("", "second")])
def test_the_life_before_is_the_newest_of_the_others(tmp_path, write, runs, meant):
    write("aa", "controller", "first")
    write("bb", "controller", "second")
    write("dd", "partition:controller-0@1", "of another actor")
    write("cc", "controller", "third")
    wanted = {"actor": "controller", "worker_id": runs, "is_previous": True}
    assert lines_of(tmp_path, **wanted) == [meant]


def test_the_last_life_of_an_actor_that_is_gone_is_found_by_name(tmp_path, write):
    """Also where Ray has moved its files, as it does with those of ended processes."""
    write("aa", "controller", "first")
    path = write("bb", "controller", "last")
    assert lines_of(tmp_path, actor="controller") == ["last"]
    (tmp_path / "old").mkdir()
    path.rename(tmp_path / "old" / path.name)
    assert lines_of(tmp_path, actor="controller") == ["last"]


@pytest.mark.parametrize("is_previous", [True, False])
def test_an_actor_without_files_has_no_life(tmp_path, write, is_previous):
    write("aa", "controller", "first")
    wanted = Wanted(actor="broker:2", is_previous=is_previous)
    assert read_life(wanted, tmp_path, "10.0.0.1") is None
    wanted = Wanted(actor="controller", worker_id="aa", is_previous=True)
    assert read_life(wanted, tmp_path, "10.0.0.1") is None


def test_the_last_lines_are_shown_and_then_those_that_follow(tmp_path, write):
    path = write("aa", "controller", "1", "2", "3")
    life = read_life(Wanted(actor="controller", worker_id="aa", line_count=2), tmp_path, "")
    assert life is not None
    assert life.files[0].lines == ("2", "3")
    with path.open("a") as file:
        file.write("4\nhalf")
    position = {str(path): life.files[0].position}
    follow = Wanted(actor="controller", worker_id="aa", positions=position)
    life = read_life(follow, tmp_path, "")
    assert life is not None
    assert life.files[0].lines == ("4",)
    with path.open("a") as file:
        file.write(" a line\n")
    assert lines_of(
        tmp_path,
        actor="controller",
        worker_id="aa",
        positions={str(path): life.files[0].position},
    ) == ["half a line"]


def test_only_the_end_of_a_large_file_is_read_and_an_answer_is_bounded(
    tmp_path, write, monkeypatch
):
    write("aa", "controller", "first", *["x" * 99] * 20)
    monkeypatch.setattr(logs, "READ_MAX_BYTES", 1_000)
    assert len(lines_of(tmp_path, actor="controller", worker_id="aa")) == 10
    monkeypatch.setattr(logs, "REPLY_MAX_BYTES", 500)
    assert len(lines_of(tmp_path, actor="controller", worker_id="aa")) == 5


def test_so_many_files_of_a_node_are_searched_the_newest_first(tmp_path, write, monkeypatch):
    write("aa", "controller", "older")
    write("bb", "broker:2")
    monkeypatch.setattr(logs, "FILES_MAX", 1)
    assert read_life(Wanted(actor="broker:2"), tmp_path, "") is not None
    assert read_life(Wanted(actor="controller"), tmp_path, "") is None


# --- lines ------------------------------------------------------------------------------------

LOG = """before any record
2026-11-29 05:00:00,001 INFO oncelog.a: begun
  more of it
2026-11-29 05:00:00,002 WARNING oncelog.a: full — make room
2026-11-29 05:00:00,003 ERROR oncelog.a: raised
Traceback (most recent call last):
ValueError: x
2026-11-29 05:00:00,004 INFO oncelog.a: goes on
*** SIGSEGV received
PC: @ 0x1""".splitlines()


@pytest.mark.parametrize(
    ("level", "shown"),
    [(0, LOG), (20, LOG[1:]), (30, [*LOG[3:7], *LOG[8:]]), (40, [*LOG[4:7], *LOG[8:]])],
)
def test_a_level_leaves_out_records_below_it_with_their_other_lines(level, shown):
    assert list(shown_lines(LOG, level)) == shown


def test_a_process_that_has_ended_is_not_followed(capsys):
    assert cli.main(["logs", "controller", "--follow", "--previous"]) == 2
    assert "leave out --follow or --previous" in capsys.readouterr().err


def show_one_life(*events, line="begun"):
    """Makes ``oncelog logs`` find a life with one ``line``; later looks call ``events``."""
    left = list(events)

    def life(wanted):
        if wanted.positions and left:
            left.pop(0)()
        lines = () if wanted.positions else (line,)
        end = logs.FileEnd(path="/s/worker-a.err", position=9, lines=lines)
        return logs.Life(worker_id="a", node="10.0.0.1", ended_s=1.0, files=(end,))

    logs.find = lambda args: Found(address="h:1")
    logs.join_ray = lambda address: None
    logs.running = lambda: NAMES
    logs.FOLLOW_POLL_S = 0.0
    logs._process_of = lambda actor: ("a", "")
    logs._life = life


@pytest.fixture
def one_life(monkeypatch):
    for name in ("find", "join_ray", "running", "FOLLOW_POLL_S", "_process_of", "_life"):
        monkeypatch.setattr(logs, name, getattr(logs, name))
    known = {number: signal.getsignal(number) for number in cli_terminal.STOP_SIGNALS}
    yield show_one_life
    for number, handler in known.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("is_shown", [True, False])
def test_a_terminal_is_shown_control_characters_and_does_not_obey_them(
    one_life, monkeypatch, capsys, is_shown
):
    one_life(line="\x1b[2Jü\tx")
    monkeypatch.setattr(logs, "is_terminal", lambda stream: is_shown)
    assert cli.main(["logs", "controller"]) == 0
    assert capsys.readouterr().out == ("\\u001b[2Jü\tx\n" if is_shown else "\x1b[2Jü\tx\n")


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_is_the_usual_end_of_following(one_life, capsys, number, status):
    one_life(lambda: None, lambda: signal.raise_signal(number))
    assert cli.main(["logs", "controller", "--follow"]) == status
    assert tuple(capsys.readouterr()) == (
        "begun\n",
        "controller on 10.0.0.1: /s/worker-a.err\n",
    )


def test_following_ends_when_nobody_reads_its_output_any_more():
    code = (
        "import sys\n"
        f"sys.path[:0] = {[str(Path(__file__).parent), *sys.path]!r}\n"
        "import test_logs as here\n"
        "here.show_one_life(sys.stdin.read, line='')\n"
        "sys.exit(here.cli.main(['logs', 'controller', '--follow']))\n"
    )
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    program = subprocess.Popen([sys.executable, "-c", code], **streams)
    assert program.stdout.read(1) == b"\n"
    program.stdout.close()
    _, errors = program.communicate()
    assert program.returncode == 141
    assert errors == b"controller on 10.0.0.1: /s/worker-a.err\n"
