from __future__ import annotations

import pytest

from oncelog.api.processing.loop import worker_settings
from oncelog.api.processing.messages import ProcessConfig, WorkerState
from oncelog.storage.exceptions import InvalidSettingError


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batch_format", "pandas"),
        ("commit_interval_ms", -1),
        ("max_poll_records", 0),
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


@pytest.mark.parametrize("name", ["name", "lifetime", "max_restarts", "placement_group", "num_cpu"])
def test_an_argument_of_ray_that_is_not_the_users_is_refused_by_name(name):
    with pytest.raises(InvalidSettingError, match=rf"ray_remote_args\['{name}'\].*num_gpus"):
        ProcessConfig(
            source="in",
            sink="out",
            group_id="g",
            worker_index=0,
            function=len,
            ray_remote_args={"num_cpus": 1, name: 1},
        )


def test_a_worker_that_is_stopped_fenced_or_failed_has_ended():
    ended = {state for state in WorkerState if state.is_ended}

    assert ended == {WorkerState.STOPPED, WorkerState.FENCED, WorkerState.FAILED}


def test_a_workers_clients_have_ids_that_a_restart_repeats():
    config = ProcessConfig(
        source="in",
        sink="out",
        group_id="g",
        worker_index=3,
        function=len,
        producer_settings={"transactional_id": "other", "linger_ms": 0},
        consumer_settings={"session_timeout_ms": 9_000},
    )

    producer, consumer = worker_settings(config)

    assert (producer.transactional_id, producer.linger_ms) == ("g-3", 0)
    assert (consumer.group_id, consumer.group_instance_id) == ("g", "g-3")
    assert consumer.session_timeout_ms == 9_000
    assert not consumer.enable_auto_commit
    assert consumer.auto_offset_reset == "earliest"
