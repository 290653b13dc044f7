"""What Ray prints about the log's own processes is left out of a program's terminal."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

from oncelog.actors.interfaces import (
    ACTOR_CLASSES,
    CONTROLLER_ACTOR,
    LOG_ACTORS,
    actor_of,
    broker_actor,
    gateway_actor,
    host_actor,
)
from oncelog.actors.launch import processes
from oncelog.actors.process.ray_output import (
    OwnOutput,
    actor_of_file,
    is_log_actor,
    keep_own_output,
)
from oncelog.storage.model import (
    CONSUMER_OFFSETS_TOPIC,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
)

DEATH = (
    "A worker died or was killed while executing a task by an unexpected system error. To "
    "troubleshoot the problem, check the logs for the dead worker. Lease ID: 01 Worker ID: {} "
    "Node ID: e9 Worker IP address: 10.0.0.1"
)
MANY = "WARNING: 24 PYTHON worker processes have been started on node: a with address: 10.0.0.1."


@pytest.mark.parametrize(
    ("source", "line", "is_shown"),
    [
        ({"pid": "raylet"}, DEATH.format("aa"), False),
        ({"pid": "raylet"}, DEATH.format("bb"), True),
        ({"pid": "raylet"}, MANY, False),
        ({"pid": "raylet"}, "The node with node id: 4e has been marked dead because", True),
        ({"pid": "autoscaler"}, "Tip: use `ray status`", False),
        ({"pid": "autoscaler"}, "Error: No available node types can fulfill {'GPU': 1}", True),
        ({"pid": 7, "actor_name": "partition:flights-0@1"}, "begun", False),
        ({"pid": 7, "actor_name": "ControllerProcess"}, "begun", False),
        ({"pid": 7, "actor_name": "process:billing-0"}, "the function prints", True),
        ({"pid": 7, "actor_name": "controllers"}, "an actor of the program", True),
        ({"pid": 7, "task_name": "load", "actor_name": None}, "a task prints", True),
    ],
)
def test_only_what_is_of_the_program_is_printed(
    source: dict[str, Any], line: str, is_shown: bool
) -> None:
    printed: list[Any] = []
    output = OwnOutput(lambda data, **_: printed.extend(data["lines"]), {"aa"}.__contains__)
    output({**source, "lines": [line, line], "is_err": True}, ignore_prefix=False)
    assert printed == ([line, line] if is_shown else [])


def test_the_classes_of_the_logs_actors_are_known() -> None:
    kinds = [one for one in vars(processes).values() if isinstance(one, type)]
    ours = {one.__name__ for one in kinds if issubclass(one, processes.ActorProcess)}
    assert ours - {"ActorProcess", "ReplicaProcess"} == {*ACTOR_CLASSES}
    assert all(map(is_log_actor, ACTOR_CLASSES))


def test_the_names_of_the_logs_actors_are_known_and_no_others_that_begin_like_them() -> None:
    names = [
        CONTROLLER_ACTOR,
        broker_actor(12),
        host_actor(3, 12),
        gateway_actor(0, 12),
        *(
            actor_of(TopicPartition(topic, 3), 12)
            for topic in ("flights.v-1", TRANSACTION_STATE_TOPIC, CONSUMER_OFFSETS_TOPIC)
        ),
    ]
    for prefix in LOG_ACTORS:
        assert any(name.startswith(prefix) for name in names)
        assert not is_log_actor(f"{prefix}of the program")
    for name in names:
        assert is_log_actor(name)
        assert not is_log_actor(f"{name}x")
        assert not is_log_actor(f"my {name}")


def test_an_actor_is_known_by_the_last_name_at_the_beginning_of_its_file(tmp_path: Path) -> None:
    path = tmp_path / "worker-aa-ffffffff-1.err"
    path.write_text(":job_id:01\n:actor_name:HostProcess\nx\n:actor_name:partitions:1@1\ny\n")
    assert actor_of_file(path) == "partitions:1@1"
    path.write_text("only a task\n")
    assert actor_of_file(path) == ""
    assert actor_of_file(tmp_path / "gone") == ""


def test_rays_printers_are_replaced_once_also_of_a_program_that_is_connected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from ray._private import worker
    from ray._private.ray_logging import global_worker_stdstream_dispatcher as dispatcher

    def rays_printer(data: Any, ignore_prefix: bool) -> None:
        """Ray's."""

    before = functools.partial(rays_printer, ignore_prefix=False)
    monkeypatch.setattr(worker, "print_to_stdstream", rays_printer)
    monkeypatch.setattr(dispatcher, "handlers", [("ray_print_logs", before), ("other", before)])
    for _ in range(2):
        keep_own_output()
    assert isinstance(worker.print_to_stdstream, OwnOutput)
    assert worker.print_to_stdstream._print is rays_printer
    kept = dict(dispatcher.handlers)
    assert kept["other"] is before
    assert kept["ray_print_logs"]._print is before
    later = functools.partial(worker.print_to_stdstream, ignore_prefix=False)
    monkeypatch.setattr(dispatcher, "handlers", [("ray_print_logs", later)])
    keep_own_output()
    assert dispatcher.handlers == [("ray_print_logs", later)]
