"""Transactional ids as the command line shows and ends them."""

from __future__ import annotations

import json

import pytest
from msgspec import structs
from topics import AdminCluster

from oncelog.actors.protocol.messages.partition import ProducerDescription
from oncelog.actors.protocol.messages.transaction import (
    TransactionDescription,
    TransactionMemberDescription,
)
from oncelog.api.admin.hanging import HangingTransaction, IncompleteSearchError
from oncelog.api.cli import main as cli
from oncelog.api.cli import transactions as cli_transactions
from oncelog.api.cli.terminal import duration_text
from oncelog.storage.exceptions import InvalidTxnStateError, TransactionalIdNotFoundError
from oncelog.storage.model import TopicPartition

FLIGHTS = TopicPartition("flights", 0)
HANGING = HangingTransaction(
    topic_partition=FLIGHTS,
    producer_id=1_007,
    producer_epoch=5,
    start_offset=42,
    last_timestamp_ms=1_700_000_000_000,
    coordinator_epoch=3,
)


LOADER = TransactionDescription(
    transactional_id="loader",
    state="Ongoing",
    producer_id=1_000,
    producer_epoch=5,
    transaction_timeout_ms=60_000,
    transaction_start_ms=1_000,
    last_update_ms=2_000,
    partitions=(FLIGHTS,),
    commit_token=b"batch-41",
)
PRODUCER = ProducerDescription(
    producer_id=1_007,
    producer_epoch=5,
    last_sequence=9,
    last_timestamp_ms=1_700_000_000_000,
    coordinator_epoch=3,
    current_txn_first_offset=42,
)


@pytest.fixture
def cluster(monkeypatch):
    """One open transaction and one hanging one."""
    cluster = AdminCluster(
        list_transactions=[LOADER],
        describe_transaction=LOADER,
        describe_producers=(PRODUCER,),
        find_hanging_transactions=[HANGING],
        abort_transaction=True,
        abort_hanging_transaction=HANGING,
    )
    monkeypatch.setattr(cli_transactions, "connect", lambda args: cluster)
    monkeypatch.setattr(cli_transactions.time, "time", lambda: 61.0)
    return cluster


def run(*arguments):
    return cli.main(["transactions", *arguments])


def test_ids_are_listed_as_the_filters_say(cluster, capsys):
    filters = ("--state", "Ongoing", "--producer-id", "7", "--running-longer-than-ms", "5")
    assert run("list", *filters) == 0
    wanted = {"states": ("Ongoing",), "producer_ids": (7,), "running_longer_than_ms": 5}
    assert cluster.calls == [("list_transactions", wanted)]
    _, row = capsys.readouterr().out.splitlines()
    assert row.split() == ["loader", "Ongoing", "1000", "5", "1", "min", "1"]


def test_a_state_that_does_not_exist_is_refused(cluster, capsys):
    assert run("list", "--state", "Open") == 2
    assert "'Open' is not one of 'Empty', 'Ongoing'" in capsys.readouterr().err


def test_an_id_is_described_for_people_and_programs(cluster, capsys):
    assert run("describe", "loader") == 0
    out = capsys.readouterr().out
    assert "producer  1000, epoch 5\n" in out
    assert 'token     "batch-41"\n' in out
    assert out.splitlines()[-1].split() == ["flights", "0"]
    assert run("describe", "loader", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["partitions"] == ["flights-0"]
    assert (shown["commit_token"], shown["transaction_start_ms"]) == ("batch-41", 1_000)


def test_what_a_client_of_version_1_knows_is_shown(cluster, capsys):
    told = structs.replace(LOADER, told_producer_id=1_000, told_producer_epoch=2)
    cluster.answers["describe_transaction"] = told
    assert run("describe", "loader") == 0
    assert "client knows  producer 1000, epoch 2" in capsys.readouterr().out
    assert run("describe", "loader", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["told"] == {"producer_id": 1_000, "producer_epoch": 2}


def test_members_of_a_distributed_write_are_shown(cluster, capsys):
    member = TransactionMemberDescription(
        producer_id=1_001, producer_epoch=2, status="ENLISTED", partitions=(FLIGHTS,)
    )
    cluster.answers["describe_transaction"] = structs.replace(LOADER, members=(member,))
    assert run("describe", "loader") == 0
    shown = capsys.readouterr().out.splitlines()[-1].split()
    assert shown == ["1001", "2", "ENLISTED", "flights-0"]


def test_an_unknown_id_is_one_line(cluster, capsys):
    cluster.answers["describe_transaction"] = TransactionalIdNotFoundError(
        "there is no transactional id 'nobody'"
    )
    assert run("describe", "nobody") == 1
    assert cluster.calls == [("describe_transaction", "nobody")]
    assert capsys.readouterr().err.startswith("oncelog: there is no transactional id 'nobody' — ")


def test_producers_of_a_partition_are_shown(cluster, capsys):
    assert run("describe-producers", "flights", "--partition", "0") == 0
    row = capsys.readouterr().out.splitlines()[1].split()
    assert row == ["1007", "5", "9", "2023-11-14", "22:13:20", "UTC", "42"]
    assert run("describe-producers", "flights", "--partition", "0", "--json") == 0
    (shown,) = json.loads(capsys.readouterr().out)
    assert shown["open_from_offset"] == 42


def test_hanging_transactions_are_shown_with_what_aborts_them(cluster, capsys):
    filters = ("--broker", "1", "--topic", "flights", "--partition", "0", "--older-than-ms", "9")
    assert run("find-hanging", *filters) == 0
    wanted = {"broker_id": 1, "topic": "flights", "partition": 0, "older_than_ms": 9}
    assert cluster.calls == [("find_hanging_transactions", wanted)]
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split()[:5] == ["flights", "0", "42", "1007", "5"]
    assert "transactions abort --topic" in lines[-1]
    assert run("find-hanging", "--json") == 0
    assert json.loads(capsys.readouterr().out)[0]["start_offset"] == 42
    cluster.answers["find_hanging_transactions"] = []
    assert run("find-hanging") == 0
    assert capsys.readouterr().out == "no hanging transactions\n"


@pytest.mark.parametrize("found", [[], [HANGING]])
def test_what_was_found_is_shown_though_somebody_did_not_answer(cluster, capsys, found):
    cluster.failure = IncompleteSearchError(
        "no answer from flights-3 (REQUEST_TIMED_OUT); ask again later", found=found
    )
    assert run("find-hanging") == 1
    out, err = capsys.readouterr()
    assert ("1007" in out) == bool(found)
    assert "no hanging transactions" not in out
    assert "no answer from flights-3" in err
    assert run("find-hanging", "--json") == 1
    assert [one["start_offset"] for one in json.loads(capsys.readouterr().out)] == [42] * len(found)


def test_an_abort_goes_by_id_or_by_place(cluster, capsys):
    assert run("abort", "loader") == 0
    assert capsys.readouterr().out == "aborted the transaction of loader\n"
    cluster.answers["abort_transaction"] = False
    assert run("abort", "loader") == 0
    assert "some partitions get their markers later" in capsys.readouterr().out
    place = ("--topic", "flights", "--partition", "0", "--start-offset", "42")
    assert run("abort", *place) == 0
    assert "producer 1007, epoch 5, on flights-0 from offset 42" in capsys.readouterr().out
    assert cluster.calls[-1] == ("abort_hanging_transaction", FLIGHTS, {"start_offset": 42})


@pytest.mark.parametrize(
    "arguments",
    [
        ("abort",),
        ("abort", "loader", "--topic", "flights"),
        ("abort", "--topic", "flights", "--partition", "0"),
        ("abort", "--partition", "0", "--start-offset", "1"),
        ("find-hanging", "--partition", "0"),
    ],
)
def test_half_a_place_is_refused_without_a_call(cluster, capsys, arguments):
    assert run(*arguments) == 2
    assert " — give " in capsys.readouterr().err
    assert cluster.calls == []


def test_a_refused_abort_is_one_line_with_what_to_do(cluster, capsys):
    cluster.failure = InvalidTxnStateError(
        "the transaction at 42 of flights-0 may still be ended by 'loader'",
        advice="use abort_transaction('loader') first",
    )
    assert run("abort", "--topic", "flights", "--partition", "0", "--start-offset", "42") == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert " — use abort_transaction('loader') first" in err


def test_an_id_is_deleted(cluster, capsys):
    assert run("delete", "loader") == 0
    assert capsys.readouterr().out == "deleted loader\n"
    assert cluster.calls == [("delete_transactional_id", "loader")]


@pytest.mark.parametrize(
    ("duration_ms", "text"),
    [
        (0, "0 ms"),
        (7, "7 ms"),
        (60_000, "1 min"),
        (61_000, "1 min 1 s"),
        (3_600_001, "1 h"),
        (90_061_000, "1 d 1 h"),
        (604_800_000, "7 d"),
    ],
)
def test_durations_have_two_units_at_most(duration_ms, text):
    assert duration_text(duration_ms) == text
