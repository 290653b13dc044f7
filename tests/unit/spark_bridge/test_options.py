from __future__ import annotations

import logging

import pytest

from oncelog.actors.protocol.messages.transaction import Run
from oncelog.spark_bridge.offsets import LATEST, Selection
from oncelog.spark_bridge.read_options import parse_read_options
from oncelog.spark_bridge.write_options import (
    parse_write_options,
    version_token,
)
from oncelog.storage.exceptions import InvalidSettingError
from oncelog.storage.model import IsolationLevel, TopicPartition

RUN = Run(number=7, id="ab" * 16)


def read(**options):
    return parse_read_options({name.lower(): value for name, value in options.items()})


def write(**options):
    return parse_write_options({name.lower(): value for name, value in options.items()})


# --- reading ----------------------------------------------------------------------------------


def test_a_read_of_topics_takes_committed_data_from_the_start_to_the_end():
    options = read(subscribe="a, b")
    assert options.selection == Selection(topics=("a", "b"))
    assert (options.starting, options.ending) == (None, LATEST)
    assert options.isolation_level is IsolationLevel.READ_COMMITTED
    assert options.fails_on_data_loss
    assert not options.includes_headers


def test_load_with_a_path_is_short_for_subscribe():
    assert read(path="a").selection == Selection(topics=("a",))
    assert read(paths='["a","b"]').selection == Selection(topics=("a", "b"))


def test_partitions_and_patterns_may_be_read_instead_of_topics():
    partitions = (TopicPartition("a", 0), TopicPartition("a", 2))
    assert read(assign='{"a":[2,0]}').selection == Selection(partitions=partitions)
    assert read(subscribePattern="a.*").selection == Selection(pattern="a.*")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "exactly one of subscribe, assign and subscribePattern says what to read; .*: none"),
        ({"subscribe": "a", "assign": '{"a":[0]}'}, "given: subscribe, assign"),
        ({"subscribe": "a", "path": "b"}, r"given: subscribe, load\(path\)"),
        ({"subscribePattern": "("}, "a regular expression is needed"),
        ({"subscribe": "a,,b"}, "'' is not a topic name"),
        ({"assign": '{"a/b":[0]}'}, "'a/b' is not a topic name"),
        ({"subscribe": " "}, "subscribe=' ' is not allowed: text that is not empty"),
        ({"subscribe": "a", "paths": "b"}, "paths='b' is not allowed: a JSON list"),
    ],
)
def test_anything_but_one_clear_selection_is_refused(options, text):
    with pytest.raises(InvalidSettingError, match=text):
        read(**options)


def test_an_unknown_option_is_refused_with_the_nearest_known_one():
    with pytest.raises(InvalidSettingError, match="did you mean startingOffsets"):
        read(subscribe="a", startingOfset="latest")
    with pytest.raises(InvalidSettingError, match="known are address, topic"):
        write(topic="a", zzz="1")


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("failOnDataLoss", "maybe", "true or false"),
        ("minPartitions", "0", "a whole number from 1 to"),
        ("minPartitions", "1.5", "a whole number from 1 to"),
        ("isolation.level", "serializable", "one of read_committed, read_uncommitted"),
        ("startingOffsets", "yesterday", "earliest, latest, or JSON"),
    ],
)
def test_an_impossible_value_is_refused_with_what_is_allowed(name, value, allowed):
    with pytest.raises(InvalidSettingError, match=f"{name}='{value}'.*{allowed}"):
        read(subscribe="a", **{name: value})


def test_kafkas_spelling_of_an_option_means_the_same():
    options = read(
        **{"subscribe": "a", "kafka.isolation.level": "READ_UNCOMMITTED"},
        **{"kafka.bootstrap.servers": "host:1"},
    )
    assert options.isolation_level is IsolationLevel.READ_UNCOMMITTED
    assert options.address == "host:1"


def test_two_spellings_with_different_values_are_refused():
    with pytest.raises(InvalidSettingError, match="differ"):
        read(**{"subscribe": "a", "address": "x", "kafka.bootstrap.servers": "y"})


def test_an_option_of_kafka_without_meaning_here_is_passed_over_and_logged(caplog):
    with caplog.at_level(logging.WARNING):
        read(**{"subscribe": "a", "kafka.ssl.truststore.location": "f"})
    assert "kafka.ssl.truststore.location" in caplog.text


def test_offsets_are_given_by_word_or_by_partition():
    options = read(subscribe="a", startingOffsets='{"a":{"0":5}}', endingOffsets="LATEST")
    assert options.starting == {TopicPartition("a", 0): 5}
    assert options.ending == LATEST


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("startingOffsets", "latest"),
        ("startingOffsets", '{"a":{"0":-1}}'),
        ("endingOffsets", "earliest"),
        ("endingOffsets", '{"a":{"0":-2}}'),
    ],
)
def test_a_batch_that_could_hold_nothing_is_refused(name, value):
    with pytest.raises(InvalidSettingError, match=f"{name} may not be"):
        read(subscribe="a", **{name: value}).check_batch()


# --- writing ----------------------------------------------------------------------------------


def test_a_write_is_told_its_topic_by_option_or_path():
    assert write(topic="a").topic == "a"
    assert write(path="a").topic == "a"
    assert write().topic is None


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"topic": "a", "path": "b"}, "name different topics"),
        ({"topic": "a b"}, "'a b' is not a topic name"),
        ({"txnAppId": "x"}, "txnAppId and txnVersion belong together"),
        ({"txnVersion": "1"}, "txnAppId and txnVersion belong together"),
        ({"txnAppId": "x", "txnVersion": "-1"}, "a whole number from 0"),
        ({"transaction.timeout.ms": "0"}, "a whole number from 1"),
        ({"compression.type": "rar"}, "one of none, gzip, snappy, lz4, zstd"),
        ({"transactional.id": "x" * 1025}, "more than 1024 bytes"),
        ({"txnAppId": "x" * 1000, "txnVersion": "1"}, "too long for a commit token"),
    ],
)
def test_a_write_that_cannot_be_is_refused(options, text):
    with pytest.raises(InvalidSettingError, match=text):
        write(**options)


def test_without_ids_each_run_has_a_transactional_id_of_its_own_and_no_token():
    assert write(topic="a").identity("0123") == ("spark-0123", b"")


def test_a_transactional_id_is_used_as_it_is_with_a_token_for_each_run():
    options = write(**{"transactional.id": "load-2013"})
    assert options.identity("0123") == ("load-2013", b"0123")


def test_an_application_id_gives_the_same_transaction_and_token_in_every_run():
    options = write(txnAppId="nightly", txnVersion="3")
    first, second = (options.identity(run_id) for run_id in ("0123", "4567"))
    assert first == second == ("spark-nightly", version_token("nightly", 3))


def test_applications_that_share_a_transactional_id_do_not_share_a_transaction():
    ids = {
        write(**{"transactional.id": "load", "txnAppId": app_id, "txnVersion": "1"}).identity("0")[
            0
        ]
        for app_id in ("a", "b")
    }
    assert ids == {"load-a", "load-b"}
