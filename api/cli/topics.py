"""``oncelog topics``, ``oncelog partitions`` and ``oncelog brokers``: topics and their replicas.

List, create, describe, alter and delete topics; delete old records; move replicas between brokers.
"""

from __future__ import annotations

import difflib
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from oncelog.actors.config import TopicConfig
from oncelog.actors.protocol.messages.cluster import PartitionMetadata, TopicMetadata
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
from oncelog.api.cli.head import parse_settings
from oncelog.api.cli.terminal import CliError, UsageError, fields, progress, say, show, table
from oncelog.storage.exceptions import UnknownTopicOrPartitionError
from oncelog.storage.model import (
    INT32_MAX,
    INT64_MAX,
    INTERNAL_TOPICS,
    TOPIC_PARTITIONS_MAX,
    TopicPartition,
)
from oncelog.storage.settings import check_name, settings_of

if TYPE_CHECKING:
    from oncelog.api.admin.calls import LogDirDescription, ReplicaSize
    from oncelog.api.client import Cluster

_SETTINGS: Final = ", ".join(settings_of(TopicConfig))

topics: Final = Group("topics")


@topics.command("list")
@flag("--internal", "internal topics too")
@output_options
@cluster_options
def list_topics(args: Arguments) -> int:
    """List the topics."""
    with connect(args) as cluster:
        found = [
            topic
            for topic in sorted(
                cluster.admin().describe_cluster().topics, key=lambda topic: topic.name
            )
            if args.internal or topic.name not in INTERNAL_TOPICS
        ]
    rows = ((topic.name, len(topic.partitions), topic.topic_id) for topic in found)
    show(
        args,
        [as_json(topic) for topic in found],
        lambda: table(("topic", "partitions", "id"), rows) if found else "no topics",
    )
    return 0


_validate_only: Final = flag("--validate-only", "change nothing; say what is wrong")


@topics.command("create")
@argument("topic")
@option(
    "--partitions",
    type=WholeNumber(1, TOPIC_PARTITIONS_MAX),
    default=1,
    help="how many partitions (default: 1)",
)
@option(
    "--replication-factor",
    type=WholeNumber(1),
    help="replicas of each partition (default: 3, or one per broker if there are fewer)",
)
@flag("--if-not-exists", "leave an existing topic unchanged")
@repeated("--config", "NAME=VALUE", f"a setting of the topic ({_SETTINGS})")
@_validate_only
@cluster_options
def create_topic(args: Arguments) -> int:
    """Create a topic; it accepts writes when this returns."""
    settings = parse_settings(args.config)
    TopicConfig.from_text({name: str(value) for name, value in settings.items()})
    with connect(args) as cluster:
        admin = cluster.admin()
        if args.validate_only:
            if args.replication_factor is not None:
                settings["replication_factor"] = args.replication_factor
            admin.create_topic(args.topic, args.partitions, validate_only=True, **settings)
            say(f"{args.topic} could be created; nothing is changed")
            return 0
        # Looked up first, so that the message is true; another creator winning the race is fine.
        if args.if_not_exists and args.topic in {
            topic.name for topic in admin.describe_cluster().topics
        }:
            say(f"{args.topic} exists already and is left unchanged")
            return 0
        if args.replication_factor is not None:
            settings["replication_factor"] = args.replication_factor
        admin.create_topic(
            args.topic, partitions=args.partitions, exist_ok=args.if_not_exists, **settings
        )
    say(f"created {args.topic}, partitions 0 to {args.partitions - 1}")
    return 0


@topics.command("alter")
@topic_argument
@repeated("--config", "NAME=VALUE", f"a new value of a setting ({_SETTINGS})")
@repeated("--reset", "NAME", "reset a setting to its default")
@repeated("--append", "NAME=VALUE", "add a member to a setting that is a list")
@repeated("--subtract", "NAME=VALUE", "remove a member from such a setting")
@option(
    "--partitions",
    type=WholeNumber(1, TOPIC_PARTITIONS_MAX),
    help="the new number of partitions, more than now",
)
@_validate_only
@cluster_options
def alter_topic(args: Arguments) -> int:
    """Change settings of a topic, or add partitions; the rest stays as it is."""
    settings = parse_settings(args.config)
    TopicConfig.from_text({name: str(value) for name, value in settings.items()})
    for name in args.reset:
        check_name(TopicConfig, name)
        if name in settings:
            raise CliError(f"--reset {name} contradicts --config {name}", "give one of them")
        settings[name] = None
    append, subtract = parse_settings(args.append), parse_settings(args.subtract)
    if not (settings or append or subtract) and args.partitions is None:
        advice = "give --config NAME=VALUE, --reset NAME, --append, --subtract or --partitions N"
        raise CliError("nothing to change", advice)
    changed = sorted({*settings, *append, *subtract})
    lists: dict[str, Any] = {"append": append, "subtract": subtract}
    lists = {name: members for name, members in lists.items() if members}
    dry: dict[str, Any] = {"validate_only": True} if args.validate_only else {}
    with connect(args) as cluster:
        known_topic(cluster, args.topic)
        if changed:
            cluster.admin().alter_topic(args.topic, **settings, **lists, **dry)
        if args.partitions is not None:
            cluster.admin().create_partitions(args.topic, args.partitions, **dry)
            changed.append(f"partitions 0 to {args.partitions - 1}")
    if args.validate_only:
        say(f"{args.topic} could be altered: {', '.join(changed)}; nothing is changed")
    else:
        say(f"altered {args.topic}: {', '.join(changed)}")
    return 0


@topics.command("describe")
@topic_argument
@output_options
@cluster_options
def describe_topic(args: Arguments) -> int:
    """Show a topic, its settings and its leaders."""
    with connect(args) as cluster:
        topic = known_topic(cluster, args.topic)
    show(args, as_json(topic), lambda: _as_text(topic))
    return 0


def _as_text(topic: TopicMetadata) -> str:
    settings = ", ".join(f"{name}={value}" for name, value in topic.settings)
    facts = (
        ("topic", topic.name),
        ("id", topic.topic_id),
        ("settings", settings or "all default"),
    )
    rows = (
        (
            partition.partition,
            partition.leader if partition.leader >= 0 else None,
            partition.leader_epoch,
            ", ".join(map(str, partition.replicas)),
            ", ".join(map(str, partition.isr)),
        )
        for partition in topic.partitions
    )
    notes = [
        f"partition {partition.partition}: {note}"
        for partition in topic.partitions
        if (note := _partition_note(partition))
    ]
    partitions = table(("partition", "leader", "epoch", "replicas", "isr"), rows)
    return "\n".join([fields(facts), "", partitions, *notes])


def _partition_note(partition: PartitionMetadata) -> str:
    """What is wrong with a partition, or about to change; "" if nothing."""
    notes = []
    if partition.leader < 0:
        notes.append("no leader")
    if partition.is_under_replicated:
        notes.append("under-replicated")
    count = len(partition.replicas) - len(partition.adding)
    if count < partition.replication_factor:
        notes.append(f"{count} of {partition.replication_factor} replicas")
    for verb, brokers in (("adding", partition.adding), ("removing", partition.removing)):
        if brokers:
            notes.append(f"{verb} {', '.join(map(str, brokers))}")
    return "; ".join(notes)


@topics.command("delete")
@topic_argument
@cluster_options
def delete_topic(args: Arguments) -> int:
    """Delete a topic and its data."""
    with connect(args) as cluster:
        known_topic(cluster, args.topic)
        cluster.admin().delete_topic(args.topic)
    say(f"deleted {args.topic}")
    return 0


@topics.command("delete-records")
@topic_argument
@option("--partition", type=WholeNumber(0), help="only from this partition (default: from each)")
@option(
    "--before-offset",
    type=WholeNumber(0, INT64_MAX),
    metavar="O",
    help="records below this offset",
)
@flag("--all", "all current records")
@cluster_options
def delete_records(args: Arguments) -> int:
    """Delete the oldest records of a topic, permanently; print where each partition starts now."""
    exclusive("--before-offset", "--all", required=True)
    with connect(args) as cluster:
        topic = known_topic(cluster, args.topic)
        numbers = [partition.partition for partition in topic.partitions]
        if args.partition is not None:
            numbers = [checked_partition(topic, args.partition)]
        offset = -1 if args.all else args.before_offset
        wanted = {TopicPartition(args.topic, number): offset for number in numbers}
        starts = cluster.admin().delete_records(wanted)
    rows = ((tp.topic, tp.partition, start) for tp, start in sorted(starts.items()))
    say(table(("topic", "partition", "log start"), rows))
    return 0


def checked_partition(topic: TopicMetadata, number: int) -> int:
    """``number`` if the topic has that partition."""
    count = len(topic.partitions)
    if number >= count:
        raise CliError(
            f"topic {topic.name!r} has no partition {number}", f"give one from 0 to {count - 1}"
        )
    return number


def known_topic(cluster: Cluster, name: str) -> TopicMetadata:
    """The topic of this name, looked up without retries, so that a wrong name fails at once.

    Raises ``UnknownTopicOrPartitionError``, or ``CliError`` for an internal topic.
    """
    if name in INTERNAL_TOPICS:
        raise CliError(
            f"{name!r} is an internal topic", "`oncelog topics list` shows those of users"
        )
    topics = {topic.name: topic for topic in cluster.admin().describe_cluster().topics}
    if name in topics:
        return topics[name]
    close = difflib.get_close_matches(name, topics.keys() - INTERNAL_TOPICS, n=1)
    hint = f"did you mean {close[0]!r}? If not, " if close else ""
    raise UnknownTopicOrPartitionError(
        f"there is no topic {name!r}", advice=f"{hint}create it with `oncelog topics create {name}`"
    )


def as_json(topic: TopicMetadata) -> dict[str, Any]:
    """A topic as JSON."""
    return {
        "name": topic.name,
        "topic_id": topic.topic_id,
        "settings": dict(topic.settings),
        "partitions": [
            {
                "partition": partition.partition,
                "leader": partition.leader if partition.leader >= 0 else None,
                "leader_epoch": partition.leader_epoch,
                "replicas": list(partition.replicas),
                "isr": list(partition.isr),
                "elr": list(partition.elr),
                **({"adding": list(partition.adding)} if partition.adding else {}),
                **({"removing": list(partition.removing)} if partition.removing else {}),
            }
            for partition in topic.partitions
        ],
    }


# --- replicas ---------------------------------------------------------------------------------

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
                raise CliError(f"{rest:,} replicas are not moved after {timeout_ms:,} ms", _SEE)
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

                def left() -> int:
                    one = admin.describe_topic(args.topic).partitions[number]
                    return len(one.adding) + len(one.removing)

                _wait_until_moved(left, args.timeout_ms)
                say(f"{args.topic}-{number} is on brokers {to}")
                return 0
            say(
                f"{args.topic}-{number} moves to brokers {to}; "
                f"`oncelog topics describe {args.topic}` shows the progress"
            )
    return 0
