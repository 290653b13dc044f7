"""What Ray prints in a program's terminal: what the program's own tasks and actors do, no more.

Ray prints there what the tasks and actors of a program write, and that a process of theirs has
died. The log's actors are started by a program too, so it would read about each of their deaths and
restarts, which concern nobody: they restart by themselves. ``keep_own_output`` leaves out those
lines, and Ray's news about its autoscaler. ``oncelog logs`` shows what the log's actors write.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from oncelog.actors.interfaces import ACTOR_CLASSES, CONTROLLER_ACTOR, WORKER_ACTORS

NAME_MARK: Final = ":actor_name:"
"""Begins a line of such a file that says whose the next lines are: a class, then an actor."""

NAME_WITHIN_BYTES: Final = 65_536
"""The name is so near the beginning of the file."""

_DEATH: Final = re.compile(r"worker died or was killed.*?Worker ID: ([0-9a-f]+)", re.DOTALL)
_LOG_ACTOR: Final = re.compile(
    rf"{CONTROLLER_ACTOR}|broker:\d+|(partitions|transaction|group|gateway):\d+@\d+"
    r"|partition:[A-Za-z0-9._-]+-\d+@\d+"
)
"""The whole name: a program's own actor may be called ``group:of-three``."""

_OF_MANY_ACTORS: Final = "worker processes have been started"
_PRINTER: Final = "ray_print_logs"


def keep_own_output() -> None:
    """Leave out what Ray prints about the log's own processes, from now on."""
    from ray._private import worker
    from ray._private.ray_logging import global_worker_stdstream_dispatcher as dispatcher

    if not isinstance(worker.print_to_stdstream, OwnOutput):
        worker.print_to_stdstream = OwnOutput(worker.print_to_stdstream, _is_of_log)
    # A program that has connected to Ray before: its printer was chosen then.
    for name, printer in tuple(dispatcher.handlers):
        if name == _PRINTER and not isinstance(_function_of(printer), OwnOutput):
            dispatcher.remove_handler(name)
            dispatcher.add_handler(name, OwnOutput(printer, _is_of_log))


def _function_of(printer: Any) -> Any:
    return printer.func if isinstance(printer, functools.partial) else printer


class OwnOutput:
    """Prints through ``printer``, a function of Ray, what is the program's own.

    ``is_of_log`` says whether the process of a worker id was one of the log's.
    """

    def __init__(self, printer: Callable[..., None], is_of_log: Callable[[str], bool]) -> None:
        self._print = printer
        self._is_of_log = is_of_log

    def __call__(self, data: Mapping[str, Any], *args: Any, **kwargs: Any) -> None:
        """Print lines; ``data`` says which, and whose."""
        lines = [line for line in data["lines"] if self._is_own(data, line)]
        if lines:
            self._print({**data, "lines": lines}, *args, **kwargs)

    def _is_own(self, data: Mapping[str, Any], line: str) -> bool:
        source = data.get("pid")
        if source == "autoscaler":
            return "Error:" in line or "Warning:" in line
        if source == "raylet":
            death = _DEATH.search(line)
            return _OF_MANY_ACTORS not in line and not (death and self._is_of_log(death[1]))
        return not is_log_actor(data.get("actor_name") or "")


def is_log_actor(name: str) -> bool:
    """Whether Ray's name of an actor, or that of its class, is one of the log's.

    While an actor begins, Ray tells its class alone; a class of the program of one of these names
    cannot be told apart.
    """
    return name in ACTOR_CLASSES or _LOG_ACTOR.fullmatch(name) is not None


def actor_of_file(path: Path) -> str:
    """The actor whose process has written the file; "" if it was none's, or cannot be read."""
    try:
        with path.open("rb") as file:
            head = file.read(NAME_WITHIN_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
    names = [line for line in head.splitlines() if line.startswith(NAME_MARK)]
    return names[-1].removeprefix(NAME_MARK) if names else ""


def process_files(directory: Path, worker_id: str = "*") -> list[Path]:
    """The files of a process in a directory of Ray's logs: its output and its errors.

    Ray moves those of processes that have ended to ``old``, once there are many.
    """
    name = f"worker-{worker_id}-*"
    return [*directory.glob(name), *directory.glob(f"old/{name}")]


def logs_directory() -> Path:
    """The directory of the logs of Ray's processes on this node."""
    from ray._private import worker

    node: Any = worker._global_node
    return Path(node.get_logs_dir_path())


def _is_of_log(worker_id: str) -> bool:
    """Whether a process that has died was an actor of the log, or a job's worker.

    Those restart by themselves. Of a process on another machine this is not known.
    """
    names = map(actor_of_file, process_files(logs_directory(), worker_id))
    return any(is_log_actor(name) or name.startswith(WORKER_ACTORS) for name in names)
