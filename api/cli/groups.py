"""``oncelog groups`` and ``oncelog jobs``: members, committed offsets and lag of groups and jobs.

A job of ``cluster.process`` is a group whose members are its workers. It outlives the program that
starts it.

One file: a job is shown as the group that it is, with the same members, offsets and lag.
"""

from __future__ import annotations

import argparse
import datetime
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from oncelog.actors.protocol.group.consumer_protocol import PROTOCOL_TYPE, decode_assignment
from oncelog.actors.protocol.messages.group import GroupDescription
from oncelog.api.cli.connect import add_cluster_arguments, connect
from oncelog.api.cli.terminal import (
    STATUS_ERROR,
    CliError,
    Commands,
    UsageError,
    add_actions,
    add_command,
    add_json,
    add_repeated,
    say,
    table,
    whole_number,
)
from oncelog.api.cli.topics import checked_partition, known_topic
from oncelog.api.processing.messages import WORKERS_MAX
from oncelog.api.session.committed_offsets import lag_of
from oncelog.storage.exceptions import CorruptDataError, GroupIdNotFoundError
from oncelog.storage.model import EARLIEST_TIMESTAMP, INT64_MAX, LATEST_TIMESTAMP, TopicPartition

if TYPE_CHECKING:
    from oncelog.api.admin.admin import Admin
    from oncelog.api.client import Cluster
    from oncelog.api.processing.job import JobStatus, ProcessJob


# --- arguments --------------------------------------------------------------------------------


def add_commands(commands: Commands) -> None:
    """Add ``oncelog groups`` and its actions."""
    actions = add_actions(commands, "groups", "List, describe, change or delete consumer groups.")
    listing = add_command(actions, "list", "List the groups.", list_groups)
    describe = add_command(
        actions, "describe", "Show a group's members, offsets and lag.", describe_group
    )
    reset = _add_reset(actions)
    delete = add_command(
        actions, "delete", "Delete a group without members, and its offsets.", delete_group
    )
    remove = _add_remove(actions)
    drop = add_command(
        actions,
        "delete-offsets",
        "Delete committed offsets of topics that no member of the group reads.",
        delete_offsets,
    )
    add_repeated(drop, "--topic", "TOPIC[:N,N...]", "all or some partitions of this topic")
    for action in (describe, reset, delete, remove, drop):
        action.add_argument("group", metavar="GROUP")
    add_json(listing, describe, reset)
    for action in (listing, describe, reset, delete, remove, drop):
        add_cluster_arguments(action)


def _add_reset(actions: Commands) -> argparse.ArgumentParser:
    reset = add_command(
        actions,
        "reset-offsets",
        "Set the committed offsets of a group without members; only shows them unless --execute.",
        reset_offsets,
    )
    add_repeated(reset, "--topic", "TOPIC[:N,N...]", "all or some partitions of this topic")
    reset.add_argument("--all-topics", action="store_true", help="every committed topic")
    target = reset.add_mutually_exclusive_group(required=True)
    target.add_argument("--to-earliest", action="store_true", help="the log start offset")
    target.add_argument("--to-latest", action="store_true", help="the last stable offset")
    target.add_argument("--to-current", action="store_true", help="the offset committed now")
    target.add_argument("--to-offset", type=whole_number(0, INT64_MAX), metavar="O")
    target.add_argument(
        "--to-datetime",
        type=time_ms,
        metavar="TIME",
        help="the first record at or after this time: 2026-01-31T12:00 (UTC unless it says else)",
    )
    target.add_argument(
        "--shift-by",
        type=whole_number(-INT64_MAX, INT64_MAX),
        metavar="N",
        help="N records forward, or back if N is negative",
    )
    reset.add_argument("--execute", action="store_true", help="commit the new offsets, durably")
    return reset


def _add_remove(actions: Commands) -> argparse.ArgumentParser:
    remove = add_command(
        actions,
        "remove-members",
        "Remove members whose programs are gone, before their sessions end.",
        remove_members,
    )
    add_repeated(remove, "--instance", "ID", "a static member, by its group_instance_id")
    add_repeated(remove, "--member", "ID", "a member, by its member id")
    remove.add_argument("--all", action="store_true", help="every member")
    return remove


def time_ms(text: str) -> int:
    """An argument type: an ISO 8601 date or time, as milliseconds since the epoch."""
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a time like 2026-01-31T12:00 or 2026-01-31T12:00+01:00"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.timezone.utc)
    return max(int(moment.timestamp() * 1_000), 0)


# --- commands ---------------------------------------------------------------------------------


def list_groups(args: argparse.Namespace) -> int:
    """Print every group, one per line."""
    with connect(args) as cluster:
        groups = cluster.admin().list_groups()
    if args.json:
        say(json.dumps([as_json(group) for group in groups], indent=2))
    elif groups:
        rows = (
            (group.group_id, group.state, group.generation_id, len(group.members))
            for group in groups
        )
        say(table(("group", "state", "generation", "members"), rows))
    else:
        say("no groups")
    return 0


def describe_group(args: argparse.Namespace) -> int:
    """Print a group: its members, and for each partition its committed offset and lag."""
    with connect(args) as cluster:
        admin = cluster.admin()
        group = admin.describe_group(args.group)
        committed = admin.list_group_offsets(args.group, require_stable=False)
        places = {tp: position.offset for tp, position in committed.items()}
        starts, ends = _bounds(cluster, places)
    lags = {
        tp: lag_of(places[tp], start_offset=starts[tp], end_offset=end) for tp, end in ends.items()
    }
    if args.json:
        shown = as_json(group)
        shown["offsets"] = [
            {
                "topic": tp.topic,
                "partition": tp.partition,
                "offset": offset,
                "metadata": committed[tp].metadata,
                "start_offset": starts.get(tp),
                "end_offset": ends.get(tp),
                "lag": lags.get(tp),
            }
            for tp, offset in sorted(places.items())
        ]
        say(json.dumps(shown, indent=2))
        return 0
    for name, value in (
        ("group", group.group_id),
        ("state", group.state),
        ("generation", group.generation_id),
        ("protocol", group.protocol_name or "none"),
    ):
        say(f"{name:<11} {value}")
    owners = _owners(group)
    if group.members:
        say()
        rows = [
            (member.member_id, member.group_instance_id, len(_assigned(group, member.assignment)))
            for member in group.members
        ]
        say(table(("member", "instance", "partitions"), rows))
    if places:
        say()
        lines = [
            (
                tp.topic,
                tp.partition,
                offset,
                ends.get(tp),
                lags.get(tp),
                owners.get(tp),
            )
            for tp, offset in sorted(places.items())
        ]
        say(table(("topic", "partition", "offset", "end", "lag", "member"), lines))
    return 0


def delete_group(args: argparse.Namespace) -> int:
    """Delete a group that has no members."""
    with connect(args) as cluster:
        admin = cluster.admin()
        _refuse_members(admin.describe_group(args.group), "delete")
        admin.delete_group(args.group)
    say(f"deleted {args.group}")
    return 0


def remove_members(args: argparse.Namespace) -> int:
    """Remove some or all members from a group."""
    is_named = bool(args.instance or args.member)
    if is_named == args.all:
        raise UsageError("no members are given", "give --instance, --member or --all")
    with connect(args) as cluster:
        admin = cluster.admin()
        if is_named:
            admin.remove_members_from_group(
                args.group, group_instance_ids=args.instance, member_ids=args.member
            )
        else:
            admin.remove_members_from_group(args.group)
    say(f"removed {'them' if is_named else 'all members'} from {args.group}")
    return 0


def reset_offsets(args: argparse.Namespace) -> int:
    """Print the new offsets of a group and, with ``--execute``, commit them."""
    if bool(args.topic) == args.all_topics:
        raise UsageError("no topics are given", "give --topic TOPIC or --all-topics")
    with connect(args) as cluster:
        admin = cluster.admin()
        try:
            _refuse_members(admin.describe_group(args.group), "reset the offsets of")
        except GroupIdNotFoundError:
            if args.all_topics:
                raise
        committed = admin.list_group_offsets(args.group, require_stable=args.execute)
        current = {tp: position.offset for tp, position in committed.items()}
        wanted = sorted(current) if args.all_topics else _partitions(cluster, args.topic)
        planned = _planned(admin, args, wanted, current)
        if args.execute:
            admin.alter_group_offsets(args.group, planned)
    _say_plan(args, planned, current)
    return 0


def delete_offsets(args: argparse.Namespace) -> int:
    """Delete committed offsets of a group."""
    if not args.topic:
        raise UsageError("no topics are given", "give --topic TOPIC or TOPIC:N,N")
    with connect(args) as cluster:
        wanted = _partitions(cluster, args.topic)
        cluster.admin().delete_group_offsets(args.group, wanted)
    say(f"deleted the offsets of {args.group} for {', '.join(map(str, wanted))}")
    return 0


def _say_plan(
    args: argparse.Namespace,
    planned: Mapping[TopicPartition, int],
    current: Mapping[TopicPartition, int],
) -> None:
    if args.json:
        shown = [
            {
                "topic": tp.topic,
                "partition": tp.partition,
                "from_offset": current.get(tp),
                "to_offset": offset,
            }
            for tp, offset in sorted(planned.items())
        ]
        say(json.dumps({"executed": args.execute, "offsets": shown}, indent=2))
        return
    rows = [
        (tp.topic, tp.partition, current.get(tp), offset) for tp, offset in sorted(planned.items())
    ]
    say(table(("topic", "partition", "from", "to"), rows))
    if not args.execute:
        say()
        say("nothing is changed yet: give --execute to commit these offsets")


# --- offsets ----------------------------------------------------------------------------------


def _partitions(cluster: Cluster, topics: list[str]) -> list[TopicPartition]:
    """The partitions that arguments like ``flights`` and ``flights:0,2`` name."""
    wanted: set[TopicPartition] = set()
    for text in topics:
        name, colon, numbers = text.partition(":")
        topic = known_topic(cluster, name)
        chosen = [partition.partition for partition in topic.partitions]
        if colon:
            if not all(number.isdecimal() for number in numbers.split(",")):
                raise UsageError(
                    f"--topic {text!r} is not TOPIC or TOPIC:N,N", "give it like t:0,2"
                )
            chosen = [checked_partition(topic, int(number)) for number in numbers.split(",")]
        wanted.update(TopicPartition(name, number) for number in chosen)
    return sorted(wanted)


def _planned(
    admin: Admin,
    args: argparse.Namespace,
    wanted: list[TopicPartition],
    current: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """The new offset of each partition, within the bounds of its log."""
    firsts = admin.list_offsets(dict.fromkeys(wanted, EARLIEST_TIMESTAMP))
    ends = admin.list_offsets(dict.fromkeys(wanted, LATEST_TIMESTAMP))
    if args.to_earliest:
        targets: Mapping[TopicPartition, int] = firsts
    elif args.to_latest:
        targets = ends
    elif args.to_offset is not None:
        targets = dict.fromkeys(wanted, args.to_offset)
    elif args.to_datetime is not None:
        found = admin.list_offsets(dict.fromkeys(wanted, args.to_datetime))
        targets = {tp: offset if offset >= 0 else ends[tp] for tp, offset in found.items()}
    else:
        without = [str(tp) for tp in wanted if tp not in current]
        if without:
            raise CliError(
                f"the group has committed nothing for {', '.join(without)}",
                "give --to-earliest, --to-latest or --to-offset",
            )
        shift = args.shift_by or 0
        targets = {tp: current[tp] + shift for tp in wanted}
    return {tp: min(max(targets[tp], firsts[tp]), ends[tp]) for tp in wanted}


def _bounds(
    cluster: Cluster, committed: Mapping[TopicPartition, int]
) -> tuple[Mapping[TopicPartition, int], Mapping[TopicPartition, int]]:
    """Log start and last stable offset of each partition that still exists."""
    topics = {topic.name: topic for topic in cluster.admin().describe_cluster().topics}
    known = [
        tp
        for tp in committed
        if tp.topic in topics and tp.partition < len(topics[tp.topic].partitions)
    ]
    admin = cluster.admin()
    return (
        admin.list_offsets(dict.fromkeys(known, EARLIEST_TIMESTAMP)),
        admin.list_offsets(dict.fromkeys(known, LATEST_TIMESTAMP)),
    )


# --- members ----------------------------------------------------------------------------------


def _refuse_members(group: GroupDescription, verb: str) -> None:
    """Reject if the group has members: they would overwrite the new offsets with theirs."""
    count = len(group.members)
    if count:
        raise CliError(
            f"cannot {verb} group {group.group_id!r}: it has {count} "
            f"{'member' if count == 1 else 'members'}",
            "stop its consumers first; `oncelog groups remove-members` removes dead ones",
        )


def _assigned(group: GroupDescription, assignment: bytes) -> tuple[TopicPartition, ...]:
    """A member's partitions; none if its assignor is not one of ours."""
    if group.protocol_type != PROTOCOL_TYPE:
        return ()
    try:
        return decode_assignment(assignment).partitions
    except CorruptDataError:
        return ()


def _owners(group: GroupDescription) -> dict[TopicPartition, str]:
    return {
        tp: member.member_id
        for member in group.members
        for tp in _assigned(group, member.assignment)
    }


def as_json(group: GroupDescription) -> dict[str, Any]:
    """A group as JSON."""
    return {
        "group": group.group_id,
        "state": group.state,
        "generation": group.generation_id,
        "protocol": group.protocol_name or None,
        "members": [
            {
                "member_id": member.member_id,
                "instance_id": member.group_instance_id,
                "client_id": member.client_id,
                "partitions": [str(tp) for tp in _assigned(group, member.assignment)],
            }
            for member in group.members
        ],
    }


# --- jobs -------------------------------------------------------------------------------------


def add_job_commands(commands: Commands) -> None:
    """Add ``oncelog jobs`` and its actions."""
    actions = add_actions(
        commands, "jobs", "List, describe, scale or stop jobs of cluster.process."
    )
    listing = add_command(actions, "list", "List the jobs.", list_jobs)
    describe = add_command(
        actions,
        "describe",
        "Show what a job does; exit status 1 if one of its workers has failed.",
        describe_job,
    )
    stop = add_command(actions, "stop", "Let a job commit its open batches, then end it.", stop_job)
    stop.add_argument(
        "--timeout-ms",
        type=whole_number(0),
        default=30_000,
        metavar="T",
        help="kill workers that have not ended after T ms (default: 30000)",
    )
    scale = add_command(actions, "scale", "Let a job have N workers while it runs.", scale_job)
    for action in (describe, stop, scale):
        action.add_argument("group", metavar="GROUP")
    scale.add_argument("workers", type=whole_number(1, WORKERS_MAX), metavar="N")
    add_json(listing, describe)
    for action in (listing, describe, stop, scale):
        add_cluster_arguments(action)


def list_jobs(args: argparse.Namespace) -> int:
    """``oncelog jobs list``."""
    with connect(args) as cluster:
        found = [(job, job.status()) for job in cluster.jobs()]
    facts = [_facts(job, status) for job, status in found]
    if args.json:
        say(json.dumps(facts))
        return 0
    names = ("group", "state", "sources", "sinks", "workers", "lag", "records_in", "restarts")
    if facts:
        say(table([name.upper().replace("_", " ") for name in names], _rows(facts, names)))
    return 0


def describe_job(args: argparse.Namespace) -> int:
    """``oncelog jobs describe``."""
    with connect(args) as cluster:
        job = cluster.job(args.group)
        status = job.status()
    facts = _facts(job, status)
    facts["each_worker"] = [
        {
            "worker": worker.worker_index,
            "state": worker.state.value,
            "process_id": worker.process_id,
            "records_in": worker.records_in,
            "records_out": worker.records_out,
            "commits": worker.commits,
            "aborts": worker.aborts,
            "reason": worker.reason,
        }
        for worker in status.workers
    ]
    if args.json:
        say(json.dumps(facts))
    else:
        workers = facts.pop("each_worker")
        say("\n".join(f"{name:18}{_text(value)}" for name, value in facts.items()))
        names = ("worker", "state", "process_id", "records_in", "commits", "aborts", "reason")
        say(table([name.upper().replace("_", " ") for name in names], _rows(workers, names)))
    return STATUS_ERROR if status.failures else 0


def stop_job(args: argparse.Namespace) -> int:
    """``oncelog jobs stop``."""
    with connect(args) as cluster:
        status = cluster.job(args.group).stop(args.timeout_ms)
    say(f"stopped {args.group}: {status.lag} offsets were not processed")
    return 0


def scale_job(args: argparse.Namespace) -> int:
    """``oncelog jobs scale``."""
    with connect(args) as cluster:
        status = cluster.job(args.group).scale(args.workers)
    say(f"{args.group} has {len(status.workers)} workers")
    return 0


def _facts(job: ProcessJob, status: JobStatus) -> dict[str, Any]:
    return {
        "group": job.group_id,
        "state": _state(status),
        "sources": list(job.sources),
        "sinks": list(job.sinks),
        "workers": len(status.workers),
        "lag": status.lag,
        "records_in": status.records_in,
        "records_out": status.records_out,
        "commits": status.commits,
        "aborts": status.aborts,
        "restarts": status.restarts,
        "function_failures": status.function_failures,
        "skipped": status.skipped,
        "dead_lettered": status.dead_lettered,
    }


def _state(status: JobStatus) -> str:
    """The state of a job: "failed" if any worker is, else that of its workers."""
    states = {worker.state.value for worker in status.workers}
    return "failed" if status.failures else "/".join(sorted(states))


def _rows(facts: list[dict[str, Any]], names: tuple[str, ...]) -> list[list[str]]:
    return [[_text(fact[name]) for name in names] for fact in facts]


def _text(value: Any) -> str:
    return ", ".join(value) if isinstance(value, list) else str(value)
