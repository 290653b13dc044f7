"""The live view: rates between two looks, what is shown first, and how much of it."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
from topics import AdminCluster, topic_of

from oncelog.actors.protocol.messages.cluster import BrokerMetadata, MetadataReply
from oncelog.actors.protocol.messages.group import GroupDescription, OffsetAndMetadata
from oncelog.actors.protocol.messages.partition import DescribeReplicaReply
from oncelog.actors.protocol.messages.transaction import TransactionDescription
from oncelog.api.cli import main as cli
from oncelog.api.cli import top as cli_top
from oncelog.api.cli.status import ActorStatus, ClusterStatus
from oncelog.storage.exceptions import RequestTimedOutError
from oncelog.storage.model import TopicPartition

P0, P1 = TopicPartition("flights", 0), TopicPartition("flights", 1)


def status_of(*ends, topics=(), brokers=(1,)):
    """A cluster whose partitions of ``flights`` end at ``ends`` and have as many KiB."""
    return ClusterStatus(
        address="h:1",
        dashboard_url="",
        metadata=MetadataReply(
            cluster_id="c1",
            topics=topics,
            brokers=tuple(
                BrokerMetadata(broker_id=one, data_dir="/d", is_live=True) for one in brokers
            ),
        ),
        actors=tuple(
            ActorStatus(
                name=f"partition:flights-{number}@1",
                topic_partition=TopicPartition("flights", number),
                broker_id=1,
                reply=DescribeReplicaReply(
                    topic_partition=TopicPartition("flights", number),
                    is_leader=True,
                    log_end_offset=end,
                    size_bytes=end * 1_024,
                ),
            )
            for number, end in enumerate(ends)
        ),
    )


def look_of(at_s, status, **found):
    places = {
        actor.topic_partition: (actor.reply.log_end_offset, actor.reply.size_bytes)
        for actor in status.actors
    }
    return cli_top.Look(at_s=at_s, status=status, places=places, **found)


def section(text, heading):
    """The rows below a heading, as words."""
    (found,) = (part for part in text.split("\n\n") if part.startswith(heading))
    return [line.split() for line in found.splitlines()[1:]]


def transaction(name, start_ms, *partitions):
    return TransactionDescription(
        transactional_id=name,
        state="Ongoing",
        producer_id=1,
        producer_epoch=0,
        transaction_timeout_ms=60_000,
        transaction_start_ms=start_ms,
        partitions=partitions,
    )


def group(name):
    return GroupDescription(
        group_id=name, state="Stable", protocol_type="", protocol_name="", generation_id=1
    )


def show_one_cluster(*failures):
    """Makes ``oncelog top`` look at a cluster whose first partition gets 1,000 records a second.

    The looks after the first one fail with ``failures``.
    """
    seconds, errors = itertools.count(), iter(failures)

    def look_around(*_):
        at = next(seconds)
        if at and (error := next(errors, None)) is not None:
            raise error
        return look_of(at, status_of(1_000 * at, 0))

    cli_top.connect = lambda args: AdminCluster()
    cli_top.look_around = look_around


def test_partitions_are_shown_by_what_they_take_a_second():
    before = look_of(10.0, status_of(100, 50, 7))
    text = cli_top.view(before, look_of(12.0, status_of(100, 250, 9)), rows=2)
    assert section(text, "TOPIC") == [
        ["flights", "1", "100", "100.0", "KiB", "250.0", "KiB"],
        ["flights", "2", "1", "1.0", "KiB", "9.0", "KiB"],
    ]


def test_a_first_look_and_a_log_that_was_cut_have_no_rate():
    assert section(cli_top.view(None, look_of(1.0, status_of(5)), 9), "TOPIC")[0][2] == "0"
    text = cli_top.view(look_of(1.0, status_of(5)), look_of(2.0, status_of(3)), 9)
    assert section(text, "TOPIC")[0][2] == "0"


def test_the_oldest_transactions_and_the_groups_farthest_behind_come_first(monkeypatch):
    monkeypatch.setattr(cli_top.time, "time", lambda: 100.0)
    transactions = (transaction("new", 99_000, P0), transaction("old", 10_000, P0, P1))
    groups = tuple((group(name), lag) for name, lag in (("near", 3), ("far", 5_000)))
    now = look_of(1.0, status_of(1), transactions=transactions, groups=groups)
    text = cli_top.view(None, now, rows=1)
    assert section(text, "OPEN TRANSACTION") == [["old", "Ongoing", "1", "min", "30", "s", "2"]]
    assert section(text, "GROUP") == [["far", "Stable", "0", "5,000"]]


def test_problems_are_those_of_status():
    topics = (topic_of("flights", -1),)
    text = cli_top.view(None, look_of(1.0, status_of(1, topics=topics)), rows=9)
    assert text.startswith("cluster c1: not serving\n")
    assert section(text, "WHAT IS WRONG")[0][:3] == ["without", "a", "leader:"]


def test_a_look_asks_for_the_lag_of_each_group(monkeypatch):
    cluster = AdminCluster(
        topic_of("flights", 1, 1),
        list_transactions=(transaction("idle", -1), transaction("open", 5, P0)),
        list_groups=[group("g")],
        list_group_offsets={
            P0: OffsetAndMetadata(offset=3),
            P1: OffsetAndMetadata(offset=20),
            TopicPartition("gone", 0): OffsetAndMetadata(offset=1),
        },
        list_offsets=lambda times: {tp: 20 if -1 in times.values() else 5 for tp in times},
    )
    monkeypatch.setattr(cli_top, "look", lambda args: status_of(1))
    found = cli_top.look_around(SimpleNamespace(), cluster)
    assert [(one.group_id, lag) for one, lag in found.groups] == [("g", 15)]
    assert [one.transactional_id for one in found.transactions] == ["open"]


def groups_of(monkeypatch, cluster):
    monkeypatch.setattr(cli_top, "look", lambda args: status_of(1))
    cluster.answers["list_transactions"] = ()
    return [(one.group_id, lag) for one, lag in cli_top.look_around(None, cluster).groups]


def test_a_partition_without_a_leader_is_not_asked_for_its_offsets(monkeypatch):
    def listed(times):
        assert set(times) == {P0}
        return {P0: 20 if -1 in times.values() else 5}

    cluster = AdminCluster(
        topic_of("flights", 1, -1),
        list_groups=[group("g")],
        list_group_offsets={P0: OffsetAndMetadata(offset=3), P1: OffsetAndMetadata(offset=2)},
        list_offsets=listed,
    )
    assert groups_of(monkeypatch, cluster) == [("g", 15)]


def test_a_lag_that_cannot_be_found_is_unknown_and_not_an_error(monkeypatch):
    cluster = AdminCluster(
        list_groups=[group("g")], list_group_offsets=RequestTimedOutError("no answer")
    )
    assert groups_of(monkeypatch, cluster) == [("g", None)]
    now = look_of(1.0, status_of(1), groups=((group("b"), None), (group("a"), 0)))
    rows = section(cli_top.view(None, now, rows=9), "GROUP")
    assert [(row[0], row[-1]) for row in rows] == [("a", "0"), ("b", "-")]


def test_lags_are_looked_up_for_so_long_only(monkeypatch):
    monkeypatch.setattr(cli_top, "LAGS_MAX_S", 0.0)
    cluster = AdminCluster(list_groups=[group("g")], list_group_offsets={})
    assert groups_of(monkeypatch, cluster) == [("g", None)]
    assert cluster.calls == [("list_transactions",), ("list_groups",)]


def test_its_calls_are_given_up_soon(monkeypatch, capsys):
    cluster = AdminCluster()
    monkeypatch.setattr(cli_top, "connect", lambda args: cluster)
    monkeypatch.setattr(cli_top, "look_around", lambda *_: look_of(1.0, status_of(1)))
    assert cli.main(["top", "--once", "--interval-ms", "100"]) == 0
    assert cluster.timeout_ms == cli_top.CALL_TIMEOUT_MS


@pytest.mark.parametrize("arguments", [["--once"], []])
def test_without_a_terminal_it_is_printed_once(monkeypatch, capsys, arguments):
    for name in ("look_around", "connect"):
        monkeypatch.setattr(cli_top, name, getattr(cli_top, name))
    show_one_cluster()
    assert cli.main(["top", "--interval-ms", "100", *arguments]) == 0
    assert section(capsys.readouterr().out, "TOPIC")[0][:3] == ["flights", "0", "1,000"]
