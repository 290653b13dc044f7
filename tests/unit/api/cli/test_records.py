"""Lines that become records, and records that become lines."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import signal
import subprocess
import sys
import types
from concurrent.futures import Future
from pathlib import Path

import pytest
from topics import AdminCluster, topic_of

from oncelog.api.cli import main as cli
from oncelog.api.cli import records as cli_records
from oncelog.api.cli import terminal as cli_terminal
from oncelog.api.records import ConsumerRecord
from oncelog.storage.exceptions import (
    CorruptRecordError,
    ProducerFencedError,
    RebalanceInProgressError,
)
from oncelog.storage.model import TopicPartition

SIGNALS = [(signal.SIGINT, 130), (signal.SIGTERM, 143)]


class Producer:
    """Puts records into two partitions in turn; remembers what was asked of it."""

    def __init__(self, settings):
        self.settings = settings
        self.sent = []
        self.story = []
        self.failure = None
        self.before_commit = self.before_flush = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.story.append("close")

    def init_transactions(self):
        self.story.append("init")

    @contextlib.contextmanager
    def transaction(self):
        self.story.append("begin")
        try:
            yield self
        except BaseException:
            self.story.append("abort")
            raise
        self.before_commit()
        self.story.append("commit")

    def send(self, topic, value=None, key=None):
        future = Future()
        number = len(self.sent)
        self.sent.append((topic, key, value))
        if self.failure is not None:
            future.set_exception(self.failure)
        else:
            future.set_result(types.SimpleNamespace(partition=number % 2, offset=100 + number // 2))
        return future

    def flush(self):
        self.before_flush()
        self.story.append("flush")


class Consumer:
    """Gives out ``polls`` one after the other, then nothing, or an interrupt."""

    def __init__(self, settings, polls):
        self.settings = settings
        self.polls = list(polls)
        self.story = []
        self.rooms = []
        self.commit_error = None
        self.before_commit = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.story.append("close")

    def subscribe(self, topics):
        self.story.append(("subscribe", topics))

    def assign(self, partitions):
        self.story.append(("assign", list(partitions)))

    def assignment(self):
        return frozenset({TopicPartition("flights", 0)})

    def seek(self, partition, offset):
        self.story.append(("seek", partition, offset))

    def poll(self, timeout_ms, max_records):
        self.rooms.append(max_records)
        if not self.polls:
            return []
        result = self.polls.pop(0)
        if callable(result):
            result = result()
        if isinstance(result, BaseException):
            raise result
        return result[:max_records]

    def commit(self):
        self.before_commit()
        self.story.append("commit")
        if self.commit_error is not None:
            raise self.commit_error


class Clients:
    """Makes the client of a command; ``failure`` is what becomes of each record sent."""

    def __init__(self):
        self.made = self.failure = None
        self.polls = []
        self.commit_error = None
        self.before_commit = self.before_flush = lambda: None

    def producer(self, **settings):
        self.made = Producer(settings)
        self.made.failure = self.failure
        self.made.before_flush = self.before_flush
        self.made.before_commit = self.before_commit
        return self.made

    def consumer(self, **settings):
        self.made = Consumer(settings, self.polls)
        self.made.commit_error = self.commit_error
        self.made.before_commit = self.before_commit
        return self.made


def cluster_of(clients):
    """A cluster with the topic ``flights`` of two partitions."""
    cluster = AdminCluster(topic_of("flights", 1, 1))
    cluster.producer, cluster.consumer = clients.producer, clients.consumer
    return cluster


@pytest.fixture
def clients(monkeypatch):
    clients = Clients()
    monkeypatch.setattr(cli_records, "connect", lambda args: cluster_of(clients))
    return clients


@pytest.fixture
def type_in(monkeypatch):
    """Makes bytes the standard input."""

    def use(data):
        stream = argparse.Namespace(buffer=io.BytesIO(data))
        monkeypatch.setattr(sys, "stdin", stream)

    return use


@pytest.fixture
def strike():
    """Sends a signal to this process, where a command takes it as it does once it is connected."""
    known = {number: signal.getsignal(number) for number, _ in SIGNALS}
    cli_terminal.end_in_order()
    yield signal.raise_signal
    for number, handler in known.items():
        signal.signal(number, handler)


@pytest.fixture
def type_and_strike(monkeypatch, strike):
    """Makes lines the standard input, then a signal where the next line would be."""

    def use(lines, number):
        def typed():
            yield from lines
            strike(number)

        monkeypatch.setattr(sys, "stdin", argparse.Namespace(buffer=typed()))

    return use


def record(offset, value=b"v", key=None, headers=()):
    return ConsumerRecord("flights", 0, offset, 1_000, key, value, headers)


# --- produce ----------------------------------------------------------------------------------


def test_each_line_becomes_a_record_and_its_place_is_told(clients, type_in, capsys):
    type_in(b"one\n\nthree")
    assert cli.main(["produce", "flights"]) == 0
    assert clients.made.sent == [
        ("flights", None, b"one"),
        ("flights", None, b""),
        ("flights", None, b"three"),
    ]
    assert capsys.readouterr().out.splitlines() == [
        "3 records to flights",
        "PARTITION  RECORDS  FIRST OFFSET  LAST OFFSET",
        "        0        2           100          101",
        "        1        1           100          100",
    ]


def test_what_stands_before_the_separator_is_the_key(clients, type_in):
    type_in(b"UA::EWR:IAH\n::x\n")
    assert cli.main(["produce", "flights", "--key-separator", "::"]) == 0
    assert [sent[1:] for sent in clients.made.sent] == [(b"UA", b"EWR:IAH"), (b"", b"x")]


def test_all_lines_go_into_one_transaction(clients, type_in, capsys):
    type_in(b"a\nb\n")
    assert cli.main(["produce", "flights", "--transactional-id", "loader"]) == 0
    assert clients.made.settings["transactional_id"] == "loader"
    assert clients.made.story == ["init", "begin", "flush", "commit", "close"]
    assert capsys.readouterr().out.startswith("2 records to flights, in one transaction\n")


def test_a_line_without_its_key_takes_the_whole_transaction_back(clients, type_in, capsys):
    type_in(b"a:1\nb\n")
    arguments = ["produce", "flights", "--transactional-id", "l", "--key-separator", ":"]
    assert cli.main(arguments) == 1
    assert clients.made.story == ["init", "begin", "abort", "close"]
    assert capsys.readouterr().err.startswith("oncelog: line 2 has no ':' between key and value — ")


def test_a_record_that_fails_is_an_error(clients, type_in, capsys):
    clients.failure = ProducerFencedError()
    type_in(b"a\n")
    assert cli.main(["produce", "flights"]) == 1
    assert capsys.readouterr().err.startswith("oncelog: A newer producer")


@pytest.mark.parametrize(("number", "status"), SIGNALS)
def test_what_was_sent_before_a_signal_is_delivered_and_told(
    clients, type_and_strike, capsys, number, status
):
    type_and_strike([b"a\n", b"b\n"], number)
    assert cli.main(["produce", "flights"]) == status
    assert clients.made.story == ["flush", "close"]
    assert capsys.readouterr().out.startswith("2 records to flights\n")


@pytest.mark.parametrize(("number", "status"), SIGNALS)
def test_a_signal_during_the_last_delivery_waits_for_it(
    clients, type_in, strike, capsys, number, status
):
    type_in(b"a\n")
    clients.before_flush = lambda: strike(number)
    assert cli.main(["produce", "flights"]) == status
    assert clients.made.story == ["flush", "close"]
    assert capsys.readouterr().out.startswith("1 record to flights\n")


@pytest.mark.parametrize(("number", "status"), SIGNALS)
def test_a_signal_aborts_the_transaction(clients, type_and_strike, capsys, number, status):
    type_and_strike([b"a\n"], number)
    assert cli.main(["produce", "flights", "--transactional-id", "loader"]) == status
    assert clients.made.story == ["init", "begin", "abort", "close"]
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(("number", "status"), SIGNALS)
def test_a_commit_under_a_signal_is_waited_for_and_told(
    clients, type_in, strike, capsys, number, status
):
    type_in(b"a\n")
    clients.before_commit = lambda: strike(number)
    assert cli.main(["produce", "flights", "--transactional-id", "loader"]) == status
    assert clients.made.story == ["init", "begin", "flush", "commit", "close"]
    assert capsys.readouterr().out.startswith("1 record to flights, in one transaction\n")


def test_lines_come_from_a_file_if_one_is_named(clients, tmp_path, capsys):
    path = tmp_path / "lines"
    path.write_bytes(b"x\n")
    assert cli.main(["produce", "flights", "--file", str(path)]) == 0
    assert clients.made.sent == [("flights", None, b"x")]
    assert capsys.readouterr().out.startswith("1 record to flights\n")


def test_a_file_that_cannot_be_read_is_named(clients, tmp_path, capsys):
    assert cli.main(["produce", "flights", "--file", str(tmp_path / "none")]) == 1
    assert "none' cannot be read (No such file or directory) — give" in capsys.readouterr().err
    assert clients.made is None


def test_no_lines_are_no_records(clients, type_in, capsys):
    type_in(b"")
    assert cli.main(["produce", "flights"]) == 0
    assert capsys.readouterr().out == "0 records to flights\n"


def test_an_empty_separator_is_wrong_usage(clients, capsys):
    assert cli.main(["produce", "flights", "--key-separator", ""]) == 2
    assert "--key-separator is empty" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["produce", "consume"])
def test_an_unknown_topic_is_named_with_the_nearest_and_how_to_create_it(
    clients, type_in, capsys, command
):
    type_in(b"x\n")
    assert cli.main([command, "flight"]) == 1
    assert capsys.readouterr().err == (
        "oncelog: there is no topic 'flight' — did you mean 'flights'? If not, create it with "
        "`oncelog topics create flight`\n"
    )
    assert clients.made is None


def test_an_internal_topic_is_refused(clients, type_in, capsys):
    type_in(b"x\n")
    assert cli.main(["produce", "__consumer_offsets"]) == 1
    assert "'__consumer_offsets' is an internal topic" in capsys.readouterr().err


# --- consume ----------------------------------------------------------------------------------


def test_values_are_printed_one_per_line_as_they_are(clients, capsysbinary):
    clients.polls = [[record(0, b"one"), record(1, b"\xff")], [record(2, None)]]
    assert cli.main(["consume", "flights", "--timeout-ms", "0"]) == 0
    assert capsysbinary.readouterr().out == b"one\n\xff\n\n"


def test_without_a_group_all_partitions_are_read_from_the_end(clients):
    assert cli.main(["consume", "flights", "--timeout-ms", "0"]) == 0
    partitions = [TopicPartition("flights", 0), TopicPartition("flights", 1)]
    assert clients.made.story == [("assign", partitions), "close"]
    assert clients.made.settings["auto_offset_reset"] == "latest"
    assert clients.made.settings["isolation_level"] == "read_committed"
    assert "group_id" not in clients.made.settings


def test_a_group_subscribes_and_commits_after_what_was_printed(clients):
    clients.polls = [[record(0)]]
    arguments = ["--group", "g", "--from-beginning", "--isolation-level", "read_uncommitted"]
    assert cli.main(["consume", "flights", "--max-records", "1", *arguments]) == 0
    assert clients.made.story == [("subscribe", ["flights"]), "commit", "close"]
    assert clients.made.settings == {
        "group_id": "g",
        "isolation_level": "read_uncommitted",
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
    }


def test_a_commit_that_meets_a_rebalance_does_not_end_it(clients, capsysbinary):
    clients.commit_error = RebalanceInProgressError()
    clients.polls = [[record(0)], [record(1)]]
    assert cli.main(["consume", "flights", "--group", "g", "--max-records", "2"]) == 0
    assert capsysbinary.readouterr().out == b"v\nv\n"


def test_no_more_records_are_asked_for_than_wanted(clients, capsysbinary):
    clients.polls = [[record(0), record(1)], [record(2), record(3)]]
    assert cli.main(["consume", "flights", "--max-records", "3"]) == 0
    assert clients.made.rooms == [3, 1]
    assert capsysbinary.readouterr().out == b"v\n" * 3


def test_a_record_as_json_has_everything(clients, capsys):
    clients.polls = [[record(7, "ü".encode(), b"\xff", (("h", b"1"), ("n", None)))]]
    assert cli.main(["consume", "flights", "--json", "--max-records", "1"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "topic": "flights",
        "partition": 0,
        "offset": 7,
        "timestamp_ms": 1_000,
        "key": {"base64": "/w=="},
        "value": "ü",
        "headers": [["h", "1"], ["n", None]],
    }


DAMAGE = CorruptRecordError(
    "flights-0 at offset 1: damaged",
    topic_partition=TopicPartition("flights", 0),
    offset=1,
    next_offset=4,
)


def test_damaged_records_end_it_with_their_place_and_a_way_past_them(clients, capsys):
    clients.polls = [[record(0)], DAMAGE]
    assert cli.main(["consume", "flights", "--timeout-ms", "0"]) == 1
    captured = capsys.readouterr()
    assert captured.out == "v\n"
    assert "flights-0 at offset 1" in captured.err
    assert "--skip-damaged" in captured.err


def test_damaged_records_are_passed_over_when_asked_for(clients, capsys):
    clients.polls = [[record(0)], DAMAGE, [record(4)]]
    arguments = ["--skip-damaged", "--max-records", "2"]
    assert cli.main(["consume", "flights", *arguments]) == 0
    captured = capsys.readouterr()
    assert captured.out == "v\nv\n"
    assert captured.err == "warning: flights-0: skipping 3 unreadable offsets from 1\n"
    assert ("seek", TopicPartition("flights", 0), 4) in clients.made.story


@pytest.mark.parametrize(("number", "status"), SIGNALS)
def test_a_signal_is_the_usual_end_and_leaves_the_group(clients, strike, capsys, number, status):
    clients.polls = [[record(0)], lambda: strike(number)]
    assert cli.main(["consume", "flights", "--group", "g"]) == status
    assert clients.made.story[-2:] == ["commit", "close"]
    assert tuple(capsys.readouterr()) == ("v\n", "")


@pytest.mark.parametrize(("number", "status"), SIGNALS)
@pytest.mark.parametrize("strikes_in", ["write", "commit"])
def test_a_signal_waits_until_what_is_written_is_committed(
    clients, strike, monkeypatch, number, status, strikes_in
):
    real = getattr(cli_records, strikes_in)

    def struck(*arguments, **named):
        real(*arguments, **named)
        strike(number)

    monkeypatch.setattr(cli_records, strikes_in, struck)
    clients.polls = [[record(0)], [record(1)]]
    assert cli.main(["consume", "flights", "--group", "g"]) == status
    assert clients.made.story[1:] == ["commit", "close"]


def test_it_ends_when_nobody_reads_its_output_any_more():
    code = (
        "import sys\n"
        f"sys.path[:0] = {[str(Path(__file__).parent), *sys.path]!r}\n"
        "import test_records as here\n"
        "here.cli_records.connect = lambda args: here.cluster_of(here.Clients())\n"
        "sys.exit(here.cli.main(['consume', 'flights']))\n"
    )
    program = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    program.stdout.close()
    error = program.stderr.read()
    program.stderr.close()
    assert (program.wait(), error) == (141, b"")
