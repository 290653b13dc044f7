"""``oncelog brokers`` and ``oncelog partitions``: where replicas are, and moving them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from oncelog.api.cli.arguments import (
    Arguments,
    Group,
    WholeNumber,
    all_of,
    argument,
    exclusive,
    flag,
    option,
    output_options,
    repeated,
    topic_argument,
    topic_names,
)
from oncelog.api.cli.connect import cluster_options, connect
from oncelog.api.cli.terminal import CliError, UsageError, progress, say, show, table
from oncelog.api.cli.topics import checked_partition, known_topic
from oncelog.storage.model import INT32_MAX, TopicPartition

if TYPE_CHECKING:
    from oncelog.api.admin.admin import Admin
    from oncelog.api.admin.calls import LogDirDescription, ReplicaSize

_SEE: Final = "`oncelog status` shows the progress"
WAIT_POLL_S: Final = 0.5


brokers: Final = Group("brokers")
partitions: Final = Group("partitions")
_broker: Final = argument("broker", "its number", type=WholeNumber(0), metavar="N")


def broker_numbers(text: str) -> tuple[int, ...]:
    """A type: broker ids, separated by commas."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) <= INT32_MAX for part in parts):
        raise click.BadParameter(f"{text!r} is not a list of brokers: give their ids, as in 1,2,3")
    return tuple(map(int, parts))


_wait: Final = all_of(
    flag("--wait", "until all is moved, with a progress bar"),
    option(
        "--timeout-ms",
        type=WholeNumber(0),
        default=600_000,
        metavar="T",
        help="wait no longer than T ms (default: 600000)",
    ),
)


def _wait_until_moved(left: Callable[[], int], timeout_ms: int) -> None:
    """Wait until no replicas are ``left`` to move; what has begun goes on if it takes longer."""
    deadline = time.monotonic() + timeout_ms / 1_000
    total = left()
    with progress("moving", total) as reached:
        while rest := left():
            if time.monotonic() >= deadline:
                raise CliError(f"not all is moved after {timeout_ms:,} ms, {rest:,} left", _SEE)
            reached(total - rest)
            threading.Event().wait(WAIT_POLL_S)


@brokers.command("drain")
@_broker
@_wait
@cluster_options
def drain_broker(args: Arguments) -> int:
    """Move all leaders and replicas off a broker."""
    with connect(args) as cluster:
        admin = cluster.admin()
        admin.drain_broker(args.broker)
        if not args.wait:
            say(f"broker {args.broker} is being drained; {_SEE}")
            return 0

        def left() -> int:
            topics = admin.describe_cluster().topics
            return sum(args.broker in one.replicas for topic in topics for one in topic.partitions)

        _wait_until_moved(left, args.timeout_ms)
    say(f"broker {args.broker} is drained")
    return 0


@brokers.command("resume")
@_broker
@cluster_options
def resume_broker(args: Arguments) -> int:
    """Use a drained broker again."""
    with connect(args) as cluster:
        cluster.admin().resume_broker(args.broker)
    say(f"broker {args.broker} is used again")
    return 0


@partitions.command("elect-leaders")
@option(
    "--topic", metavar="TOPIC", shell_complete=topic_names, help="of this topic (default: of all)"
)
@option("--partition", type=WholeNumber(0), help="of this partition")
@cluster_options
def elect_leaders(args: Arguments) -> int:
    """Have the preferred leaders, the first of the replicas, lead again.

    The exit status is 1 if one of them cannot lead.
    """
    if args.partition is not None and args.topic is None:
        raise UsageError("--partition needs a topic", "give --topic as well")
    with connect(args) as cluster:
        admin, wanted = cluster.admin(), None
        if args.topic is not None:
            topic = known_topic(cluster, args.topic)
            numbers = [one.partition for one in topic.partitions]
            if args.partition is not None:
                numbers = [checked_partition(topic, args.partition)]
            wanted = [TopicPartition(args.topic, number) for number in numbers]
        leaders = admin.elect_leaders(wanted)
    rows = ((tp.topic, tp.partition, leader) for tp, leader in sorted(leaders.items()))
    say(table(("topic", "partition", "leader"), rows))
    return 0


@brokers.command("log-dirs")
@repeated("--broker", "N", "only of this broker", type=WholeNumber(0))
@flag("--replicas", "each replica with its size")
@output_options
@cluster_options
def describe_log_dirs(args: Arguments) -> int:
    """Show the data directories and what is in them."""
    with connect(args) as cluster:
        found = cluster.admin().describe_log_dirs(args.broker or None)
    show(
        args,
        [_log_dir_as_json(one) for one in found],
        lambda: _sizes(found) if args.replicas else _log_dirs(found),
    )
    return 0


def _sizes(found: Sequence[LogDirDescription]) -> str:
    rows = (
        (one.broker_id, one.path or one.error.name, *_replica_row(replica))
        for one in found
        for replica in one.replicas
    )
    return table(("broker", "directory", "topic", "partition", "bytes", "offsets behind"), rows)


def _log_dirs(found: Sequence[LogDirDescription]) -> str:
    rows = (
        (
            one.broker_id,
            one.path or one.error.name,
            len(one.replicas),
            sum(replica.size_bytes for replica in one.replicas),
            one.disk_free_bytes if one.disk_free_bytes >= 0 else None,
            one.disk_size_bytes if one.disk_size_bytes >= 0 else None,
        )
        for one in found
    )
    return table(("broker", "directory", "replicas", "bytes", "free bytes", "disk bytes"), rows)


def _replica_row(replica: ReplicaSize) -> tuple[str, int, int, int]:
    tp = replica.topic_partition
    return tp.topic, tp.partition, replica.size_bytes, replica.offset_lag


def _log_dir_as_json(one: LogDirDescription) -> dict[str, Any]:
    return {
        "broker": one.broker_id,
        "path": one.path,
        "error": one.error.name,
        "disk_size_bytes": one.disk_size_bytes,
        "disk_free_bytes": one.disk_free_bytes,
        "replicas": [
            {
                "topic": replica.topic_partition.topic,
                "partition": replica.topic_partition.partition,
                "size_bytes": replica.size_bytes,
                "offset_lag": replica.offset_lag,
            }
            for replica in one.replicas
        ],
    }


@partitions.command("reassign")
@topic_argument
@argument("partition", type=WholeNumber(0), metavar="PARTITION")
@option(
    "--replicas",
    type=broker_numbers,
    metavar="N,N,...",
    help="its new brokers, preferred leader first",
)
@flag("--cancel", "return to its old brokers")
@_wait
@cluster_options
def reassign_partition(args: Arguments) -> int:
    """Move a partition to other brokers, or cancel that while it is in progress.

    Internal topics are allowed too.
    """
    exclusive("--replicas", "--cancel", required=True)
    with connect(args) as cluster:
        admin = cluster.admin()
        topic = admin.describe_topic(args.topic)
        number = checked_partition(topic, args.partition)
        if args.cancel:
            partition = topic.partitions[number]
            if not partition.adding and not partition.removing:
                raise CliError(
                    f"{args.topic}-{number} is not being moved",
                    "give --replicas N,N,... to move it",
                )
            admin.cancel_reassignment(args.topic, number)
            say(f"{args.topic}-{number} stays where it was")
        else:
            admin.reassign_partition(args.topic, number, args.replicas)
            to = ", ".join(map(str, args.replicas))
            if args.wait:
                _wait_until_reassigned(admin, args, number)
                say(f"{args.topic}-{number} is on brokers {to}")
                return 0
            say(
                f"{args.topic}-{number} moves to brokers {to}; "
                f"`oncelog topics describe {args.topic}` shows the progress"
            )
    return 0


def _wait_until_reassigned(admin: Admin, args: Arguments, number: int) -> None:
    """Wait until the partition is moved; ``CliError`` if it is not where it was to go."""

    def left() -> int:
        one = admin.describe_topic(args.topic).partitions[number]
        return len(one.adding) + len(one.removing)

    _wait_until_moved(left, args.timeout_ms)
    replicas = admin.describe_topic(args.topic).partitions[number].replicas
    if set(replicas) != set(args.replicas):
        raise CliError(
            f"{args.topic}-{number} is on brokers {', '.join(map(str, replicas))}: somebody has "
            "cancelled the move, or moved it elsewhere",
            "if it is to be moved all the same, run this again",
        )
