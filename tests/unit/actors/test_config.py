"""Settings: what is refused, and that text round-trips."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.actors.config import (
    TRANSACTION_TIMEOUT_LIMIT_MS,
    BrokerConfig,
    ClusterConfig,
    GatewayConfig,
    HostConfig,
    ReplicaConfig,
    TopicConfig,
    internal_topic_config,
)
from oncelog.actors.protocol.tickets import (
    TICKET_GRACE_MS,
    TICKET_LIFETIME_MAX_MS,
    ClusterKeys,
    TicketVerdict,
    check_ticket,
    issue_ticket,
)
from oncelog.storage.exceptions import InvalidSettingError
from oncelog.storage.log_settings import RetentionPolicy
from oncelog.storage.settings import build


def test_an_unknown_setting_is_refused_with_the_nearest_known() -> None:
    told = r"offset_partitions=2 is not a setting; did you mean offsets_partitions\?"
    with pytest.raises(InvalidSettingError, match=told):
        build(ClusterConfig, {"offset_partitions": 2})


@pytest.mark.parametrize("value", [0, 1_001, "2", 2.0, True])
def test_an_impossible_number_is_refused_with_what_is_allowed(value: object) -> None:
    with pytest.raises(InvalidSettingError, match="from 1 to 1000"):
        build(ClusterConfig, {"offsets_partitions": value})


def test_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(InvalidSettingError, match="is above"):
        ClusterConfig(group_min_session_timeout_ms=10, group_max_session_timeout_ms=9)


def test_a_choice_outside_the_list_is_refused_with_the_list() -> None:
    with pytest.raises(InvalidSettingError, match=r"flush='never'.*'sync', 'os'"):
        TopicConfig(flush="never")


def test_the_road_of_calls_is_one_of_two():
    assert ClusterConfig().calls == "connections"
    with pytest.raises(InvalidSettingError, match=r"calls='grpc'.*'connections', 'ray'"):
        ClusterConfig(calls="grpc")


def test_topic_settings_round_trip_through_text() -> None:
    config = TopicConfig(segment_bytes=8_192, flush="os")
    assert config.to_text() == (("segment_bytes", "8192"), ("flush", "os"))
    assert TopicConfig.from_text(dict(config.to_text())) == config


@pytest.mark.parametrize(
    ("name", "text"), [("segment_bytes", "many"), ("segment_bytes", "1"), ("retention", "1")]
)
def test_topic_settings_from_bad_text_are_refused(name: str, text: str) -> None:
    with pytest.raises(InvalidSettingError, match=name):
        TopicConfig.from_text({name: text})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cleanup_policy", "none"),
        ("cleanup_policy", "delete,compact"),
        ("retention_ms", -2),
        ("retention_ms", 2**63),
        ("retention_bytes", -2),
        ("min_compaction_lag_ms", -1),
        ("max_compaction_lag_ms", -1),
        ("delete_retention_ms", -1),
        ("min_cleanable_dirty_ratio", 1.01),
        ("min_cleanable_dirty_ratio", -0.01),
        ("min_cleanable_dirty_ratio", float("nan")),
        ("min_cleanable_dirty_ratio", True),
        ("message_timestamp_before_max_ms", -1),
        ("message_timestamp_after_max_ms", 2**63),
    ],
)
def test_an_impossible_topic_setting_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(InvalidSettingError, match=f"{name}=.*is not allowed; give"):
        TopicConfig(**{name: value})


def test_compaction_lags_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(InvalidSettingError, match="min_compaction_lag_ms=5 is above"):
        TopicConfig(min_compaction_lag_ms=5, max_compaction_lag_ms=4)


def test_a_ratio_round_trips_through_text() -> None:
    config = TopicConfig(min_cleanable_dirty_ratio=0.25, cleanup_policy="compact")
    assert TopicConfig.from_text(dict(config.to_text())) == config
    assert TopicConfig.from_text({"min_cleanable_dirty_ratio": "1"}).min_cleanable_dirty_ratio == 1
    with pytest.raises(InvalidSettingError, match="give a number"):
        TopicConfig.from_text({"min_cleanable_dirty_ratio": "half"})


@pytest.mark.parametrize(
    ("policy", "is_compacted", "retention"),
    [
        ("delete", False, RetentionPolicy(time_ms=5, size_bytes=7)),
        ("compact", True, RetentionPolicy()),
        ("compact,delete", True, RetentionPolicy(time_ms=5, size_bytes=7)),
    ],
)
def test_the_policy_says_what_goes(
    policy: str, is_compacted: bool, retention: RetentionPolicy
) -> None:
    config = TopicConfig(cleanup_policy=policy, retention_ms=5, retention_bytes=7)
    assert (config.is_compacted, config.retention) == (is_compacted, retention)


def test_internal_logs_lose_nothing_by_age() -> None:
    for topic in ("__consumer_offsets", "__transaction_state"):
        config = internal_topic_config(topic, ClusterConfig())
        assert (config.is_compacted, config.retention) == (True, RetentionPolicy())
    metadata = internal_topic_config("__cluster_metadata", ClusterConfig())
    assert (metadata.is_compacted, metadata.retention) == (False, RetentionPolicy())


@pytest.mark.parametrize(
    "name",
    ["log_retention_check_interval_ms", "log_cleaner_backoff_ms", "log_checkpoint_interval_ms"],
)
def test_work_that_never_rests_is_refused(name: str) -> None:
    with pytest.raises(InvalidSettingError, match=f"{name}=0"):
        ClusterConfig(**{name: 0})


def test_producers_are_remembered_for_longer_than_any_ticket_lives() -> None:
    least_ms = TICKET_LIFETIME_MAX_MS + TICKET_GRACE_MS
    assert ClusterConfig(producer_id_expiration_ms=least_ms).producer_id_expiration_ms == least_ms
    with pytest.raises(InvalidSettingError, match=r"producer_id_expiration_ms=.*46800000"):
        ClusterConfig(producer_id_expiration_ms=least_ms - 1)


def test_no_transaction_may_be_open_for_longer_than_its_tickets_live() -> None:
    """A ticket counts from the transaction's begin, so one for a late partition is the same age."""
    ClusterConfig(transaction_max_timeout_ms=TRANSACTION_TIMEOUT_LIMIT_MS)
    for timeout_ms in (TRANSACTION_TIMEOUT_LIMIT_MS + 1, 0):
        with pytest.raises(InvalidSettingError, match=r"transaction_max_timeout_ms=.*39600000"):
            ClusterConfig(transaction_max_timeout_ms=timeout_ms)


@given(st.integers(1, TRANSACTION_TIMEOUT_LIMIT_MS), st.data())
def test_every_ticket_of_an_open_transaction_is_alive(timeout_ms: int, data: Any) -> None:
    config = ClusterConfig(transaction_max_timeout_ms=timeout_ms)
    age_ms = data.draw(st.integers(0, timeout_ms + TICKET_GRACE_MS))
    owner: dict[str, Any] = {
        "producer_id": 7,
        "producer_epoch": 3,
        "transactional_id": "loader",
        "topic_id": "topic",
        "partition": 0,
    }
    ticket = issue_ticket(
        cluster_key=b"k" * 32,
        issued_ms=1_700_000_000_000,
        transaction_timeout_ms=config.transaction_max_timeout_ms,
        **owner,
    )
    keys = ClusterKeys(current=b"k" * 32)
    verdict = check_ticket(ticket, keys=keys, now_ms=1_700_000_000_000 + age_ms, **owner)
    assert verdict is TicketVerdict.VALID


@pytest.mark.parametrize("value", [0, -1, 1_001, True, 1.5, "many", None])
def test_replicas_per_actor_that_cannot_be_is_refused_with_its_value(value: Any):
    with pytest.raises(
        InvalidSettingError, match=f"replicas_per_actor={value!r}".replace(".", r"\.")
    ):
        ClusterConfig(replicas_per_actor=value)
    with pytest.raises(InvalidSettingError, match="from 1 to 1000, or one of 'auto', 'cluster'"):
        TopicConfig(replicas_per_actor=value)


def test_replicas_per_actor_is_kept_as_text_and_read_back():
    assert ClusterConfig().replicas_per_actor == "auto"
    assert ClusterConfig(replicas_per_actor="7").replicas_per_actor == 7
    for value in (1, 7, "auto", "cluster"):
        config = TopicConfig(replicas_per_actor=value)
        assert TopicConfig.from_text(dict(config.to_text())) == config
    with pytest.raises(InvalidSettingError):
        ClusterConfig(replicas_per_actor="cluster")


STARTED = {"broker_id": 1, "data_dir": "/data"}
PICKLED = [
    ClusterConfig(kafka_auto_create_topics=True),
    ReplicaConfig(topic="flights", partition=0, **STARTED, server_secret=b"s"),
    HostConfig(number=1, **STARTED, server_secret=b"s"),
    BrokerConfig(**STARTED, server_secret=b"s"),
    GatewayConfig(number=0, **STARTED, server_secret=b"s"),
]
"""What Ray keeps of an actor to restart it; the last field is not its default."""


@pytest.mark.parametrize("config", PICKLED, ids=lambda one: type(one).__name__)
def test_what_an_earlier_build_pickled_has_defaults_for_what_is_new(config: Any) -> None:
    assert pickle.loads(pickle.dumps(config)) == config
    kind, state = type(config), config.__getstate__()
    earlier = kind.__new__(kind)
    earlier.__setstate__(state[:-1])
    assert earlier != config
    default = False if kind is ClusterConfig else b""
    assert earlier.__getstate__() == [*state[:-1], default]
    assert pickle.loads(pickle.dumps(earlier)) == earlier


def test_a_default_that_is_made_is_made_for_it_too() -> None:
    config = BrokerConfig(**STARTED)
    earlier = BrokerConfig.__new__(BrokerConfig)
    earlier.__setstate__(config.__getstate__()[:2])
    assert earlier == config
