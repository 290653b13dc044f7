"""``oncelog topics``: list, create, describe, alter and delete topics; delete old records."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any, Final

from oncelog.actors.config import TopicConfig
from oncelog.actors.protocol.messages.cluster import PartitionMetadata, TopicMetadata
from oncelog.api.cli.arguments import (
    Arguments,
    Group,
    WholeNumber,
    argument,
    exclusive,
    flag,
    option,
    output_options,
    repeated,
    topic_argument,
)
from oncelog.api.cli.connect import cluster_options, connect
from oncelog.api.cli.head import parse_settings
from oncelog.api.cli.terminal import CliError, fields, say, show, table
from oncelog.storage.exceptions import UnknownTopicOrPartitionError
from oncelog.storage.model import (
    INT64_MAX,
    INTERNAL_TOPICS,
    TOPIC_PARTITIONS_MAX,
    TopicPartition,
)
from oncelog.storage.settings import check_name, settings_of

if TYPE_CHECKING:
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
