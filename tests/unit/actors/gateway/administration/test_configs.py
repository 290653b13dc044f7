"""Settings of topics and brokers by Kafka's names, described and altered with a real controller."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kafka_admin
import pytest
from kafka_admin import AdminCluster, Story
from msgspec import structs

from oncelog.actors.config import ClusterConfig, TopicConfig
from oncelog.actors.gateway.administration.configs import (
    BROKER,
    TOPIC,
    TOPIC_SETTINGS,
    Change,
    Kind,
    Source,
    cluster_name_of,
    in_kafkas_words,
    ours_of,
    replication_factor_of,
)
from oncelog.actors.gateway.messages.alter_configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
)
from oncelog.actors.gateway.messages.apis import ApiKey
from oncelog.actors.gateway.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResult,
)
from oncelog.actors.gateway.messages.incremental_alter_configs import (
    AlterableConfig as IncrementalConfig,
)
from oncelog.actors.gateway.messages.incremental_alter_configs import (
    AlterConfigsResource as IncrementalResource,
)
from oncelog.actors.gateway.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
)
from oncelog.actors.protocol.messages.access import Acl, Operation, Resource
from oncelog.actors.protocol.messages.cluster import PartitionMetadata, TopicMetadata
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import InvalidSettingError
from oncelog.storage.model import (
    CONSUMER_OFFSETS_TOPIC,
    INT64_MAX,
    TRANSACTION_STATE_TOPIC,
)
from oncelog.storage.settings import settings_of

Play = Callable[[Story], None]
Rows = dict[str, DescribeConfigsResourceResult]

SET, DELETE, APPEND, SUBTRACT = map(int, Change)


@pytest.fixture
def play(tmp_path: Path) -> Play:
    return lambda story: kafka_admin.play(tmp_path, story)


async def described(
    world: AdminCluster,
    name: str = "flights",
    kind: int = TOPIC,
    keys: list[str] | None = None,
    **fields: bool,
) -> DescribeConfigsResult:
    request = DescribeConfigsRequest([DescribeConfigsResource(kind, name, keys)], **fields)
    (result,) = (await world.ask(ApiKey.DESCRIBE_CONFIGS, request)).results
    assert (result.resource_type, result.resource_name) == (kind, name)
    found: DescribeConfigsResult = result
    return found


async def rows(world: AdminCluster, name: str = "flights", **fields: Any) -> Rows:
    result = await described(world, name, **fields)
    assert (result.error_code, result.error_message) == (0, None)
    found = {one.name: one for one in result.configs}
    assert len(found) == len(result.configs)
    return found


async def increment(
    world: AdminCluster,
    *changes: tuple[str, int, str | None],
    name: str = "flights",
    kind: int = TOPIC,
    validate_only: bool = False,
) -> tuple[int, str]:
    configs = [IncrementalConfig(*one) for one in changes]
    request = IncrementalAlterConfigsRequest(
        [IncrementalResource(kind, name, configs)], validate_only
    )
    (result,) = (await world.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, request)).responses
    assert (result.resource_type, result.resource_name) == (kind, name)
    return result.error_code, result.error_message or ""


async def replace(
    world: AdminCluster, validate_only: bool = False, /, **values: str | None
) -> tuple[int, str]:
    configs = [AlterableConfig(name.replace("_", "."), text) for name, text in values.items()]
    request = AlterConfigsRequest([AlterConfigsResource(TOPIC, "flights", configs)], validate_only)
    (result,) = (await world.ask(ApiKey.ALTER_CONFIGS, request)).responses
    assert (result.resource_type, result.resource_name) == (TOPIC, "flights")
    return result.error_code, result.error_message or ""


def settings(world: AdminCluster) -> dict[str, str]:
    return dict(world.topic("flights").settings)


# --- the table --------------------------------------------------------------------------------


def test_every_setting_of_a_topic_has_one_name() -> None:
    ours = [one.ours for one in TOPIC_SETTINGS.values() if one.ours]
    assert sorted(ours) == sorted(settings_of(TopicConfig))
    names = list(map(cluster_name_of, settings_of(ClusterConfig)))
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", [one.name for one in TOPIC_SETTINGS.values() if not one.ours])
def test_a_fixed_setting_takes_its_value_and_no_other(name: str) -> None:
    fixed = TOPIC_SETTINGS[name].default
    assert ours_of([(name, fixed)]) == {}
    assert ours_of([(name, f" {fixed.title()}")] if fixed == "false" else []) == {}
    with pytest.raises(InvalidSettingError) as refusal:
        ours_of([(name, "other")])
    assert f"{name}='other'" in str(refusal.value)
    assert repr(fixed) in str(refusal.value)


@pytest.mark.parametrize(
    ("name", "given", "taken"),
    [
        ("retention.ms", " -1 ", "-1"),
        ("retention.ms", "+5", "5"),
        ("segment.bytes", "4096", "4096"),
        ("min.cleanable.dirty.ratio", "0.25", "0.25"),
        ("min.cleanable.dirty.ratio", "1", "1.0"),
        ("message.timestamp.type", "LogAppendTime", "LogAppendTime"),
        ("cleanup.policy", "delete, compact", "compact,delete"),
        ("cleanup.policy", "compact,compact", "compact"),
        ("flush.messages", "1", "sync"),
        ("flush.messages", str(INT64_MAX), "os"),
        ("min.insync.replicas", "2", "2"),
        ("oncelog.replicas.per.actor", "auto", "auto"),
    ],
)
def test_a_value_becomes_one_of_ours(name: str, given: str, taken: str) -> None:
    found = ours_of([(name, given)])
    assert list(found.values()) == [taken]
    built = TopicConfig.from_text(found)
    assert {name: str(getattr(built, name)) for name in found} == found


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("retention.ms", "-2"),
        ("retention.ms", "1_000"),
        ("retention.ms", "٣"),
        ("retention.ms", "1.5"),
        ("retention.ms", ""),
        ("retention.ms", str(2**63)),
        ("segment.bytes", "4095"),
        ("min.cleanable.dirty.ratio", "nan"),
        ("min.cleanable.dirty.ratio", "half"),
        ("message.timestamp.type", "createtime"),
        ("cleanup.policy", ""),
        ("cleanup.policy", "archive"),
        ("flush.messages", "100"),
        ("min.insync.replicas", "0"),
        ("no.such", "1"),
    ],
)
def test_a_value_that_is_not_allowed_is_refused_by_its_name(name: str, given: str) -> None:
    with pytest.raises(InvalidSettingError) as refusal:
        ours_of([(name, given)])
    assert str(refusal.value).startswith(name)
    assert "; " in str(refusal.value)


def test_what_the_controller_says_is_told_with_kafkas_names() -> None:
    said = "min_compaction_lag_ms=5 is above max_compaction_lag_ms=3; retention_ms_ms=1"
    told = "min.compaction.lag.ms=5 is above max.compaction.lag.ms=3; retention_ms_ms=1"
    assert in_kafkas_words(said) == told
    assert in_kafkas_words(None) is None


# --- topics -----------------------------------------------------------------------------------


def test_a_topic_shows_all_its_settings_and_where_they_are_from(play: Play) -> None:
    async def story(world: AdminCluster) -> None:
        await world.create(settings=(("retention_ms", "7"), ("flush", "os")))
        found = await rows(world)
        assert found.keys() == TOPIC_SETTINGS.keys()
        given = {name for name, one in found.items() if one.config_source == Source.TOPIC}
        assert given == {"retention.ms", "flush.messages"}
        assert {found[name].config_source for name in found.keys() - given} == {Source.DEFAULT}
        assert found["retention.ms"].value == "7"
        assert found["flush.messages"].value == str(INT64_MAX)
        assert found["cleanup.policy"].value == "delete"
        assert found["compression.type"].value == "producer"
        assert found["compression.type"].read_only
        assert not found["retention.ms"].read_only
        kinds = {name: found[name].config_type for name in ("retention.ms", "cleanup.policy")}
        assert kinds == {"retention.ms": Kind.LONG, "cleanup.policy": Kind.LIST}
        assert not any(one.synonyms or one.documentation for one in found.values())

    play(story)


def test_the_in_sync_replicas_that_auto_means_are_shown_as_a_number(play: Play) -> None:
    async def story(world: AdminCluster) -> None:
        await world.join(2, 3)
        await world.create("one", "1" * 32, replication_factor=1)
        await world.create("three", "3" * 32, replication_factor=3)
        for name, minimum in (("one", "1"), ("three", "2")):
            found = (await rows(world, name))["min.insync.replicas"]
            assert (found.value, found.config_source) == (minimum, Source.DEFAULT)

    play(story)


def test_a_replica_that_moves_away_does_not_count() -> None:
    moving = PartitionMetadata(
        partition=0, leader=1, leader_epoch=0, replicas=(1, 2, 3), isr=(1, 2, 3), removing=(3,)
    )
    topic = TopicMetadata(name="flights", topic_id="f" * 32, partitions=(moving,))
    assert replication_factor_of(topic) == 2


def test_synonyms_and_documentation_come_if_they_are_asked_for(play: Play) -> None:
    async def story(world: AdminCluster) -> None:
        await world.create(settings=(("retention_ms", "7"),))
        found = await rows(world, include_synonyms=True, include_documentation=True)
        synonyms = {
            name: [(one.name, one.value, one.source) for one in found[name].synonyms]
            for name in ("retention.ms", "segment.bytes", "remote.storage.enable")
        }
        assert synonyms == {
            "retention.ms": [
                ("retention.ms", "7", Source.TOPIC),
                ("log.retention.ms", "604800000", Source.DEFAULT),
            ],
            "segment.bytes": [("log.segment.bytes", "268435456", Source.DEFAULT)],
            "remote.storage.enable": [],
        }
        assert all(one.documentation for one in found.values())

    play(story)


def test_only_the_settings_that_are_named_are_shown(play: Play) -> None:
    async def story(world: AdminCluster) -> None:
        await world.create()
        assert set(await rows(world, keys=["segment.ms", "none"])) == {"segment.ms"}
        assert len(await rows(world, keys=[])) == len(TOPIC_SETTINGS)

    play(story)


def test_internal_topics_are_shown_as_they_are(tmp_path: Path) -> None:
    config = dataclasses.replace(kafka_admin.ACTORS_ALONE, offsets_topic_segment_bytes=8_192)

    async def story(world: AdminCluster) -> None:
        found = await rows(world, CONSUMER_OFFSETS_TOPIC)
        assert found["cleanup.policy"].value == "compact"
        assert found["segment.bytes"].value == "8192"
        found = await rows(world, TRANSACTION_STATE_TOPIC)
        assert found["segment.bytes"].value == "4194304"

    kafka_admin.play(tmp_path, story, config)


def test_resources_that_there_are_not_are_told_one_by_one(play: Play) -> None:
    async def story(world: AdminCluster) -> None:
        await world.create("secret", "5" * 32)
        await world.create()
        who = Acl(
            principal="User:ann",
            resource=Resource.TOPIC,
            name="flights",
            operation=Operation.DESCRIBE,
        )
        world.allow(*(structs.replace(who, name=name) for name in ("flights", "delays", "no/name")))
        names = ["flights", "secret", "delays", "no/name"]
        resources = [DescribeConfigsResource(TOPIC, name, None) for name in names]
        resources += [DescribeConfigsResource(BROKER, "7"), DescribeConfigsResource(BROKER, "x")]
        resources += [DescribeConfigsResource(BROKER, ""), DescribeConfigsResource(32, "group")]
        request = DescribeConfigsRequest(resources)
        results = (await world.ask(ApiKey.DESCRIBE_CONFIGS, request)).results
        assert [ErrorCode(one.error_code) for one in results] == [
            ErrorCode.NONE,
            ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            ErrorCode.INVALID_REQUEST,
            ErrorCode.INVALID_REQUEST,
            ErrorCode.NONE,
            ErrorCode.INVALID_REQUEST,
        ]
        assert [bool(one.configs) for one in results] == [True] + [False] * 7
        assert all(bool(one.error_message) == bool(one.error_code) for one in results)
        assert len(world.requests("metadata")) == 1

    play(story)


def test_without_a_controller_every_resource_has_its_error(play: Play) -> None:
    async def story(world: AdminCluster) -> None:
        world.failing["metadata"] = [ErrorCode.NETWORK_EXCEPTION] * 1_000
        assert (await described(world)).error_code == ErrorCode.NOT_CONTROLLER
        assert (await described(world, "1", BROKER)).error_code == ErrorCode.NOT_CONTROLLER
        assert await increment(world) == (
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            "there is no topic 'flights'",
        )

    play(story)


# --- brokers ----------------------------------------------------------------------------------


def test_a_broker_shows_the_clusters_settings_by_kafkas_names(tmp_path: Path) -> None:
    config = dataclasses.replace(
        kafka_admin.ACTORS_ALONE,
        transaction_max_timeout_ms=5_000,
        transaction_two_phase_commit_enable=True,
        kafka_num_partitions=4,
        kafka_auto_create_topics=True,
    )

    async def story(world: AdminCluster) -> None:
        await world.join(2)
        found = await rows(world, "2", kind=BROKER, include_synonyms=True)
        shown = {
            name: (found[name].value, found[name].config_source, found[name].config_type)
            for name in (
                "transaction.max.timeout.ms",
                "transaction.two.phase.commit.enable",
                "num.partitions",
                "auto.create.topics.enable",
                "oncelog.calls",
                "oncelog.audit.allowed",
                "oncelog.token.keys",
                "default.replication.factor",
                "log.retention.ms",
                "min.insync.replicas",
                "node.id",
                "broker.id",
                "log.dirs",
                "broker.rack",
            )
        }
        assert shown == {
            "transaction.max.timeout.ms": ("5000", Source.STATIC_BROKER, Kind.INT),
            "transaction.two.phase.commit.enable": ("true", Source.STATIC_BROKER, Kind.BOOLEAN),
            "num.partitions": ("4", Source.STATIC_BROKER, Kind.INT),
            "auto.create.topics.enable": ("true", Source.STATIC_BROKER, Kind.BOOLEAN),
            "oncelog.calls": ("connections", Source.DEFAULT, Kind.STRING),
            "oncelog.audit.allowed": ("false", Source.DEFAULT, Kind.BOOLEAN),
            "oncelog.token.keys": (None, Source.DEFAULT, Kind.STRING),
            "default.replication.factor": ("2", Source.DEFAULT, Kind.INT),
            "log.retention.ms": ("604800000", Source.DEFAULT, Kind.LONG),
            "min.insync.replicas": ("1", Source.DEFAULT, Kind.INT),
            "node.id": ("2", Source.STATIC_BROKER, Kind.INT),
            "broker.id": ("2", Source.STATIC_BROKER, Kind.INT),
            "log.dirs": ("/data", Source.STATIC_BROKER, Kind.LIST),
            "broker.rack": (None, Source.STATIC_BROKER, Kind.STRING),
        }
        assert all(one.read_only for one in found.values())
        assert [
            (one.name, one.value, one.source)
            for one in found["transaction.max.timeout.ms"].synonyms
        ] == [
            ("transaction.max.timeout.ms", "5000", Source.STATIC_BROKER),
            ("transaction.max.timeout.ms", "900000", Source.DEFAULT),
        ]

    kafka_admin.play(tmp_path, story, config)


# --- altering ---------------------------------------------------------------------------------


def test_increments_change_what_they_name_and_nothing_else(play: Play) -> None:
    async def story(world: AdminCluster) -> None:
        await world.create(settings=(("retention_ms", "7"), ("segment_ms", "9")))
        done = await increment(
            world,
            ("retention.ms", DELETE, None),
            ("max.message.bytes", SET, "1000"),
            ("flush.messages", SET, str(INT64_MAX)),
            ("compression.type", SET, "producer"),
            ("unclean.leader.election.enable", DELETE, "whatever"),
            ("cleanup.policy", APPEND, "compact"),
        )
        assert done == (0, "")
        assert settings(world) == {
            "segment_ms": "9",
            "max_message_bytes": "1000",
            "flush": "os",
            "cleanup_policy": "compact,delete",
        }
        assert await increment(world, ("cleanup.policy", SUBTRACT, "delete")) == (0, "")
        assert settings(world)["cleanup_policy"] == "compact"

    play(story)


@pytest.mark.parametrize(
    ("change", "code", "told"),
    [
        (("retention.ms", SET, "soon"), ErrorCode.INVALID_CONFIG, "retention.ms='soon'"),
        (("retention.mss", SET, "5"), ErrorCode.INVALID_CONFIG, "did you mean retention.ms?"),
        (("retention.mss", DELETE, None), ErrorCode.INVALID_CONFIG, "retention.mss"),
        (("compression.type", SET, "gzip"), ErrorCode.INVALID_CONFIG, "'producer'"),
        (("retention.ms", APPEND, "5"), ErrorCode.INVALID_CONFIG, "is not a list"),
        (("cleanup.policy", APPEND, "keep"), ErrorCode.INVALID_CONFIG, "compact, delete"),
        (("cleanup.policy", SUBTRACT, "delete"), ErrorCode.INVALID_CONFIG, "cleanup.policy=''"),
        (
            ("leader.replication.throttled.replicas", APPEND, "0:1"),
            *(ErrorCode.INVALID_CONFIG, "leader.replication.throttled.replicas='0:1'"),
        ),
        (("min.insync.replicas", SET, "2"), ErrorCode.INVALID_CONFIG, "min.insync.replicas=2"),
        (("retention.ms", SET, None), ErrorCode.INVALID_REQUEST, "null"),
        (("retention.ms", 9, "5"), ErrorCode.INVALID_REQUEST, "operation 9"),
    ],
)
def test_a_change_that_is_not_possible_changes_nothing(
    play: Play, change: tuple[str, int, str | None], code: ErrorCode, told: str
) -> None:
    async def story(world: AdminCluster) -> None:
        await world.create(settings=(("segment_ms", "9"),))
        error, text = await increment(world, ("segment.bytes", SET, "5000"), change)
        assert error == code
        assert told in text
        assert settings(world) == {"segment_ms": "9"}

    play(story)


def test_resources_that_cannot_be_altered_are_refused_with_the_reason(play: Play) -> None:
    async def story(world: AdminCluster) -> None:
        await world.create()
        change = ("retention.ms", SET, "5")
        broker = await increment(world, change, kind=BROKER, name="1")
        assert broker[0] == ErrorCode.INVALID_REQUEST
        assert "of the cluster" in broker[1]
        logger = await increment(world, change, kind=8, name="1")
        assert (logger[0], "resource type 8" in logger[1]) == (ErrorCode.INVALID_REQUEST, True)
        every = await increment(world, change, name="")
        assert every[0] == ErrorCode.INVALID_REQUEST
        internal = await increment(world, change, name=CONSUMER_OFFSETS_TOPIC)
        assert internal[0] == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert "internal" in internal[1]
        unknown = await increment(world, change, name="delays")
        assert unknown == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there is no topic 'delays'")
        twice = await increment(world, change, ("retention.ms", DELETE, None))
        assert (twice[0], "retention.ms" in twice[1]) == (ErrorCode.INVALID_REQUEST, True)

    play(story)


def test_a_resource_that_is_there_twice_is_not_altered(play: Play) -> None:
    async def story(world: AdminCluster) -> None:
        await world.create()
        await world.create("delays", "d" * 32)
        config = [IncrementalConfig("retention.ms", SET, "5")]
        names = ["flights", "delays", "flights"]
        resources = [IncrementalResource(TOPIC, name, config) for name in names]
        request = IncrementalAlterConfigsRequest(resources)
        response = await world.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, request)
        wrong = ErrorCode.INVALID_REQUEST
        assert [one.error_code for one in response.responses] == [wrong, 0, wrong]
        assert (settings(world), dict(world.topic("delays").settings)) == (
            {},
            {"retention_ms": "5"},
        )

    play(story)


def test_a_replacement_resets_what_it_does_not_name(play: Play) -> None:
    async def story(world: AdminCluster) -> None:
        given = (("retention_ms", "7"), ("flush", "os"), ("replicas_per_actor", "3"))
        await world.create(settings=given)
        assert await replace(world, segment_ms="9", compression_type="producer") == (0, "")
        assert settings(world) == {"segment_ms": "9"}
        error, text = await replace(world, segment_ms="10", compression_type="gzip")
        assert (error, "'producer'" in text) == (ErrorCode.INVALID_CONFIG, True)
        error, text = await replace(world, segment_ms=None)
        assert (error, "segment.ms" in text) == (ErrorCode.INVALID_REQUEST, True)
        assert settings(world) == {"segment_ms": "9"}

    play(story)


def test_what_is_only_validated_is_refused_alike_and_changes_nothing(play: Play) -> None:
    async def story(world: AdminCluster) -> None:
        await world.create()
        change = ("retention.ms", SET, "5")
        assert await increment(world, change, validate_only=True) == (0, "")
        assert await replace(world, True, retention_ms="5") == (0, "")
        wrong = await increment(world, ("min.insync.replicas", SET, "2"), validate_only=True)
        assert wrong[0] == ErrorCode.INVALID_CONFIG
        assert settings(world) == {}

    play(story)


def test_who_may_not_alter_a_topic_is_told_so(play: Play) -> None:
    async def story(world: AdminCluster) -> None:
        await world.create()
        world.allow()
        error, text = await increment(world, ("retention.ms", SET, "5"))
        assert (error, "User:ann" in text) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, True)
        assert world.requests("alter_topic") == []

    play(story)
