"""Lines that become records, and records that become lines."""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import json
import signal
import subprocess
import sys
import types
from concurrent.futures import Future
from pathlib import Path

import pytest
from topics import AdminCluster, topic_of

from oncelog.actors.protocol.group.consumer_protocol import ConsumerAssignment, encode_assignment
from oncelog.actors.protocol.messages.group import GroupDescription, GroupMemberDescription
from oncelog.api.cli import main as cli
from oncelog.api.cli import records as cli_records
from oncelog.api.cli import terminal as cli_terminal
from oncelog.api.records import ConsumerRecord
from oncelog.storage.exceptions import (
    CorruptRecordError,
    ProducerFencedError,
    RebalanceInProgressError,
)
from oncelog.storage.model import MESSAGE_MAX_BYTES, TopicPartition

P0, P1 = TopicPartition("flights", 0), TopicPartition("flights", 1)
SIGNALS = [(signal.SIGINT, 130), (signal.SIGTERM, 143)]


class Producer:
    """Puts records into two partitions in turn; remembers what was asked of it."""

    def __init__(self, settings):
        self.settings = settings
        self.sent = []
        self.more = []
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

    def send(self, topic, value=None, key=None, **more):
        future = Future()
        number = len(self.sent)
        self.sent.append((topic, key, value))
        self.more.append(more)
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
        self.places = []
        self.assignments = []
        """One after the other, the last again and again; all partitions if there is none."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.story.append("close")

    def subscribe(self, topics):
        self.story.append(("subscribe", topics))

    def assign(self, partitions):
        self.story.append(("assign", list(partitions)))

    def assignment(self):
        if not self.assignments:
            return frozenset({P0, P1})
        return self.assignments.pop(0) if len(self.assignments) > 1 else self.assignments[0]

    def group_metadata(self):
        return types.SimpleNamespace(group_id="g", member_id="m-1")

    def beginning_offsets(self, partitions):
        return {tp: {P0: 10, P1: 0}[tp] for tp in partitions}

    def end_offsets(self, partitions):
        return {tp: {P0: 20, P1: 5}[tp] for tp in partitions}

    def offsets_for_times(self, times_ms):
        assert set(times_ms.values()) == {1_769_817_602_000}
        found = types.SimpleNamespace(offset=15, timestamp_ms=1_769_817_602_000)
        return {tp: found if tp == P0 else None for tp in times_ms}

    def position(self, partitions):
        assert set(partitions) == {P0, P1}
        return self.places.pop(0)

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
        self.places = []
        self.assignments = []
        self.high_watermarks = {P0: 20, P1: 5}
        self.group = None
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
        self.made.places = list(self.places)
        self.made.assignments = list(self.assignments)
        self.made.commit_error = self.commit_error
        self.made.before_commit = self.before_commit
        return self.made


def cluster_of(clients):
    """A cluster with the topic ``flights`` of two partitions."""
    cluster = AdminCluster(
        topic_of("flights", 1, 1),
        describe_group=lambda group_id: clients.group,
        list_offsets=lambda times_ms, isolation_level: {
            tp: clients.high_watermarks[tp] for tp in times_ms
        },
    )
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


def test_what_is_the_same_for_all_records_is_given_to_each(clients, type_in):
    type_in(b"a\n\n")
    options = ["--key", "k", "--header", "by=me=you", "--header", "n=", "--partition", "1"]
    assert cli.main(["produce", "flights", *options, "--null-value"]) == 0
    assert clients.made.sent == [("flights", b"k", b"a"), ("flights", b"k", None)]
    headers = [("by", b"me=you"), ("n", b"")]
    assert clients.made.more == [{"partition": 1, "headers": headers}] * 2


def test_how_batches_travel_is_a_setting_of_the_producer(clients, type_in):
    type_in(b"")
    assert cli.main(["produce", "flights", "--compression", "zstd", "--acks", "1"]) == 0
    assert clients.made.settings == {"compression_type": "zstd", "acks": 1}


def test_each_file_is_a_record_if_it_is_whole(clients, tmp_path):
    for name, content in (("a", b"1\n2\n"), ("b", b"")):
        (tmp_path / name).write_bytes(content)
    files = [str(tmp_path / "a"), str(tmp_path / "b")]
    assert cli.main(["produce", "flights", "--whole-file", *files]) == 0
    assert [value for _, _, value in clients.made.sent] == [b"1\n2\n", b""]
    clients.made = None
    (tmp_path / "a").write_bytes(b"x" * (MESSAGE_MAX_BYTES + 1))
    assert cli.main(["produce", "flights", "--whole-file", files[0]]) == 1
    assert clients.made.sent == []


def test_files_are_sent_as_often_as_they_are_named_and_standard_input_among_them(
    clients, type_in, tmp_path
):
    path = tmp_path / "a"
    path.write_bytes(b"x\n")
    type_in(b"y\n")
    assert cli.main(["produce", "flights", str(path), "-", str(path)]) == 0
    assert [value for _, _, value in clients.made.sent] == [b"x", b"y", b"x"]


def test_lines_of_several_files_are_named_with_their_file(clients, tmp_path, capsys):
    for name, content in (("a", b"1:2\n"), ("b", b"3:4\n5\n")):
        (tmp_path / name).write_bytes(content)
    files = [str(tmp_path / "a"), "--file", str(tmp_path / "b")]
    assert cli.main(["produce", "flights", "--key-separator", ":", *files]) == 1
    assert f"line 2 of {tmp_path / 'b'} has no ':' between" in capsys.readouterr().err


def test_what_consume_prints_as_json_is_produced_again(clients, type_in, capsys):
    headers = (("h", b"1"), ("n", None), ("b", b"\xfe"))
    clients.polls = [[record(7, "ü\n".encode(), b"\xff", headers), record(8, None)]]
    assert cli.main(["consume", "flights", "-o", "json", "--count", "2"]) == 0
    type_in(capsys.readouterr().out.encode())
    assert cli.main(["produce", "flights", "--format", "jsonl"]) == 0
    assert clients.made.sent == [
        ("flights", b"\xff", "ü\n".encode()),
        ("flights", None, None),
    ]
    place = {"partition": 0, "timestamp_ms": 1_000}
    assert clients.made.more == [{**place, "headers": list(headers)}, place]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "line 1 is not JSON (Expecting property name"),
        ("[1]", "line 1 is not an object with a value"),
        ('{"key": "k"}', "line 1 is not an object with a value"),
        ('{"value": "v", "vlaue": 1}', "line 1 has the field 'vlaue' — give only key, value"),
        ('{"value": 1}', 'line 1 has value=1 — give a string, null, or {"base64": "..."}'),
        ('{"value": {"base64": "?"}}', 'line 1 has value={"base64": "?"}'),
        ('{"value": "\\ud800"}', "line 1 has value="),
        ('{"value": "v", "partition": -1}', "line 1 has partition=-1"),
        ('{"value": "v", "timestamp_ms": true}', "line 1 has timestamp_ms=true"),
        ('{"value": "v", "headers": {"a": "b"}}', 'give a list like [["name", "value"]]'),
        ('{"value": "v", "headers": [["a", 1]]}', "line 1 has headers=1"),
    ],
)
def test_json_that_is_no_record_is_named(clients, type_in, capsys, line, reason):
    type_in(line.encode())
    assert cli.main(["produce", "flights", "--format", "jsonl"]) == 1
    assert reason in capsys.readouterr().err
    assert clients.made.sent == []


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--key", "k", "--key-separator", ":"], "exclude each other"),
        (["--format", "jsonl", "--key", "k"], "--format and --key exclude each other"),
        (["-", "--file", "-"], "standard input is named twice — give - once"),
        (["--whole-file"], "--whole-file reads no standard input"),
        (["--header", "x"], "--header 'x' is not a header — give NAME=VALUE"),
        (["--compression", "zip"], "'zip' is not one of 'none', 'gzip'"),
        (["--acks", "2"], "'2' is not one of 'all', '1', '0'"),
    ],
)
def test_options_of_produce_that_make_no_sense_are_refused(clients, capsys, options, reason):
    assert cli.main(["produce", "flights", *options]) == 2
    assert reason in capsys.readouterr().err
    assert clients.made is None


def test_a_partition_that_the_topic_lacks_is_refused(clients, type_in, capsys):
    type_in(b"x\n")
    for command in ("produce", "consume"):
        assert cli.main([command, "flights", "--partition", "2"]) == 1
        assert "has no partition 2 — give one from 0 to 1" in capsys.readouterr().err


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


@pytest.mark.parametrize(
    ("options", "offsets"),
    [
        (["--offset", "12"], {P0: 12, P1: 5}),
        (["--offset", "3"], {P0: 10, P1: 3}),
        (["--offset", "99"], {P0: 20, P1: 5}),
        (["--offset", "-7"], {P0: 13, P1: 0}),
        (["--offset", "-70"], {P0: 10, P1: 0}),
        (["--offset", "@2026-01-31T00:00:02"], {P0: 15, P1: 5}),
        (["--from-time", "1769817602000", "--partition", "0"], {P0: 15}),
    ],
)
def test_reading_starts_where_it_is_said_and_within_the_log(clients, options, offsets):
    assert cli.main(["consume", "flights", "--timeout-ms", "0", *options]) == 0
    seeks = [each for each in clients.made.story if each[0] == "seek"]
    assert {tp: offset for _, tp, offset in seeks} == offsets
    assert clients.made.settings["auto_offset_reset"] == "earliest"


def test_an_offset_beyond_an_open_transaction_is_where_it_starts(clients):
    clients.high_watermarks = {P0: 30, P1: 5}
    assert cli.main(["consume", "flights", "--timeout-ms", "0", "--offset", "25"]) == 0
    assert ("seek", P0, 25) in clients.made.story


@pytest.mark.parametrize(
    ("options", "reset"),
    [
        (["--offset", "beginning"], "earliest"),
        (["--offset", "end"], "latest"),
        (["--exit-at-end"], "earliest"),
        (["--until-time", "1769817602000"], "earliest"),
        (["--exit-at-end", "--offset", "end"], "latest"),
        (["--exit-at-end", "--group", "g"], "latest"),
    ],
)
def test_what_ends_at_the_end_begins_at_the_beginning_unless_it_is_said(clients, options, reset):
    clients.places = [{P0: 20, P1: 5}]
    assert cli.main(["consume", "flights", "--timeout-ms", "0", *options]) == 0
    assert clients.made.settings["auto_offset_reset"] == reset
    assert not [each for each in clients.made.story if each[0] == "seek"]


def group_of(state, *partitions, member_id="m-1"):
    member = GroupMemberDescription(
        member_id=member_id,
        group_instance_id=None,
        client_id="",
        assignment=encode_assignment(ConsumerAssignment(partitions=partitions)),
    )
    return GroupDescription(
        group_id="g",
        state=state,
        protocol_type="consumer",
        protocol_name="range",
        generation_id=2,
        members=(member,),
    )


EXIT_OF_GROUP = ["consume", "flights", "--group", "g", "--exit-at-end"]


@pytest.fixture
def steps(monkeypatch):
    """Makes every look at the clock a second later than the last one."""
    seconds = itertools.count()
    monkeypatch.setattr(cli_records.time, "monotonic", lambda: float(next(seconds)))


def test_a_member_for_which_nothing_is_left_has_nothing_to_print(clients, steps):
    clients.assignments = [frozenset()]
    clients.group = group_of("Stable")
    assert cli.main(EXIT_OF_GROUP) == 0


@pytest.mark.parametrize(
    "group",
    [
        group_of("PreparingRebalance"),
        group_of("Stable", member_id="m-2"),
        group_of("Stable", P0),
    ],
    ids=["a join goes on", "the member was put out", "what it has does not arrive"],
)
def test_a_group_that_assigns_nothing_in_time_is_an_error(clients, steps, capsys, group):
    clients.assignments = [frozenset()]
    clients.group = group
    assert cli.main(EXIT_OF_GROUP) == 1
    assert "the group 'g' did not assign partitions within 10,000 ms" in capsys.readouterr().err


def test_a_group_that_takes_partitions_away_has_time_to_assign_again(clients, steps):
    both, none = frozenset({P0, P1}), frozenset()
    clients.places = [*[{P0: 18, P1: 5}] * 20, {P0: 20, P1: 5}]
    # It looks three times in a round, which takes a second: 20 rounds with, 8 without partitions.
    clients.assignments = [*[both] * 60, *[none] * 24, both]
    clients.group = group_of("PreparingRebalance")
    assert cli.main(EXIT_OF_GROUP) == 0


def test_several_topics_are_read_at_once_each_once(clients):
    assert cli.main(["consume", "flights", "flights", "--timeout-ms", "0"]) == 0
    assert clients.made.story[0] == ("assign", [P0, P1])
    assert cli.main(["consume", "flights", "flight"]) == 1


def test_it_ends_at_the_end_that_there_was(clients, capsysbinary):
    clients.polls = [[record(18)], [record(19)]]
    clients.places = [{P0: 18, P1: 5}, {P0: 19, P1: 5}, {P0: 20, P1: 5}]
    assert cli.main(["consume", "flights", "--from-beginning", "--exit-at-end"]) == 0
    assert capsysbinary.readouterr().out == b"v\nv\n"


def test_it_ends_before_the_first_record_of_a_time(clients, capsysbinary):
    clients.polls = [[record(14, b"before"), record(15, b"after")]]
    clients.places = [{P0: 14, P1: 5}, {P0: 16, P1: 5}]
    arguments = ["--from-beginning", "--until-time", "1769817602000"]
    assert cli.main(["consume", "flights", *arguments]) == 0
    assert capsysbinary.readouterr().out == b"before\n"


@pytest.mark.parametrize(
    ("given", "printed"),
    [
        ("%t %p %o %T\\n", b"flights 0 7 1000\n"),
        ("%k=%s|", b"\xff=v|"),
        ("%K:%S:%%", b"1:1:%"),
        ("%h\\t\\x41\\\\", b"a=1,n=NULL\tA\\"),
    ],
)
def test_records_are_printed_as_the_format_says(clients, capsysbinary, given, printed):
    clients.polls = [[record(7, b"v", b"\xff", (("a", b"1"), ("n", None)))]]
    assert cli.main(["consume", "flights", "-c", "1", "--format", given]) == 0
    assert capsysbinary.readouterr().out == printed


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--format", "%z"], "--format has '%z' — give %t, %p"),
        (["--format", "a%"], "--format has '%'"),
        (["--format", "\\xg1"], "--format has '\\\\x'"),
        (["--format", "%s", "--json"], "--format and --json exclude each other"),
        (["--offset", "soon"], "'soon' is no place in a partition: give beginning, end, N, -N or"),
        (["--offset", "--3"], "'--3' is no place in a partition"),
        (["--offset", "@soon"], "'soon' is not a time like"),
        (["--offset", "end", "--from-beginning"], "exclude each other"),
        (["--exit-at-end", "--follow"], "--follow and --exit-at-end exclude each other"),
        (["--group", "g", "--partition", "0"], "--group and --partition exclude each other"),
        (["--group", "g", "--until-time", "0"], "--group and --until-time exclude each other"),
    ],
)
def test_options_of_consume_that_make_no_sense_are_refused(clients, capsys, options, reason):
    assert cli.main(["consume", "flights", *options]) == 2
    assert reason in capsys.readouterr().err
    assert clients.made is None


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
