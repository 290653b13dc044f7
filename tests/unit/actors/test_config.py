"""Settings: what is refused, and that text round-trips."""

from __future__ import annotations

import pytest

from oncelog.actors.config import ClusterConfig, TopicConfig, build_settings
from oncelog.storage.exceptions import InvalidSettingError


def test_an_unknown_setting_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidSettingError, match=r"offset_partitions=2 .*offsets_partitions"):
        build_settings(ClusterConfig, {"offset_partitions": 2})


@pytest.mark.parametrize("value", [0, 1_001, "2", 2.0, True])
def test_an_impossible_number_is_refused_with_what_is_allowed(value: object) -> None:
    with pytest.raises(InvalidSettingError, match="from 1 to 1000"):
        build_settings(ClusterConfig, {"offsets_partitions": value})


def test_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(InvalidSettingError, match="is above"):
        ClusterConfig(group_min_session_timeout_ms=10, group_max_session_timeout_ms=9)


def test_a_choice_outside_the_list_is_refused_with_the_list() -> None:
    with pytest.raises(InvalidSettingError, match=r"flush='never'.*sync, os"):
        TopicConfig(flush="never")


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
