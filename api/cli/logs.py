"""``oncelog logs``: what the process of an actor has written, on whichever node it is.

Ray keeps what a process writes in two files on its node, one for standard output and one for
standard error, which has the log. Their first lines name the actor. So the files of an earlier life
are found too, and those of an actor that is gone. They are read where they are: in this process, or
in a Ray task on their node. Neither needs Ray's dashboard.

One file: which actor is meant, where its files are, and what of them is shown.
"""

from __future__ import annotations

import asyncio
import difflib
import re
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NoReturn

import click

from oncelog.actors.interfaces import (
    CONTROLLER_ACTOR,
    LOG_ACTORS,
    NAMESPACE,
    WORKER_ACTORS,
    actor_of,
    holder_of,
    placements_of,
)
from oncelog.actors.process.ray_output import (
    NAME_MARK,
    actor_of_file,
    logs_directory,
    process_files,
)
from oncelog.actors.protocol.messages.cluster import MetadataReply, MetadataRequest
from oncelog.api.cli.arguments import Arguments, Command, WholeNumber, argument, flag, option
from oncelog.api.cli.connect import (
    cluster_options,
    find,
    join_ray,
    login_arguments,
    quiet_libraries,
)
from oncelog.api.cli.terminal import (
    CliError,
    EndedBySignal,
    UsageError,
    end_in_order,
    is_reader_gone,
    is_terminal,
    say,
    visible,
)
from oncelog.api.session.login import login_of
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import (
    CONSUMER_OFFSETS_TOPIC,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
)

LINES_DEFAULT: Final = 200
LINES_MAX: Final = 10_000
READ_MAX_BYTES: Final = 16 * 1_048_576
"""How much of the end of a file is searched for lines."""

REPLY_MAX_BYTES: Final = 1_048_576
"""How much of it is taken from another node at a time; the newest lines count."""

FILES_MAX: Final = 2_000
"""How many files of a node are searched for an actor's name, the newest first."""

METADATA_TIMEOUT_MS: Final = 10_000
NODE_TIMEOUT_S: Final = 30.0
FOLLOW_POLL_S: Final = 1.0
NEAREST_MAX: Final = 3

LEVELS: Final = {"DEBUG": 10, "INFO": 20, "WARNING": 30, "ERROR": 40, "CRITICAL": 50}

_RECORD: Final = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} ([A-Z]+) ")
_CRASH: Final = re.compile(r"\*\*\* |Fatal Python error|Traceback \(most recent|terminate called")
_MARKS: Final = (NAME_MARK, ":job_id:", ":task_name:")
_PLACE: Final = re.compile(
    r"(?P<kind>partition:|transaction:|group:)?(?P<rest>.+?)(?:@(?P<at>\d+))?"
)
_PARTITION: Final = re.compile(r"(?P<topic>.+)-(?P<number>\d+)")


@click.command(cls=Command)
@argument(
    "actor",
    "as `oncelog status` names it; flights-0 is the leader of that partition",
    metavar="ACTOR",
)
@flag("--previous", "that of the process before this one")
@option(
    "--lines",
    type=WholeNumber(1, LINES_MAX),
    default=LINES_DEFAULT,
    metavar="N",
    help=f"the last N lines (default: {LINES_DEFAULT})",
)
@option(
    "--level",
    type=click.Choice([name.lower() for name in LEVELS]),
    help="only this level, and what is above it",
)
@flag("--follow", "show what is written from now on, until interrupted")
@cluster_options
def logs(args: Arguments) -> int:
    """``oncelog logs``: find the actor and its files, print their ends, then follow them."""
    if args.follow and args.previous:
        raise UsageError(
            "a process that has ended writes nothing more", "leave out --follow or --previous"
        )
    quiet_libraries()
    end_in_order()
    join_ray(find(args).address)
    identity = login_of(**login_arguments(args)).identity()
    name = chosen(args.actor, running(), lambda topic: _metadata(topic, identity))
    wanted = Wanted(
        actor=name,
        is_previous=args.previous,
        line_count=args.lines,
        least_level=LEVELS[args.level.upper()] if args.level else 0,
    )
    life = _life(wanted)
    _introduce(name, life)
    _print(life)
    if args.follow:
        # A signal is the usual way to end it, so nothing is printed about it.
        try:
            _follow(wanted, life)
        except EndedBySignal as ended:
            return ended.status
    return 0


# --- which actor ------------------------------------------------------------------------------


def running() -> list[str]:
    """The names of all actors of the log and of jobs, in order."""
    from oncelog.actors.launch.processes import running_actors

    return sorted(
        name for name in running_actors() if name.startswith((*LOG_ACTORS, WORKER_ACTORS))
    )


def chosen(given: str, names: Sequence[str], metadata: Callable[[str], MetadataReply]) -> str:
    """The name of the actor that ``given`` means, among the ``names`` of those that run.

    A partition or a shard means its leader, or its replica on the broker that is named, or the host
    that holds it. ``metadata`` asks the controller about a topic.
    ``CliError`` if nothing or several are meant.
    """
    if given in names:
        return given
    tp, broker_id = _partition_of(given)
    reply = metadata(tp.topic) if tp is not None else None
    if tp is not None and reply is not None and reply.error is ErrorCode.NONE:
        holder = _holder(reply, tp, broker_id)
        if holder is not None:
            return holder
    candidates = [name for name in names if f":{given}@" in f":{name}"]
    candidates = candidates or [name for name in names if name.endswith(f":{given}")]
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        raise CliError(
            f"{given!r} may be one of {', '.join(candidates)}", "give one of these names"
        )
    if tp is None and given.startswith((*LOG_ACTORS, WORKER_ACTORS)):
        return given  # It does not run; its files may be there.
    if tp is not None and reply is not None and reply.error is not ErrorCode.NONE:
        reason = reply.detail or reply.error.name
        raise CliError(
            f"the controller does not say which actor holds {tp} ({reason})",
            f"see `oncelog logs {CONTROLLER_ACTOR}`, or give one of: {', '.join(names) or 'none'}",
        )
    near = difflib.get_close_matches(given, _short_and_full(names), NEAREST_MAX)
    nearest = f"; the nearest are {', '.join(near)}" if near else ""
    raise CliError(f"there is no actor {given!r}{nearest}", "`oncelog status` lists them all")


def _short_and_full(names: Iterable[str]) -> list[str]:
    full = list(names)
    short = [name.partition(":")[2].partition("@")[0] for name in full]
    return [*dict.fromkeys([*full, *(one for one in short if "-" in one)])]


def _partition_of(given: str) -> tuple[TopicPartition | None, int | None]:
    """The partition that an actor's name, or a short form of it, is about, and the broker."""
    found = _PLACE.fullmatch(given)
    if found is None:
        return None, None
    kind, rest = found["kind"], found["rest"]
    broker_id = int(found["at"]) if found["at"] else None
    shards = {"transaction:": TRANSACTION_STATE_TOPIC, "group:": CONSUMER_OFFSETS_TOPIC}
    if kind in shards:
        return (TopicPartition(shards[kind], int(rest)) if rest.isdecimal() else None), broker_id
    place = _PARTITION.fullmatch(rest)
    if place is None or given.startswith(("partitions:", WORKER_ACTORS)):
        return None, broker_id
    return TopicPartition(place["topic"], int(place["number"])), broker_id


def _holder(reply: MetadataReply, tp: TopicPartition, broker_id: int | None) -> str | None:
    """The actor that holds the replica on a broker, or the leader's; ``None`` if none does."""
    for topic in reply.topics:
        for partition in topic.partitions:
            if TopicPartition(topic.name, partition.partition) != tp:
                continue
            wanted = partition.leader if broker_id is None else broker_id
            for placement in placements_of(topic, partition):
                if placement.broker_id == wanted:
                    return holder_of(placement)
            if broker_id is None and partition.leader < 0:
                copies = ", ".join(actor_of(tp, one) for one in partition.replicas)
                raise CliError(f"{tp} has no leader now", f"give one of its replicas: {copies}")
    return None


def _metadata(topic: str, identity: Any) -> MetadataReply:
    from oncelog.actors.rpc.actor_transport import ActorTransport
    from oncelog.actors.rpc.ray_transport import RayTransport

    transport = ActorTransport(RayTransport(), identity=identity)
    asked = MetadataRequest(topics=(topic,))
    call = transport.call(CONTROLLER_ACTOR, asked, timeout_ms=METADATA_TIMEOUT_MS)
    return asyncio.run(call)


# --- where its files are ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is to be read. ``worker_id`` is the life that is meant, or with ``is_previous`` is not.

    ``positions`` is where to read on, by path; a file that is not there is read from its end.
    """

    actor: str
    is_previous: bool = False
    worker_id: str = ""
    line_count: int = LINES_DEFAULT
    least_level: int = 0
    positions: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEnd:
    """The lines that are wanted of one file; ``position`` is how far it was read."""

    path: str
    position: int
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """What one process of an actor has written. ``ended_s`` is when it last wrote, as Unix time."""

    worker_id: str
    node: str
    ended_s: float
    files: tuple[FileEnd, ...]


def read_life(wanted: Wanted, directory: Path, node: str) -> Life | None:
    """The newest life that is wanted, of those with files in ``directory``."""
    files: dict[str, list[Path]] = {}
    if wanted.worker_id and not wanted.is_previous:
        paths = process_files(directory, wanted.worker_id)
        files = {wanted.worker_id: paths} if paths else {}
    else:
        for path in _newest(directory):
            worker_id = path.name.split("-")[1]
            if worker_id != wanted.worker_id and actor_of_file(path) == wanted.actor:
                files.setdefault(worker_id, []).append(path)
    if not files:
        return None
    written = {one: max(map(_written_s, paths)) for one, paths in files.items()}
    lives = sorted(files, key=written.__getitem__, reverse=True)
    # Without a process that runs, the newest life is the last one, and the one before is previous.
    at = 1 if wanted.is_previous and not wanted.worker_id else 0
    if at >= len(lives):
        return None
    paths = sorted(files[lives[at]], reverse=True)
    return Life(
        worker_id=lives[at],
        node=node,
        ended_s=written[lives[at]],
        files=tuple(read_end(path, wanted) for path in paths),
    )


def _newest(directory: Path) -> list[Path]:
    return sorted(process_files(directory), key=_written_s, reverse=True)[:FILES_MAX]


def _written_s(path: Path) -> float:
    """When a file was last written; long ago, if Ray has just moved it."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def read_end(path: Path, wanted: Wanted) -> FileEnd:
    """The last lines of a file that are wanted, or all since a position; whole lines only."""
    with path.open("rb") as file:
        size_bytes = file.seek(0, 2)
        begin = wanted.positions.get(str(path), 0)
        begin = max(begin if begin <= size_bytes else 0, size_bytes - READ_MAX_BYTES)
        file.seek(begin)
        data = file.read(size_bytes - begin)
    if wanted.positions:
        # What has no end yet is shown once it has.
        data = data[: data.rfind(b"\n") + 1]
    lines = shown_lines(data.decode("utf-8", "replace").splitlines(), wanted.least_level)
    kept = deque(lines, maxlen=LINES_MAX if wanted.positions else wanted.line_count)
    size = sum(len(line) for line in kept)
    while size > REPLY_MAX_BYTES:
        size -= len(kept.popleft())
    return FileEnd(path=str(path), position=begin + len(data), lines=tuple(kept))


def shown_lines(lines: Iterable[str], least_level: int) -> Iterator[str]:
    """Without Ray's marks and the records below a level.

    A line that is no record belongs to the one before it, unless a crash has written it.
    """
    level = 0
    for line in lines:
        record = _RECORD.match(line)
        if record is not None:
            level = LEVELS.get(record[1], 0)
        elif _CRASH.match(line):
            level = max(level, LEVELS["ERROR"])
        if level >= least_level and not line.startswith(_MARKS):
            yield line


def _life(wanted: Wanted) -> Life:
    """What is wanted, from the node that has it; ``CliError`` if none does."""
    import ray

    worker_id, node_id = _process_of(wanted.actor)
    wanted = replace(wanted, worker_id=worker_id)
    nodes = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
    if node_id in nodes:
        life = _read_at(node_id, nodes[node_id], wanted)
        if life is not None:
            return life
    lives = [
        life
        for other, address in nodes.items()
        if other != node_id and (life := _read_at(other, address, wanted)) is not None
    ]
    if lives:
        return max(lives, key=lambda life: life.ended_s)
    which = "the process before this one" if wanted.is_previous else "a process"
    where = ", ".join(sorted(set(nodes.values())))
    raise CliError(
        f"no node has files of {which} of {wanted.actor} (asked: {where})",
        "Ray's session on a node has them; on one that is gone look in its session's logs",
    )


def _process_of(actor: str) -> tuple[str, str]:
    """The worker id and the node id of an actor that runs; "" for one that does not."""
    from ray._private.state import state as ray_state
    from ray.core.generated import gcs_pb2

    from oncelog.actors.rpc.ray_transport import find_actor

    try:
        handle = find_actor(actor, NAMESPACE)
    except ValueError:
        return "", ""
    data = ray_state._connect_and_get_accessor().get_actor_info(handle._actor_id)
    table: Any = gcs_pb2
    found = table.ActorTableData.FromString(data) if data is not None else None
    if found is None or found.state != table.ActorTableData.ALIVE:
        return "", ""
    return found.address.worker_id.hex(), found.address.node_id.hex()


def _read_at(node_id: str, address: str, wanted: Wanted) -> Life | None:
    """Read the files of a node: here if it is this program's, else in a task there."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    if node_id == ray.get_runtime_context().get_node_id():
        return read_life(wanted, logs_directory(), address)
    remote: Any = ray.remote(num_cpus=0, max_retries=0)(_read_there)
    place = NodeAffinitySchedulingStrategy(node_id, soft=False)
    try:
        answer = remote.options(scheduling_strategy=place).remote(wanted, address)
        found: Life | None = ray.get(answer, timeout=NODE_TIMEOUT_S)
    except ray.exceptions.RayError as error:
        reason = str(error).strip().splitlines() or [repr(error)]
        raise CliError(
            f"the files of {wanted.actor} on the node {address} cannot be read ({reason[0]})",
            f"look there in the logs of Ray's session for worker-{wanted.worker_id or '*'}-*",
        ) from None
    return found


def _read_there(wanted: Wanted, address: str) -> Life | None:
    return read_life(wanted, logs_directory(), address)


# --- what is shown ----------------------------------------------------------------------------


def _introduce(actor: str, life: Life) -> None:
    """Say on standard error whose lines these are, and where they come from."""
    errors = [one.path for one in life.files if one.path.endswith(".err")]
    path = errors[0] if errors else life.files[0].path
    sys.stderr.write(f"{actor} on {life.node}: {path}\n")


def _print(life: Life) -> None:
    """Print the lines; a terminal gets no control characters of what an actor has logged."""
    is_shown = is_terminal(sys.stdout)
    for one in life.files:
        if one.lines:
            text = "\n".join(one.lines)
            say(visible(text) if is_shown else text)
    sys.stdout.flush()


def _follow(wanted: Wanted, life: Life) -> NoReturn:
    """Print what is written from now on, by the process of that life and by its successors.

    ``BrokenPipeError`` once nobody reads it.
    """
    pause = threading.Event()
    while True:
        if is_reader_gone():
            raise BrokenPipeError
        pause.wait(FOLLOW_POLL_S)
        worker_id, _ = _process_of(wanted.actor)
        is_new = worker_id not in {"", life.worker_id}
        positions = {} if is_new else {one.path: one.position for one in life.files}
        life = _life(replace(wanted, positions=positions, line_count=LINES_MAX))
        if is_new:
            _introduce(wanted.actor, life)
        _print(life)
