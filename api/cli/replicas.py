"""``oncelog brokers`` and ``oncelog partitions``: where replicas are, and where they are to be."""

from __future__ import annotations

import argparse
from typing import Final

from oncelog.api.cli.connect import add_cluster_arguments, connect
from oncelog.api.cli.terminal import (
    INT32_MAX,
    CliError,
    Commands,
    add_actions,
    add_command,
    say,
    whole_number,
)
from oncelog.api.cli.topics import checked_partition

_SEE: Final = "`oncelog status` shows how far it is"


def add_commands(commands: Commands) -> None:
    """Add both commands and their actions."""
    brokers = add_actions(commands, "brokers", "Empty brokers, or use them again.")
    drain = add_command(
        brokers, "drain", "Move all leaders and replicas off a broker.", drain_broker
    )
    resume = add_command(brokers, "resume", "Use a drained broker again.", resume_broker)
    for action in (drain, resume):
        action.add_argument("broker", metavar="N", type=whole_number(0), help="its number")
    partitions = add_actions(commands, "partitions", "Say on which brokers partitions are.")
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
        help="the brokers that are to have it, preferred leader first",
    )
    where.add_argument("--cancel", action="store_true", help="leave it where it was")
    for action in (drain, resume, reassign):
        add_cluster_arguments(action)


def broker_numbers(text: str) -> tuple[int, ...]:
    """An argument type: numbers of brokers, separated by commas."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) <= INT32_MAX for part in parts):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no list of brokers: give their numbers, as in 1,2,3"
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


def reassign_partition(args: argparse.Namespace) -> int:
    """``oncelog partitions reassign``; of internal topics too."""
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
                f"`oncelog topics describe {args.topic}` shows how far it is"
            )
    return 0
