"""``oncelog topics``, ``oncelog partitions`` and ``oncelog brokers``: topics and their replicas.

List, create, describe, alter and delete topics; delete old records; move replicas between brokers.
"""

from __future__ import annotations

import argparse
import difflib
import json
from typing import TYPE_CHECKING, Any, Final

from oncelog.actors.config import TopicConfig
from oncelog.actors.protocol.messages.cluster import PartitionMetadata, TopicMetadata
from oncelog.api.cli.connect import add_cluster_arguments, connect
from oncelog.api.cli.head import parse_settings
from oncelog.api.cli.terminal import (
    CliError,
    Commands,
    UsageError,
    add_actions,
    add_command,
    add_json,
    say,
    table,
    whole_number,
)
from oncelog.storage.exceptions import UnknownTopicOrPartitionError
from oncelog.storage.model import INT32_MAX, INTERNAL_TOPICS, TopicPartition
from oncelog.storage.settings import check_name

if TYPE_CHECKING:
    from oncelog.api.admin.calls import LogDirDescription, ReplicaSize
    from oncelog.api.client import Cluster


def list_topics(args: argparse.Namespace) -> int:
    """Print every topic, one per line."""
    with connect(args) as cluster:
        topics = [
            topic
            for topic in sorted(
                cluster.admin().describe_cluster().topics, key=lambda topic: topic.name
            )
            if args.internal or topic.name not in INTERNAL_TOPICS
        ]
    if args.json:
        say(json.dumps([as_json(topic) for topic in topics], indent=2))
    elif topics:
        rows = ((topic.name, len(topic.partitions), topic.topic_id) for topic in topics)
        say(table(("topic", "partitions", "id"), rows))
    else:
        say("no topics")
    return 0


def create_topic(args: argparse.Namespace) -> int:
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


def alter_topic(args: argparse.Namespace) -> int:
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


def describe_topic(args: argparse.Namespace) -> int:
    """Print a topic's id, settings and partitions."""
    with connect(args) as cluster:
        topic = known_topic(cluster, args.topic)
    if args.json:
        say(json.dumps(as_json(topic), indent=2))
        return 0
    say(f"topic     {topic.name}")
    say(f"id        {topic.topic_id}")
    settings = ", ".join(f"{name}={value}" for name, value in topic.settings)
    say(f"settings  {settings or 'all default'}")
    say()
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
    say(table(("partition", "leader", "epoch", "replicas", "isr"), rows))
    for partition in topic.partitions:
        if note := _partition_note(partition):
            say(f"partition {partition.partition}: {note}")
    return 0


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


def delete_topic(args: argparse.Namespace) -> int:
    """Delete a topic and its data."""
    with connect(args) as cluster:
        known_topic(cluster, args.topic)
        cluster.admin().delete_topic(args.topic)
    say(f"deleted {args.topic}")
    return 0


def delete_records(args: argparse.Namespace) -> int:
    """Delete the oldest records of a topic; print where each partition starts now."""
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


def add_replica_commands(commands: Commands) -> None:
    """Add both commands and their actions."""
    brokers = add_actions(commands, "brokers", "Drain brokers, or use them again.")
    drain = add_command(
        brokers, "drain", "Move all leaders and replicas off a broker.", drain_broker
    )
    resume = add_command(brokers, "resume", "Use a drained broker again.", resume_broker)
    for action in (drain, resume):
        action.add_argument("broker", metavar="N", type=whole_number(0), help="its number")
    partitions = add_actions(commands, "partitions", "Choose the brokers of partitions.")
    reassign = add_command(
        partitions,
        "reassign",
        "Move a partition to other brokers, or cancel that while it is in progress.",
        reassign_partition,
    )
    reassign.add_argument("topic", metavar="TOPIC")
    reassign.add_argument("partition", metavar="PARTITION", type=whole_number(0))
    where = reassign.add_mutually_exclusive_group(required=True)
    where.add_argument(
        "--replicas",
        type=broker_numbers,
        metavar="N,N,...",
        help="its new brokers, preferred leader first",
    )
    where.add_argument("--cancel", action="store_true", help="return to its old brokers")
    elect = add_command(
        partitions,
        "elect-leaders",
        "Have the preferred leaders, the first of the replicas, lead again.",
        elect_leaders,
    )
    elect.add_argument("--topic", metavar="TOPIC", help="of this topic (default: of all)")
    elect.add_argument("--partition", metavar="N", type=whole_number(0), help="of this partition")
    dirs = add_command(
        brokers, "log-dirs", "Show the data directories and what is in them.", describe_log_dirs
    )
    dirs.add_argument("--broker", action="append", metavar="N", type=whole_number(0))
    dirs.add_argument("--replicas", action="store_true", help="each replica with its size")
    add_json(dirs)
    for action in (drain, resume, reassign, elect, dirs):
        add_cluster_arguments(action)


def broker_numbers(text: str) -> tuple[int, ...]:
    """An argument type: broker ids, separated by commas."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) <= INT32_MAX for part in parts):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a list of brokers: give their ids, as in 1,2,3"
        )
    return tuple(map(int, parts))


def drain_broker(args: argparse.Namespace) -> int:
    """``oncelog brokers drain``."""
    with connect(args) as cluster:
        cluster.admin().drain_broker(args.broker)
    say(f"broker {args.broker} is being drained; {_SEE}")
    return 0


def resume_broker(args: argparse.Namespace) -> int:
    """``oncelog brokers resume``."""
    with connect(args) as cluster:
        cluster.admin().resume_broker(args.broker)
    say(f"broker {args.broker} is used again")
    return 0


def elect_leaders(args: argparse.Namespace) -> int:
    """``oncelog partitions elect-leaders``; status 1 if a preferred leader cannot lead."""
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


def describe_log_dirs(args: argparse.Namespace) -> int:
    """``oncelog brokers log-dirs``."""
    with connect(args) as cluster:
        found = cluster.admin().describe_log_dirs(args.broker)
    if args.json:
        say(json.dumps([_log_dir_as_json(one) for one in found], indent=2))
    elif args.replicas:
        sizes = [
            (one.broker_id, one.path or one.error.name, *_replica_row(replica))
            for one in found
            for replica in one.replicas
        ]
        headings = ("broker", "directory", "topic", "partition", "bytes", "offsets behind")
        say(table(headings, sizes))
    else:
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
        say(
            table(
                ("broker", "directory", "replicas", "bytes", "free bytes", "disk bytes"),
                rows,
            )
        )
    return 0


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


def reassign_partition(args: argparse.Namespace) -> int:
    """``oncelog partitions reassign``; internal topics are allowed too."""
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
            say(
                f"{args.topic}-{number} moves to brokers {to}; "
                f"`oncelog topics describe {args.topic}` shows the progress"
            )
    return 0
