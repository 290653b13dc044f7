"""``oncelog groups`` and ``oncelog jobs``: members, committed offsets and lag of groups and jobs.

A job of ``cluster.process`` is a group whose members are its workers. It outlives the program that
starts it.

One file: a job is shown as the group that it is, with the same members, offsets and lag.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from oncelog.actors.protocol.group.consumer_protocol import PROTOCOL_TYPE, decode_assignment
from oncelog.actors.protocol.messages.group import GroupDescription
from oncelog.api.cli.arguments import (
    Arguments,
    Group,
    WholeNumber,
    argument,
    exclusive,
    flag,
    group_argument,
    option,
    output_options,
    repeated,
    time_ms,
)
from oncelog.api.cli.connect import cluster_options, connect
from oncelog.api.cli.terminal import (
    STATUS_ERROR,
    CliError,
    UsageError,
    fields,
    say,
    show,
    table,
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


# --- commands ---------------------------------------------------------------------------------


groups: Final = Group("groups")
_topics: Final = repeated("--topic", "TOPIC[:N,N...]", "all or some partitions of this topic")


@groups.command("list")
@output_options
@cluster_options
def list_groups(args: Arguments) -> int:
    """List the groups."""
    with connect(args) as cluster:
        found = cluster.admin().list_groups()
    rows = (
        (group.group_id, group.state, group.generation_id, len(group.members)) for group in found
    )
    headings = ("group", "state", "generation", "members")
    show(
        args,
        [as_json(group) for group in found],
        lambda: table(headings, rows) if found else "no groups",
    )
    return 0


@groups.command("describe")
@group_argument
@output_options
@cluster_options
def describe_group(args: Arguments) -> int:
    """Show a group's members, offsets and lag."""
    with connect(args) as cluster:
        admin = cluster.admin()
        group = admin.describe_group(args.group)
        committed = admin.list_group_offsets(args.group, require_stable=False)
        places = {tp: position.offset for tp, position in committed.items()}
        starts, ends = bounds(admin, places)
    lags = {
        tp: lag_of(places[tp], start_offset=starts[tp], end_offset=end) for tp, end in ends.items()
    }
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
    show(args, shown, lambda: _as_text(group, shown["offsets"]))
    return 0


def _as_text(group: GroupDescription, offsets: list[dict[str, Any]]) -> str:
    facts = (
        ("group", group.group_id),
        ("state", group.state),
        ("generation", group.generation_id),
        ("protocol", group.protocol_name or "none"),
    )
    parts = [fields(facts)]
    if group.members:
        members = (
            (member.member_id, member.group_instance_id, len(_assigned(group, member.assignment)))
            for member in group.members
        )
        parts.append(table(("member", "instance", "partitions"), members))
    if offsets:
        owners = _owners(group)
        names = ("topic", "partition", "offset", "end_offset", "lag")
        rows = (
            (
                *(one[name] for name in names),
                owners.get(TopicPartition(one["topic"], one["partition"])),
            )
            for one in offsets
        )
        parts.append(table(("topic", "partition", "offset", "end", "lag", "member"), rows))
    return "\n\n".join(parts)


@groups.command("delete")
@group_argument
@cluster_options
def delete_group(args: Arguments) -> int:
    """Delete a group without members, and its offsets."""
    with connect(args) as cluster:
        admin = cluster.admin()
        _refuse_members(admin.describe_group(args.group), "delete")
        admin.delete_group(args.group)
    say(f"deleted {args.group}")
    return 0


@groups.command("remove-members")
@group_argument
@repeated("--instance", "ID", "a static member, by its group_instance_id")
@repeated("--member", "ID", "a member, by its member id")
@flag("--all", "every member")
@cluster_options
def remove_members(args: Arguments) -> int:
    """Remove members whose programs are gone, before their sessions end."""
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


_TARGETS: Final = (
    "--to-earliest",
    "--to-latest",
    "--to-current",
    "--to-offset",
    "--to-datetime",
    "--shift-by",
)


@groups.command("reset-offsets")
@group_argument
@_topics
@flag("--all-topics", "every committed topic")
@flag("--to-earliest", "the log start offset")
@flag("--to-latest", "the last stable offset")
@flag("--to-current", "the offset committed now")
@option("--to-offset", type=WholeNumber(0, INT64_MAX), metavar="O", help="this offset")
@option(
    "--to-datetime",
    type=time_ms,
    metavar="TIME",
    help="the first record at or after this time: 2026-01-31T12:00 (UTC unless it says else)",
)
@option(
    "--shift-by",
    type=WholeNumber(-INT64_MAX, INT64_MAX),
    help="N records forward, or back if N is negative",
)
@flag("--execute", "commit the new offsets, durably")
@output_options
@cluster_options
def reset_offsets(args: Arguments) -> int:
    """Set the committed offsets of a group without members; only shows them unless --execute."""
    exclusive(*_TARGETS, required=True)
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


@groups.command("delete-offsets")
@group_argument
@_topics
@cluster_options
def delete_offsets(args: Arguments) -> int:
    """Delete committed offsets of topics that no member of the group reads."""
    if not args.topic:
        raise UsageError("no topics are given", "give --topic TOPIC or TOPIC:N,N")
    with connect(args) as cluster:
        wanted = _partitions(cluster, args.topic)
        cluster.admin().delete_group_offsets(args.group, wanted)
    say(f"deleted the offsets of {args.group} for {', '.join(map(str, wanted))}")
    return 0


def _say_plan(
    args: Arguments,
    planned: Mapping[TopicPartition, int],
    current: Mapping[TopicPartition, int],
) -> None:
    shown = [
        {
            "topic": tp.topic,
            "partition": tp.partition,
            "from_offset": current.get(tp),
            "to_offset": offset,
        }
        for tp, offset in sorted(planned.items())
    ]
    note = (
        "" if args.execute else "\n\nnothing is changed yet: give --execute to commit these offsets"
    )
    show(
        args,
        {"executed": args.execute, "offsets": shown},
        lambda: (
            table(("topic", "partition", "from", "to"), [[*one.values()] for one in shown]) + note
        ),
    )


# --- offsets ----------------------------------------------------------------------------------


def _partitions(cluster: Cluster, topics: Sequence[str]) -> list[TopicPartition]:
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
    args: Arguments,
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


def bounds(
    admin: Admin, committed: Mapping[TopicPartition, int]
) -> tuple[Mapping[TopicPartition, int], Mapping[TopicPartition, int]]:
    """Log start and last stable offset of each partition that has a leader to tell them."""
    led = {
        TopicPartition(topic.name, one.partition)
        for topic in admin.describe_cluster().topics
        for one in topic.partitions
        if one.leader >= 0
    }
    known = [tp for tp in committed if tp in led]
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


jobs: Final = Group("jobs")


@jobs.command("list")
@output_options
@cluster_options
def list_jobs(args: Arguments) -> int:
    """List the jobs."""
    with connect(args) as cluster:
        facts = [_facts(job, job.status()) for job in cluster.jobs()]
    names = ("group", "state", "sources", "sinks", "workers", "lag", "records_in", "restarts")
    show(args, facts, lambda: _table_of(facts, names) if facts else "no jobs")
    return 0


@jobs.command("describe")
@group_argument
@output_options
@cluster_options
def describe_job(args: Arguments) -> int:
    """Show what a job does; exit status 1 if one of its workers has failed."""
    with connect(args) as cluster:
        job = cluster.job(args.group)
        status = job.status()
    facts = _facts(job, status)
    workers = [
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
    names = ("worker", "state", "process_id", "records_in", "commits", "aborts", "reason")
    show(
        args,
        {**facts, "each_worker": workers},
        lambda: (
            fields((name, _text(value)) for name, value in facts.items())
            + f"\n\n{_table_of(workers, names)}"
        ),
    )
    return STATUS_ERROR if status.failures else 0


@jobs.command("stop")
@group_argument
@option(
    "--timeout-ms",
    type=WholeNumber(0),
    default=30_000,
    metavar="T",
    help="kill workers that have not ended after T ms (default: 30000)",
)
@cluster_options
def stop_job(args: Arguments) -> int:
    """Let a job commit its open batches, then end it."""
    with connect(args) as cluster:
        status = cluster.job(args.group).stop(args.timeout_ms)
    say(f"stopped {args.group}: {status.lag} offsets were not processed")
    return 0


@jobs.command("scale")
@group_argument
@argument("workers", type=WholeNumber(1, WORKERS_MAX), metavar="N")
@cluster_options
def scale_job(args: Arguments) -> int:
    """Let a job have N workers while it runs."""
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


def _table_of(facts: list[dict[str, Any]], names: tuple[str, ...]) -> str:
    rows = ([_text(fact[name]) for name in names] for fact in facts)
    return table([name.replace("_", " ") for name in names], rows)


def _text(value: Any) -> str:
    return ", ".join(value) if isinstance(value, list) else str(value)
