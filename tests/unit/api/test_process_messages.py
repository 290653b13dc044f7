from __future__ import annotations

import pytest

from oncelog.api.process_messages import ProcessConfig, WorkerState
from oncelog.storage.exceptions import InvalidSettingError


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batch_format", "pandas"),
        ("commit_interval_ms", -1),
        ("records_max", 0),
        ("max_function_failures", True),
        ("function", None),
        ("group_id", ""),
    ],
)
def test_an_impossible_setting_is_refused_by_name(name, value):
    settings = {
        "source": "in",
        "sink": "out",
        "group_id": "g",
        "worker_index": 0,
        "function": len,
        name: value,
    }

    with pytest.raises(InvalidSettingError, match=name):
        ProcessConfig(**settings)


def test_a_worker_that_is_stopped_fenced_or_failed_has_ended():
    ended = {state for state in WorkerState if state.is_ended}

    assert ended == {WorkerState.STOPPED, WorkerState.FENCED, WorkerState.FAILED}
