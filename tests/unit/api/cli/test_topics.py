"""Topics as the command line shows and changes them."""

from __future__ import annotations

import json

import pytest
from topics import AdminCluster, topic_of

from oncelog.api.admin.calls import LogDirDescription, ReplicaSize
from oncelog.api.cli import main as cli
from oncelog.api.cli import replicas as cli_replicas
from oncelog.api.cli import topics as cli_topics
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import TopicAlreadyExistsError
from oncelog.storage.model import TopicPartition

EPOCH = {"leader_epoch": 4}


@pytest.fixture
def cluster(monkeypatch):
    """Two topics of its user's and one of its own."""
    cluster = AdminCluster(
        topic_of("flights", 1, 1, topic_id="f" * 32, settings=(("flush", "os"),), **EPOCH),
        topic_of("__consumer_offsets", 1, topic_id="_" * 32, **EPOCH),
        topic_of("delays", -1, topic_id="d" * 32, **EPOCH),
        delete_records=lambda offsets: {tp: max(offset, 7) for tp, offset in offsets.items()},
    )
    for module in (cli_replicas, cli_topics):
        monkeypatch.setattr(module, "connect", lambda args: cluster)
    return cluster


def test_topics_are_listed_by_name_without_internal_ones(cluster, capsys):
    assert cli.main(["topics", "list"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows == [
        ["TOPIC", "PARTITIONS", "ID"],
        ["delays", "1", "d" * 32],
        ["flights", "2", "f" * 32],
    ]


def test_internal_topics_are_listed_when_asked_for(cluster, capsys):
    assert cli.main(["topics", "list", "--internal", "--json"]) == 0
    names = [shown["name"] for shown in json.loads(capsys.readouterr().out)]
    assert names == ["__consumer_offsets", "delays", "flights"]


def test_a_topic_is_created_with_its_partitions_and_settings(cluster, capsys):
    arguments = ["--partitions", "6", "--config", "flush=os", "--config", "segment_bytes=4096"]
    assert cli.main(["topics", "create", "new", *arguments]) == 0
    assert cluster.changes == [
        (
            "create_topic",
            "new",
            {"partitions": 6, "exist_ok": False, "flush": "os", "segment_bytes": 4_096},
        )
    ]
    assert capsys.readouterr().out == "created new, partitions 0 to 5\n"


def test_a_topic_that_exists_is_an_error_with_advice(cluster, capsys):
    cluster.failure = TopicAlreadyExistsError("topic 'flights' exists")
    assert cli.main(["topics", "create", "flights"]) == 1
    assert capsys.readouterr().err == (
        "oncelog: topic 'flights' exists — choose another name, or delete it first\n"
    )


def test_a_setting_without_a_value_is_refused_before_anything_is_done(cluster, capsys):
    assert cli.main(["topics", "create", "new", "--config", "flush"]) == 1
    assert "--config 'flush' is not a setting — give NAME=VALUE" in capsys.readouterr().err
    assert cluster.changes == []


@pytest.mark.parametrize("pair", ["fluh=os", "partitions=3", "segment_bytes=1"])
def test_a_setting_that_topics_do_not_have_is_refused(cluster, capsys, pair):
    assert cli.main(["topics", "create", "new", "--config", pair]) == 1
    assert capsys.readouterr().err.startswith(f"oncelog: {pair.split('=')[0]}=")
    assert cluster.changes == []


def test_settings_of_a_topic_are_altered(cluster, capsys):
    arguments = ["--config", "retention_ms=5", "--config", "min_cleanable_dirty_ratio=0.1"]
    assert cli.main(["topics", "alter", "flights", *arguments, "--reset", "flush"]) == 0
    assert cluster.changes == [
        (
            "alter_topic",
            "flights",
            {"retention_ms": 5, "min_cleanable_dirty_ratio": "0.1", "flush": None},
        )
    ]
    assert capsys.readouterr().out == (
        "altered flights: flush, min_cleanable_dirty_ratio, retention_ms\n"
    )


def test_a_topic_is_given_more_partitions(cluster, capsys):
    assert cli.main(["topics", "alter", "flights", "--partitions", "5"]) == 0
    assert cluster.changes == [("create_partitions", "flights", 5)]
    assert capsys.readouterr().out == "altered flights: partitions 0 to 4\n"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "nothing to change"),
        (["--reset", "colour"], "colour is not a setting"),
        (["--config", "retention_ms=-2"], "retention_ms=-2 is not allowed"),
        (["--config", "flush=os", "--reset", "flush"], "--reset flush contradicts"),
    ],
)
def test_an_impossible_change_is_refused_before_anything_is_done(cluster, capsys, arguments, text):
    assert cli.main(["topics", "alter", "flights", *arguments]) == 1
    assert text in capsys.readouterr().err
    assert cluster.changes == []


def test_a_topic_is_described_with_settings_and_leaders(cluster, capsys):
    assert cli.main(["topics", "describe", "flights"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2] == "settings  flush=os"
    assert [line.split() for line in lines[5:]] == [
        ["0", "1", "4", "1", "1"],
        ["1", "1", "4", "1", "1"],
    ]


def test_a_partition_that_nobody_leads_has_no_leader(cluster, capsys):
    assert cli.main(["topics", "describe", "delays", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["partitions"][0]["leader"] is None


def test_a_topic_is_deleted(cluster, capsys):
    assert cli.main(["topics", "delete", "delays"]) == 0
    assert cluster.changes == [("delete_topic", "delays")]
    assert capsys.readouterr().out == "deleted delays\n"


@pytest.mark.parametrize("action", ["describe", "delete", "alter"])
def test_an_unknown_topic_is_an_error_with_advice(cluster, capsys, action):
    change = ["--config", "flush=os"] if action == "alter" else []
    assert cli.main(["topics", action, "none", *change]) == 1
    assert capsys.readouterr().err == (
        "oncelog: there is no topic 'none' — create it with `oncelog topics create none`\n"
    )
    assert cluster.changes == []


@pytest.mark.parametrize(
    ("arguments", "offsets"),
    [
        (("--all",), {TopicPartition("flights", 0): -1, TopicPartition("flights", 1): -1}),
        (("--partition", "1", "--before-offset", "9"), {TopicPartition("flights", 1): 9}),
    ],
)
def test_the_oldest_records_are_deleted(cluster, capsys, arguments, offsets):
    assert cli.main(["topics", "delete-records", "flights", *arguments]) == 0
    assert cluster.changes == [("delete_records", offsets)]
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[0] == ["TOPIC", "PARTITION", "LOG", "START"]
    assert rows[1:] == [
        [tp.topic, str(tp.partition), str(max(offset, 7))] for tp, offset in offsets.items()
    ]


@pytest.mark.parametrize(
    ("arguments", "status", "reason"),
    [
        (("flights",), 2, "one of --before-offset, --all is required"),
        (
            ("flights", "--all", "--before-offset", "3"),
            2,
            "--before-offset and --all exclude each other",
        ),
        (("flights", "--before-offset", "-1"), 2, "'-1' is not a whole number"),
        (("flights", "--partition", "2", "--all"), 1, "no partition 2 — give one from 0 to 1"),
        (("__consumer_offsets", "--all"), 1, "is an internal topic"),
    ],
)
def test_records_are_deleted_only_when_it_is_clear_which(
    cluster, capsys, arguments, status, reason
):
    assert cli.main(["topics", "delete-records", *arguments]) == status
    assert reason in capsys.readouterr().err
    assert cluster.changes == []


def test_create_if_not_exists_leaves_a_topic_as_it_is(cluster, capsys):
    assert cli.main(["topics", "create", "flights", "--if-not-exists"]) == 0
    assert capsys.readouterr().out == "flights exists already and is left unchanged\n"
    assert cluster.changes == []


def test_members_of_lists_are_changed_and_a_dry_run_says_so(cluster, capsys):
    arguments = ["--append", "cleanup_policy=compact", "--subtract", "cleanup_policy=delete"]
    dry = ["--validate-only", "--partitions", "4"]
    assert cli.main(["topics", "alter", "flights", *arguments, *dry]) == 0
    lists = {"append": {"cleanup_policy": "compact"}, "subtract": {"cleanup_policy": "delete"}}
    assert cluster.changes[0] == ("alter_topic", "flights", {**lists, "validate_only": True})
    assert cluster.changes[1][-1] == {"validate_only": True}
    assert capsys.readouterr().out == (
        "flights could be altered: cleanup_policy, partitions 0 to 3; nothing is changed\n"
    )


def test_preferred_leaders_are_elected_of_one_partition_of_one_topic_or_of_all(cluster, capsys):
    asked = []

    def elect_leaders(wanted):
        asked.append(wanted)
        return {TopicPartition("flights", 1): 3}

    cluster.elect_leaders = elect_leaders
    for arguments in (
        ["--topic", "flights", "--partition", "1"],
        ["--topic", "flights"],
        [],
    ):
        assert cli.main(["partitions", "elect-leaders", *arguments]) == 0
    assert asked == [
        [TopicPartition("flights", 1)],
        [TopicPartition("flights", 0), TopicPartition("flights", 1)],
        None,
    ]
    assert (
        capsys.readouterr().out.split() == ["TOPIC", "PARTITION", "LEADER", "flights", "1", "3"] * 3
    )
    assert cli.main(["partitions", "elect-leaders", "--partition", "1"]) == 2


def test_data_directories_are_shown_with_what_is_in_them(cluster, capsys):
    tp = TopicPartition("flights", 1)
    replica = ReplicaSize(topic_partition=tp, size_bytes=70, offset_lag=2)
    cluster.describe_log_dirs = lambda brokers: [
        LogDirDescription(
            broker_id=2, path="/data", disk_size_bytes=900, disk_free_bytes=300, replicas=(replica,)
        ),
        LogDirDescription(broker_id=3, path="", error=ErrorCode.REQUEST_TIMED_OUT),
    ]
    assert cli.main(["brokers", "log-dirs"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert lines[0] == ["2", "/data", "1", "70", "300", "900"]
    assert lines[1][:4] == ["3", "REQUEST_TIMED_OUT", "0", "0"]
    assert cli.main(["brokers", "log-dirs", "--replicas"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == [
        "2",
        "/data",
        "flights",
        "1",
        "70",
        "2",
    ]
    assert cli.main(["brokers", "log-dirs", "--json", "--broker", "2"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["replicas"][0]["size_bytes"] == 70
