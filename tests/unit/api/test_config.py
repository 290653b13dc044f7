"""Settings are refused with their name, their value and what is allowed."""

from __future__ import annotations

from typing import Any, Literal, get_type_hints

import pytest

from oncelog.actors.config import ClusterConfig, TopicConfig
from oncelog.actors.option_types import ClusterOptions, TopicOptions
from oncelog.api.batching.interceptors import ConsumerInterceptor
from oncelog.api.config import ConsumerSettings, ProducerSettings
from oncelog.api.option_types import ConsumerOptions, ProducerOptions
from oncelog.storage.exceptions import InvalidSettingError
from oncelog.storage.model import IsolationLevel


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"acks": 2}, r"acks=2 .* 'all'"),
        ({"acks": True}, r"acks=True"),
        ({"linger_ms": -1}, r"linger_ms=-1 .* from 0"),
        ({"enrol_ahead_ms": -1}, r"enrol_ahead_ms=-1 .* from 0"),
        ({"linger_ms": "5"}, r"linger_ms='5'"),
        ({"batch_size": 0}, r"batch_size=0 .* from 1"),
        ({"max_in_flight_requests_per_connection": 6}, r"connection=6 .* from 1 to 5"),
        ({"compression_type": "brotli"}, r"compression_type='brotli' .* 'zstd'"),
        ({"transactional_id": ""}, r"transactional_id='' .* 1 to 1024 bytes"),
        ({"transactional_id": "x" * 1025}, r"1 to 1024 bytes"),
        ({"transactional_id": "x", "acks": 1}, r"acks=1 .* transactional"),
        *(
            (
                {"compression_type": name, "compression_level": level},
                rf"level={level} .* {allowed} with compression_type='{name}'",
            )
            for name, level, allowed in (
                ("gzip", 10, "1 to 9"),
                ("gzip", 0, "1 to 9"),
                ("lz4", 13, "1 to 12"),
                ("snappy", 1, "None"),
                ("none", 1, "None"),
            )
        ),
        ({"compression_type": "zstd", "compression_level": 23}, r"level=23 .* to 22"),
        ({"compression_level": True}, r"compression_level=True"),
        ({"delivery_timeout_ms": 30_000}, r"delivery_timeout_ms=30000 .* 30005"),
    ],
)
def test_an_impossible_producer_setting_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidSettingError, match=message):
        ProducerSettings.from_options(options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"isolation_level": "serializable"}, r"isolation_level='serializable' .* 'read_commit"),
        ({"auto_offset_reset": "begin"}, r"auto_offset_reset='begin' .* 'earliest'"),
        ({"order": "commit", "interceptors": [ConsumerInterceptor()]}, r"none with order='commit'"),
        ({"auto_offset_reset": "by_duration:1h"}, r"='by_duration:1h' .* PT1H30M"),
        ({"auto_offset_reset": "by_duration:-PT1H"}, r"'by_duration:-PT1H' .* not negative"),
        ({"auto_offset_reset": 7}, r"auto_offset_reset=7 .* 'earliest'"),
        ({"enable_auto_commit": 1}, r"enable_auto_commit=1 .* True or False"),
        (
            {"heartbeat_interval_ms": 45_000},
            r"heartbeat_interval_ms=45000 .* session_timeout_ms=45000",
        ),
        ({"group_instance_id": "a"}, r"group_instance_id='a' .* group_id"),
        ({"max_poll_records": 0}, r"max_poll_records=0"),
        ({"group_id": ""}, r"group_id=''"),
        *(
            (
                {"partition_assignment_strategy": given},
                r"strategy=.*one or several of 'range', 'roundrobin', 'sticky'",
            )
            for given in ("eager", (), ["range", "range"], ["range", []], None)
        ),
    ],
)
def test_an_impossible_consumer_setting_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidSettingError, match=message):
        ConsumerSettings.from_options(options)


@pytest.mark.parametrize("in_flight", [0, 6])
def test_no_more_batches_are_on_their_way_than_a_leader_remembers(in_flight: int) -> None:
    with pytest.raises(InvalidSettingError, match=f"connection={in_flight} .* from 1 to 5"):
        ProducerSettings(max_in_flight_requests_per_connection=in_flight)
    for allowed in (1, 5):
        ProducerSettings(max_in_flight_requests_per_connection=allowed)


def test_the_delivery_timeout_covers_linger_and_one_request() -> None:
    timeouts = {"linger_ms": 20, "request_timeout_ms": 100}
    ProducerSettings(delivery_timeout_ms=120, **timeouts)
    message = r"delivery_timeout_ms=119 .* at least linger_ms \+ request_timeout_ms = 120"
    with pytest.raises(InvalidSettingError, match=message):
        ProducerSettings(delivery_timeout_ms=119, **timeouts)


def test_an_unknown_setting_is_refused_with_the_nearest_known() -> None:
    with pytest.raises(InvalidSettingError, match=r"linger='5'.*did you mean linger_ms"):
        ProducerSettings.from_options({"linger": "5"})
    with pytest.raises(InvalidSettingError, match=r"did you mean group_id"):
        ConsumerSettings.from_options({"group.id": "g"})
    with pytest.raises(InvalidSettingError, match=r"known are .*transactional_id"):
        ProducerSettings.from_options({"zzz": 1})


@pytest.mark.parametrize(
    ("policy", "age_ms"),
    [("latest", None), ("by_duration:PT1H", 3_600_000), ("by_duration:P1DT0.5S", 86_400_500)],
)
def test_a_reset_by_age_is_an_iso_duration(policy: str, age_ms: int | None) -> None:
    assert ConsumerSettings(auto_offset_reset=policy).reset_age_ms == age_ms


def test_acks_all_is_minus_one() -> None:
    assert ProducerSettings(acks="all").acks_count == -1


def test_the_isolation_level_may_be_text() -> None:
    settings = ConsumerSettings.from_options({"isolation_level": "read_uncommitted"})
    assert settings.isolation_level is IsolationLevel.READ_UNCOMMITTED


LEVEL_AS_TEXT = Literal["read_committed", "read_uncommitted"]


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        (ProducerOptions, get_type_hints(ProducerSettings)),
        (
            ConsumerOptions,
            get_type_hints(ConsumerSettings) | {"isolation_level": IsolationLevel | LEVEL_AS_TEXT},
        ),
        (ClusterOptions, get_type_hints(ClusterConfig)),
        (TopicOptions, {n: kind | None for n, kind in get_type_hints(TopicConfig).items()}),
    ],
)
def test_editors_are_told_every_setting_and_its_type(
    options: type, settings: dict[str, Any]
) -> None:
    assert get_type_hints(options) == settings
