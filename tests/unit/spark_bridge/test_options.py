from __future__ import annotations

import logging
from pathlib import Path

import pytest

from oncelog.actors.protocol.messages.transaction import Run
from oncelog.actors.protocol.transaction.commit_versions import version_token
from oncelog.api.distributing.engine_connection import Endpoint
from oncelog.api.distributing.read import Selection
from oncelog.api.session.login import FILE_VARIABLE, USER_VARIABLE, Login
from oncelog.spark_bridge.errors import WARNED_MAX, warn_once
from oncelog.spark_bridge.given_options import CLIENT_TUNING, PASSWORDS
from oncelog.spark_bridge.offsets import EARLIEST, LATEST, Timestamps
from oncelog.spark_bridge.read_options import READ_OPTIONS, parse_read_options
from oncelog.spark_bridge.write_options import (
    WRITE_OPTIONS,
    parse_write_options,
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
    assert (options.starting, options.ending) == (None, None)
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
        ({"subscribePattern": "("}, "give a regular expression"),
        ({"subscribe": "a,,b"}, "'' is not a topic name"),
        ({"assign": '{"a/b":[0]}'}, "'a/b' is not a topic name"),
        ({"subscribe": " "}, "subscribe=' ' is not allowed; give text that is not empty"),
        ({"subscribe": "a", "paths": "b"}, "paths='b' is not allowed; give a JSON list"),
    ],
)
def test_anything_but_one_clear_selection_is_refused(options, text):
    with pytest.raises(InvalidSettingError, match=text):
        read(**options)


def test_an_unknown_option_is_refused_with_the_nearest_known_one():
    with pytest.raises(InvalidSettingError, match="did you mean startingOffsets"):
        read(subscribe="a", startingOfset="latest")
    with pytest.raises(
        InvalidSettingError,
        match=r"known are address, user, password.file, token.file, cert, topic",
    ):
        write(topic="a", zzz="1")


def test_the_value_of_an_unknown_option_is_in_no_error():
    with pytest.raises(InvalidSettingError) as raised:
        read(subscribe="a", passwrd="planted secret")
    assert "passwrd" in str(raised.value)
    assert "planted" not in str(raised.value)


@pytest.mark.parametrize("name", PASSWORDS)
def test_a_password_is_no_option_and_its_text_is_told_to_nobody(name, caplog):
    for parse, own in ((read, {"subscribe": "a"}), (write, {"topic": "a"})):
        with caplog.at_level(logging.DEBUG), pytest.raises(InvalidSettingError) as raised:
            parse(**own, **{name: "planted words"})
        assert str(raised.value) == (
            f"{name} is not allowed: Spark shows options; give user, and as password.file the path "
            "of a file with the password"
        )
    assert "planted" not in caplog.text


def test_a_user_is_given_with_the_path_of_its_password_file():
    given = {"user": "alice", "password.file": "/etc/alice"}
    for options in (read(subscribe="a", **given), write(topic="a", **given)):
        assert options.endpoint == Endpoint(login=Login("alice", "/etc/alice"))


def test_a_token_is_no_option_and_its_text_is_told_to_nobody():
    for parse, own in ((read, {"subscribe": "a"}), (write, {"topic": "a"})):
        with pytest.raises(InvalidSettingError) as raised:
            parse(**own, token="planted words")
        assert str(raised.value) == (
            "token is not allowed: Spark shows options; give as token.file the path of a file with "
            "the token"
        )


def test_who_has_a_token_or_certificate_is_given_with_the_path_of_its_file(monkeypatch):
    monkeypatch.setenv(USER_VARIABLE, "alice")
    monkeypatch.setenv(FILE_VARIABLE, "/etc/alice")
    for given, login in (
        ({"token.file": "/etc/t"}, Login(token_file="/etc/t")),
        ({"cert": "/etc/c"}, Login(certificate="/etc/c")),
    ):
        for options in (read(subscribe="a", **given), write(topic="a", **given)):
            assert options.endpoint == Endpoint(login=login)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"token.file": "/t", "cert": "/c"}, "token.file and cert are given"),
        ({"user": "a", "password.file": "/p", "cert": "/c"}, "user and cert are given"),
    ],
)
def test_several_ways_to_log_in_are_refused(given, told):
    with pytest.raises(InvalidSettingError) as raised:
        read(subscribe="a", **given)
    assert str(raised.value) == f"{told}; log in by one of user, token.file and cert"


@pytest.mark.parametrize("name", ["user", "password.file"])
def test_a_user_without_a_password_file_is_refused_and_the_other_way_round(name):
    with pytest.raises(InvalidSettingError, match=r"^user and password.file belong together; give"):
        read(subscribe="a", **{name: "x"})


def test_the_user_of_the_environment_counts_where_a_query_is_planned(monkeypatch):
    monkeypatch.setenv(USER_VARIABLE, "alice")
    monkeypatch.setenv(FILE_VARIABLE, "/etc/alice")
    assert read(subscribe="a").endpoint.login == Login("alice", "/etc/alice")
    given = {"user": "bob", "password.file": "/etc/bob"}
    assert write(topic="a", **given).endpoint.login == Login("bob", "/etc/bob")


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("failOnDataLoss", "maybe", "true or false"),
        ("minPartitions", "0", "a whole number from 1 to"),
        ("minPartitions", "1.5", "a whole number from 1 to"),
        ("isolation.level", "serializable", "one of .read_uncommitted., .read_committed."),
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
    assert options.endpoint.address == "host:1"


def test_two_spellings_with_different_values_are_refused():
    with pytest.raises(InvalidSettingError, match="differ"):
        read(**{"subscribe": "a", "address": "x", "kafka.bootstrap.servers": "y"})


def test_an_option_of_kafka_without_meaning_here_is_passed_over_and_logged(caplog):
    with caplog.at_level(logging.WARNING):
        read(**{"subscribe": "a", "kafka.ssl.truststore.location": "f"})
    assert "kafka.ssl.truststore.location" in caplog.text


USUAL = (
    "kafka.acks",
    "kafka.batch.size",
    "kafka.client.dns.lookup",
    "kafka.client.id",
    "kafka.client.rack",
    "kafka.compression.zstd.level",
    "kafka.connections.max.idle.ms",
    "kafka.default.api.timeout.ms",
    "kafka.fetch.max.bytes",
    "kafka.fetch.min.bytes",
    "kafka.group.instance.id",
    "kafka.group.protocol",
    "kafka.heartbeat.interval.ms",
    "kafka.max.in.flight.requests.per.connection",
    "kafka.max.partition.fetch.bytes",
    "kafka.max.poll.records",
    "kafka.metadata.max.age.ms",
    "kafka.metric.reporters",
    "kafka.metrics.num.samples",
    "kafka.partition.assignment.strategy",
    "kafka.partitioner.adaptive.partitioning.enable",
    "kafka.receive.buffer.bytes",
    "kafka.reconnect.backoff.max.ms",
    "kafka.retries",
    "kafka.retry.backoff.ms",
    "kafka.sasl.mechanism",
    "kafka.security.protocol",
    "kafka.send.buffer.bytes",
    "kafka.session.timeout.ms",
    "kafka.socket.connection.setup.timeout.ms",
    "kafka.ssl.keystore.password",
)
"""What programs for Kafka's connector set, for its source and for its sink alike."""


@pytest.mark.parametrize("name", USUAL)
def test_what_tunes_kafkas_clients_is_no_obstacle_to_a_read_or_a_write(name):
    value = {"kafka.acks": "all", "kafka.batch.size": "65536"}.get(name, "x")
    assert read(subscribe="a", **{name: value}).selection == Selection(topics=("a",))
    assert write(topic="a", **{name: value}).topic == "a"


def test_what_is_passed_over_is_told_once_by_name_alone(caplog):
    """Not by value: some are passwords. A micro-batch looks at its options several times."""
    given = {"kafka.ssl.key.password": "secret", "kafka.sasl.mechanism": "PLAIN"}
    for _ in range(3):
        read(subscribe="a", **given)
    (line,) = caplog.messages
    assert "kafka.sasl.mechanism, kafka.ssl.key.password" in line
    assert "secret" not in caplog.text
    write(topic="a", **given, **{"kafka.retries": "3"})
    assert len(caplog.messages) == 2


def test_lines_that_are_told_once_are_remembered_within_a_bound(caplog):
    for number in range(WARNED_MAX + 1):
        warn_once(str(number))
    warn_once(str(WARNED_MAX))
    assert len(caplog.messages) == WARNED_MAX + 1
    warn_once("0")
    assert caplog.messages[-1].startswith("0 — ")
    assert len(caplog.messages) == WARNED_MAX + 2


def test_a_misspelt_option_of_kafka_is_refused_all_the_same():
    with pytest.raises(InvalidSettingError, match=r"did you mean kafka.isolation.level\?"):
        read(subscribe="a", **{"kafka.isolation.levle": "read_uncommitted"})
    with pytest.raises(InvalidSettingError, match=r"did you mean kafka.max.request.size\?"):
        write(topic="a", **{"kafka.max.request.sice": "2000000"})


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


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ({"maxOffsetsPerTrigger": "5"}, "maxOffsetsPerTrigger is for streams; .*endingOffsets"),
        ({"minOffsetsPerTrigger": "5"}, "minOffsetsPerTrigger is for streams"),
        ({"maxTriggerDelay": "5m"}, "maxTriggerDelay is for streams"),
        ({"kafka.group.id": "g"}, "kafka.group.id is for streams"),
    ],
    ids=str,
)
def test_what_is_for_streams_is_refused_in_a_batch(option, told):
    options = read(subscribe="a", **option)
    options.check_stream()
    with pytest.raises(InvalidSettingError, match=told):
        options.check_batch()


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
        ({"compression.type": "rar"}, "give one of 'none', 'gzip', 'snappy', 'lz4', 'zstd'"),
        ({"transactional.id": "x" * 1025}, "text of 1 to 1024 bytes"),
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


def test_what_an_application_remembers_hangs_on_no_transactional_id():
    """Else a stream whose option is changed would write its last batch again."""
    application = {"txnAppId": "nightly", "txnVersion": "3"}
    ids = {
        write(**application, **given).identity("0")
        for given in ({}, {"transactional.id": "load"}, {"transactional.id": "copy"})
    }
    assert ids == {("spark-nightly", version_token("nightly", 3))}


def test_applications_that_share_a_transactional_id_do_not_share_a_transaction():
    ids = {
        write(**{"transactional.id": "load", "txnAppId": app_id, "txnVersion": "1"}).identity("0")[
            0
        ]
        for app_id in ("a", "b")
    }
    assert ids == {"spark-a", "spark-b"}


@pytest.mark.parametrize(
    ("transactional_id", "is_former"),
    [
        ("load-nightly", True),
        ("load-2-nightly", True),
        ("spark-nightly", False),
        ("ray-data-nightly", False),
        ("-nightly", False),
        ("nightly", False),
        ("load-nightly-2", False),
    ],
)
def test_a_former_id_of_an_application_has_a_prefix_that_is_no_engine(transactional_id, is_former):
    options = write(txnAppId="nightly", txnVersion="3")
    assert options.is_former_id(transactional_id) is is_former


# --- the page for users -----------------------------------------------------------------------


def tables_of_the_page():
    """The tables of names, as code, on the page: first cell → second cell of each row."""
    page = Path(__file__).parents[3] / "docs" / "SPARK.md"
    tables = []
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.startswith("| `"):
            name, text = line.strip("|").split("|")
            tables[-1][name.strip().strip("`")] = text.strip()
        elif line.startswith("| "):
            tables.append({})
    return [table for table in tables if table]


def test_the_page_has_every_option_that_is_not_accepted_and_no_other():
    read_refused, write_refused, read_ignored, write_ignored, client_tuning = tables_of_the_page()
    assert list(client_tuning) == list(CLIENT_TUNING)
    assert (read_refused, write_refused) == (READ_OPTIONS.refused, WRITE_OPTIONS.refused)
    assert list(read_ignored) == list(READ_OPTIONS.ignored)
    assert list(write_ignored) == list(WRITE_OPTIONS.ignored)


@pytest.mark.parametrize(
    ("parse", "own", "names"),
    [(read, {"subscribe": "a"}, READ_OPTIONS), (write, {"topic": "a"}, WRITE_OPTIONS)],
    ids=["read", "write"],
)
def test_what_is_refused_says_what_to_do_and_what_is_ignored_is_logged(parse, own, names, caplog):
    for name, advice in names.refused.items():
        with pytest.raises(InvalidSettingError, match=f"{name}='x' is not allowed; {advice}"):
            parse(**own, **{name: "x"})
    elsewhere = {*names.names, *names.refused}
    for name in (*names.ignored, *(set(CLIENT_TUNING) - elsewhere)):
        parse(**own, **{name.replace("*", "x"): "y"})
        assert name.lower().replace("*", "x") in caplog.text


# --- streams, times and limits ----------------------------------------------------------------


def test_one_time_goes_before_times_and_these_before_offsets():
    a0 = TopicPartition("a", 0)
    given = {"subscribe": "a", "startingOffsets": "earliest"}
    assert read(**given).starting == EARLIEST
    given["startingOffsetsByTimestamp"] = '{"a":{"0":7}}'
    assert read(**given).starting == Timestamps(wanted_ms={a0: 7}, fails_without_match=True)
    given |= {"startingTimestamp": "9", "startingOffsetsByTimestampStrategy": "latest"}
    assert read(**given).starting == Timestamps(wanted_ms=9, fails_without_match=False)
    ending = read(subscribe="a", endingTimestamp="9").ending
    assert ending == Timestamps(wanted_ms=9, fails_without_match=False)


@pytest.mark.parametrize("option", [{"endingOffsets": "latest"}, {"endingTimestamp": "1"}], ids=str)
def test_a_stream_has_no_end(option):
    with pytest.raises(InvalidSettingError, match="are for batches; leave them out"):
        read(subscribe="a", **option).check_stream()
    read(subscribe="a", startingOffsets="latest").check_stream()


@pytest.mark.parametrize(("text", "delay_ms"), [("15m", 900_000), ("2s", 2_000), ("70", 70)])
def test_a_delay_has_a_unit(text, delay_ms):
    assert read(subscribe="a", maxTriggerDelay=text).trigger_delay_max_ms == delay_ms


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ({"maxTriggerDelay": "soon"}, "a whole number and one of ms, s, m"),
        ({"maxOffsetsPerTrigger": "0"}, "a whole number from 1"),
        ({"maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "6"}, "at most maxOffsetsPerTr"),
        ({"kafka.group.id": "x" * 1_025}, "bytes"),
        ({"startingOffsetsByTimestamp": '{"a":{"0":-2}}'}, "not a time in milliseconds"),
        ({"startingOffsetsByTimestampStrategy": "guess"}, "one of 'error', 'latest'"),
    ],
)
def test_a_limit_that_cannot_be_is_refused(option, text):
    with pytest.raises(InvalidSettingError, match=text):
        read(subscribe="a", **option)


def test_the_producers_of_tasks_are_set_as_in_kafka():
    options = write(**{"topic": "a", "kafka.linger.ms": "20", "kafka.acks": "all"})
    assert options.producer_settings == {"compression_type": "none", "linger_ms": 20}


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ({"kafka.acks": "1"}, "kafka.acks='1' is not allowed; give all"),
        ({"kafka.enable.idempotence": "false"}, "every write is a transaction"),
        ({"kafka.linger.ms": "soon"}, "a whole number from 0"),
        ({"kafka.delivery.timeout.ms": "1"}, "at least linger_ms"),
        ({"paths": '["a","b"]'}, "a write has one topic"),
    ],
)
def test_settings_of_producers_that_cannot_be_are_refused(option, text):
    with pytest.raises(InvalidSettingError, match=text):
        write(**option)
