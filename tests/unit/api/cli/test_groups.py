"""Groups as the command line shows them and sets them back."""

from __future__ import annotations

import json

import pytest
from topics import AdminCluster, topic_of

from oncelog.actors.protocol.group.consumer_protocol import ConsumerAssignment, encode_assignment
from oncelog.actors.protocol.messages.group import (
    GroupDescription,
    GroupMemberDescription,
    OffsetAndMetadata,
)
from oncelog.api.cli import groups as cli_groups
from oncelog.api.cli import main as cli
from oncelog.storage.exceptions import GroupIdNotFoundError
from oncelog.storage.model import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, TopicPartition

FIRST, SECOND, GONE = (
    TopicPartition("flights", 0),
    TopicPartition("flights", 1),
    TopicPartition("gone", 0),
)


PLACES = {EARLIEST_TIMESTAMP: 10, LATEST_TIMESTAMP: 100, 1_769_860_800_000: 55}


def listed_offsets(times_ms):
    assert not any(tp.topic == "gone" for tp in times_ms)
    return {tp: PLACES.get(time_ms, -1) for tp, time_ms in times_ms.items()}


def with_group(cluster, *members):
    group = GroupDescription(
        group_id="readers",
        state="Stable" if members else "Empty",
        protocol_type="consumer",
        protocol_name="range" if members else "",
        generation_id=7,
        members=members,
    )
    cluster.answers |= {"list_groups": [group], "describe_group": group}


def without_group(cluster):
    unknown = GroupIdNotFoundError("there is no group 'readers'")
    cluster.answers |= {"list_groups": [], "describe_group": unknown}


def with_committed(cluster, offsets):
    cluster.answers["list_group_offsets"] = {
        tp: OffsetAndMetadata(offset=offset, metadata="note") for tp, offset in offsets.items()
    }


@pytest.fixture
def cluster(monkeypatch):
    """A topic whose partitions hold offsets 10 to 100, and a group."""
    cluster = AdminCluster(
        topic_of("flights", 1, 1, topic_id="f" * 32), list_offsets=listed_offsets
    )
    with_group(cluster)
    with_committed(cluster, {FIRST: 40})
    monkeypatch.setattr(cli_groups, "connect", lambda args: cluster)
    return cluster


def member():
    return GroupMemberDescription(
        member_id="m-1",
        group_instance_id="i-1",
        client_id="oncelog",
        assignment=encode_assignment(ConsumerAssignment(partitions=(FIRST,))),
    )


def reset(*arguments):
    return cli.main(["groups", "reset-offsets", "readers", *arguments])


def test_groups_are_listed(cluster, capsys):
    assert cli.main(["groups", "list"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows == [["GROUP", "STATE", "GENERATION", "MEMBERS"], ["readers", "Empty", "7", "0"]]
    without_group(cluster)
    assert cli.main(["groups", "list"]) == 0
    assert capsys.readouterr().out == "no groups\n"


def test_a_group_is_described_with_its_lag_and_who_reads_what(cluster, capsys):
    with_group(cluster, member())
    with_committed(cluster, {FIRST: 40, SECOND: 100, GONE: 3})
    assert cli.main(["groups", "describe", "readers", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["members"][0]["partitions"] == ["flights-0"]
    assert [(one["topic"], one["offset"], one["lag"]) for one in shown["offsets"]] == [
        ("flights", 40, 60),
        ("flights", 100, 0),
        ("gone", 3, None),
    ]
    assert ("list_group_offsets", "readers", {"require_stable": False}) in cluster.calls
    assert cli.main(["groups", "describe", "readers"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["flights", "0", "40", "100", "60", "m-1"] in lines
    assert ["gone", "0", "3", "-", "-", "-"] in lines
    assert ["m-1", "i-1", "1"] in lines


def test_what_was_deleted_is_no_lag(cluster, capsys):
    with_committed(cluster, {FIRST: 4, SECOND: 100})
    assert cli.main(["groups", "describe", "readers", "--json"]) == 0
    (first, second) = json.loads(capsys.readouterr().out)["offsets"]
    assert (first["offset"], first["start_offset"], first["end_offset"]) == (4, 10, 100)
    assert (first["lag"], second["lag"]) == (90, 0)
    assert cli.main(["groups", "describe", "readers"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["flights", "0", "4", "100", "90", "-"] in lines


def test_members_are_put_out_those_named_or_all(cluster, capsys):
    assert (
        cli.main(["groups", "remove-members", "readers", "--instance", "i", "--member", "m"]) == 0
    )
    assert cli.main(["groups", "remove-members", "readers", "--all"]) == 0
    assert cluster.changes == [
        (
            "remove_members_from_group",
            "readers",
            {"group_instance_ids": ("i",), "member_ids": ("m",)},
        ),
        ("remove_members_from_group", "readers"),
    ]
    assert "readers" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [[], ["--all", "--member", "m"]])
def test_who_is_put_out_has_to_be_said(cluster, capsys, arguments):
    assert cli.main(["groups", "remove-members", "readers", *arguments]) == 2
    assert cluster.calls == []


def test_an_unknown_group_is_one_line(cluster, capsys):
    without_group(cluster)
    assert cli.main(["groups", "describe", "readers"]) == 1
    assert capsys.readouterr().err.startswith("oncelog: there is no group 'readers' — ")


@pytest.mark.parametrize(
    ("target", "to"),
    [
        (("--to-earliest",), {FIRST: 10, SECOND: 10}),
        (("--to-latest",), {FIRST: 100, SECOND: 100}),
        (("--to-offset", "77"), {FIRST: 77, SECOND: 77}),
        (("--to-offset", "3"), {FIRST: 10, SECOND: 10}),
        (("--to-offset", "101"), {FIRST: 100, SECOND: 100}),
        (("--to-datetime", "2026-01-31T12:00"), {FIRST: 55, SECOND: 55}),
        (("--to-datetime", "2026-01-31T13:00+01:00"), {FIRST: 55, SECOND: 55}),
        (("--to-datetime", "2027-01-31"), {FIRST: 100, SECOND: 100}),
    ],
)
def test_offsets_are_set_within_the_log_when_asked_to(cluster, target, to):
    assert reset("--topic", "flights", *target, "--execute") == 0
    assert cluster.changes == [("alter_group_offsets", "readers", to)]
    assert ("list_group_offsets", "readers", {"require_stable": True}) in cluster.calls


@pytest.mark.parametrize(
    ("target", "to"),
    [(("--shift-by", "-5"), 35), (("--shift-by", "90"), 100), (("--to-current",), 40)],
)
def test_offsets_are_shifted_from_where_they_are(cluster, target, to):
    assert reset("--all-topics", *target, "--execute") == 0
    assert cluster.changes == [("alter_group_offsets", "readers", {FIRST: to})]


def test_without_execute_nothing_is_changed(cluster, capsys):
    assert reset("--topic", "flights:1", "--to-earliest") == 0
    out = capsys.readouterr().out
    assert [line.split() for line in out.splitlines()][1] == ["flights", "1", "-", "10"]
    assert "give --execute" in out
    assert cluster.changes == []
    assert reset("--topic", "flights:0,1", "--to-earliest", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["executed"] is False
    assert [one["from_offset"] for one in shown["offsets"]] == [40, None]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--to-earliest",), "give --topic TOPIC or --all-topics"),
        (("--all-topics", "--topic", "flights", "--to-earliest"), "give --topic TOPIC or"),
        (("--topic", "flights:x", "--to-earliest"), "'flights:x' is not TOPIC"),
        (("--topic", "flights"), "one of --to-earliest, --to-latest"),
        (("--topic", "flights", "--to-datetime", "noon"), "'noon' is not a time"),
        (
            ("--topic", "flights", "--to-latest", "--to-earliest"),
            "--to-earliest and --to-latest exclude each other",
        ),
    ],
)
def test_an_unclear_reset_is_refused(cluster, capsys, arguments, reason):
    assert reset(*arguments, "--execute") == 2
    assert reason in capsys.readouterr().err
    assert cluster.changes == []


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--topic", "flights:2", "--to-earliest"), "no partition 2 — give one from 0 to 1"),
        (("--topic", "flihgts", "--to-earliest"), "did you mean 'flights'"),
        (("--topic", "flights", "--shift-by", "1"), "committed nothing for flights-1"),
    ],
)
def test_an_impossible_reset_changes_nothing(cluster, capsys, arguments, reason):
    assert reset(*arguments, "--execute") == 1
    assert reason in capsys.readouterr().err
    assert cluster.changes == []


def test_a_group_with_members_is_neither_reset_nor_deleted(cluster, capsys):
    with_group(cluster, member())
    assert reset("--topic", "flights", "--to-earliest", "--execute") == 1
    assert "it has 1 member — stop its consumers first" in capsys.readouterr().err
    assert cli.main(["groups", "delete", "readers"]) == 1
    assert cluster.changes == []
    with_group(cluster)
    assert cli.main(["groups", "delete", "readers"]) == 0
    assert cluster.changes == [("delete_group", "readers")]


def test_a_group_that_does_not_exist_yet_gets_its_first_offsets(cluster):
    without_group(cluster)
    with_committed(cluster, {})
    assert reset("--topic", "flights", "--to-latest", "--execute") == 0
    assert cluster.changes == [("alter_group_offsets", "readers", {FIRST: 100, SECOND: 100})]
    assert reset("--all-topics", "--to-latest", "--execute") == 1
