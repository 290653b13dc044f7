from __future__ import annotations

import pytest

from oncelog.storage.log_settings import UNLIMITED, LogSettings, RetentionPolicy


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("segment_bytes", 0),
        ("segment_bytes", 2**31),
        ("segment_ms", 0),
        ("index_interval_bytes", -1),
    ],
)
def test_impossible_setting_is_refused_by_name(name, value):
    with pytest.raises(ValueError, match=f"{name}={value}"):
        LogSettings(**{name: value})


def test_a_policy_keeps_everything_unless_told_otherwise():
    assert RetentionPolicy() == RetentionPolicy(time_ms=UNLIMITED, size_bytes=UNLIMITED)
