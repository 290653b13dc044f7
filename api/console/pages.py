"""The pages but for those of records and transactions: what each asks, and what it shows.

One file: the routes, in the order of the menu.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web

from oncelog.actors.protocol.messages.cluster import (
    BrokerMetadata,
    PartitionMetadata,
    TopicMetadata,
)
from oncelog.api.cli.status import FoundCondition, broker_state, voter_state
from oncelog.api.console import record_pages, transaction_pages
from oncelog.api.console.actions import ACTIONS, Action
from oncelog.api.console.rendering import (
    CONSOLE,
    ROWS_MAX,
    SESSION,
    VIEWER,
    find_topic,
    listed,
    login_page,
    page,
    value_of,
)
from oncelog.api.console.snapshot import Answer, Samples, Seen, assigned
from oncelog.storage.exceptions import InvalidRequestError, OncelogError
from oncelog.storage.model import INTERNAL_TOPICS, TopicPartition

PLACES_MAX: Final = 8
"""Places of a finding that are named."""

HELD_MAX: Final = 25
"""Partitions of a page whose oldest open transaction is looked up."""


async def _login_form(request: web.Request) -> web.Response:
    if request[SESSION] is not None or not request.app[CONSOLE].asks_login:
        raise web.HTTPSeeOther("/")
    return login_page(request)


# --- overview ---------------------------------------------------------------------------------


async def _overview(request: web.Request) -> web.Response:
    viewer = request[VIEWER]
    answer = await viewer.seen()
    seen = answer.value
    known = viewer.last_seen if not answer.is_refused else None
    metadata = None
    if answer.is_refused:
        metadata = (await viewer.metadata()).value
    return await page(
        request,
        "overview.html",
        "Overview",
        answer,
        seen=seen,
        known=known,
        is_old=seen is not None and not seen.status.has_controller,
        findings=[_finding(one, seen) for one in seen.findings] if seen is not None else [],
        metadata=metadata if known is None else known.status.metadata,
        counts=_counts(known) if known is not None else {},
        oldest=_oldest(known) if known is not None else [],
    )


@dataclass(frozen=True, slots=True)
class _Finding:
    name: str
    is_served: bool
    places: tuple[str, ...]
    more: int
    advice: str
    command: tuple[str, ...]


def _finding(found: FoundCondition, seen: Seen) -> _Finding:
    condition = found.condition
    # What users have made first: they know it by name.
    places = tuple(sorted(found.places, key=lambda place: place.startswith("__")))
    found = FoundCondition(condition, places)
    return _Finding(
        name=condition.name,
        is_served=condition.is_served,
        places=found.places[:PLACES_MAX],
        more=max(len(found.places) - PLACES_MAX, 0),
        advice=condition.advice,
        command=command_for(found, seen),
    )


_TOPIC_CONDITIONS: Final = ("without a leader", "refuses acks=all", "under-replicated")
_ACTOR_CONDITIONS: Final = ("not serving", "replica not following", "gateway not serving")
_DISK_CONDITIONS: Final = ("takes no writes", "disk refuses")


def command_for(found: FoundCondition, seen: Seen) -> tuple[str, ...]:
    """The command to type first about a finding, without what selects the cluster."""
    name, place = found.condition.name, found.places[0]
    if name in _TOPIC_CONDITIONS:
        topic = place.partition(" ")[0].rpartition("-")[0]
        if topic in INTERNAL_TOPICS:
            return ("status",)
        return ("topics", "describe", topic)
    if name in _DISK_CONDITIONS:
        return ("brokers", "log-dirs")
    if name in _ACTOR_CONDITIONS:
        # "partition:flights-1@2 in partitions:1@2 (does not answer)": its process is the host's.
        return ("logs", place.partition(" (")[0].rpartition(" in ")[2])
    if name == "late transaction":
        return ("transactions", "find-hanging")
    if name == "damaged":
        damaged = [actor.reply for actor in seen.status.actors if actor.is_damaged]
        tp, directory = damaged[0].topic_partition, damaged[0].directory
        return ("dump", f"{directory}/{tp}", "--verify") if directory else ("status",)
    return ("status",)


def _counts(seen: Seen) -> dict[str, Any]:
    status = seen.status
    brokers = status.metadata.brokers
    topics = [one for one in status.metadata.topics if one.name not in INTERNAL_TOPICS]
    return {
        "brokers": len(brokers),
        "brokers_alive": sum(one.is_live and not one.is_fenced for one in brokers),
        "topics": len(topics),
        "partitions": sum(len(one.partitions) for one in topics),
        "leaderless": len(status.leaderless),
        "under_replicated": len(status.under_replicated),
        "open_ids": status.active_transactional_id_count,
        "late": sum(one.late_transaction_count for one in seen.leaders.values()),
        "rate": sum(seen.rates.values()) if seen.rates else None,
        "size": sum(actor.reply.size_bytes for actor in status.actors),
    }


def _oldest(seen: Seen) -> list[tuple[TopicPartition, int, int]]:
    """The partitions with the oldest open transactions: age in ms, offsets not yet readable."""
    open_now = [
        (tp, reply.oldest_open_transaction_age_ms, reply.high_watermark - reply.last_stable_offset)
        for tp, reply in seen.leaders.items()
        if reply.open_transaction_count and tp.topic not in INTERNAL_TOPICS
    ]
    return sorted(open_now, key=lambda one: -one[1])[:5]


# --- brokers ----------------------------------------------------------------------------------


async def _brokers(request: web.Request) -> web.Response:
    viewer = request[VIEWER]
    answer = await viewer.seen()
    seen = viewer.last_seen if not answer.is_refused else None
    if seen is None:
        raise answer.error or InvalidRequestError("there is no answer yet")
    status = seen.status
    partitions = [one for topic in status.metadata.topics for one in topic.partitions]
    leaders = Counter(one.leader for one in partitions)
    replicas = Counter(broker_id for one in partitions for broker_id in one.replicas)
    sizes: Counter[int] = Counter()
    disks: dict[tuple[int, str], list[Any]] = {}
    for actor in status.actors:
        if actor.broker_id is None:
            continue
        sizes[actor.broker_id] += actor.reply.size_bytes
        if actor.reply.directory:
            disks.setdefault((actor.broker_id, actor.reply.directory), []).append(actor.reply)
    rows = [
        {
            "broker": one,
            "state": broker_state(status, one),
            "is_well": _is_well(one),
            "leaders": leaders[one.broker_id],
            "replicas": replicas[one.broker_id],
            "size": sizes[one.broker_id] if _is_well(one) else None,
            "gateway": status.gateways.get(one.broker_id),
        }
        for one in status.metadata.brokers
    ]
    voters = [(one, voter_state(one)) for one in status.metadata.voters]
    return await page(
        request,
        "brokers.html",
        "Brokers",
        answer,
        seen=seen,
        brokers=listed(request, rows, lambda row: str(row["broker"].broker_id)),
        disks=[
            {
                "broker": broker_id,
                "directory": directory,
                "replicas": len(replies),
                "size": sum(reply.size_bytes for reply in replies),
                "disk": replies[0].disk_size_bytes,
                "free": replies[0].disk_free_bytes,
                "refusal": next((reply.refusal for reply in replies if reply.refusal), ""),
            }
            for (broker_id, directory), replies in sorted(disks.items())[:ROWS_MAX]
        ],
        voters=voters,
    )


def _is_well(broker: BrokerMetadata) -> bool:
    return broker.is_live and not broker.is_fenced and not broker.problem


# --- topics -----------------------------------------------------------------------------------


async def _topics(request: web.Request) -> web.Response:
    viewer = request[VIEWER]
    answer, seen_answer = await asyncio.gather(viewer.metadata(), viewer.seen())
    metadata = value_of(answer)
    seen = viewer.last_seen if not seen_answer.is_refused else None
    shows_internal = request.query.get("internal") == "yes"
    topics = [
        one
        for one in sorted(metadata.topics, key=lambda topic: topic.name)
        if shows_internal or one.name not in INTERNAL_TOPICS
    ]
    found = listed(request, topics, lambda topic: topic.name)
    return await page(
        request,
        "topics.html",
        "Topics",
        answer,
        topics=found,
        rows=[_topic_row(one, seen) for one in found.items],
        shows_internal=shows_internal,
        has_sizes=seen is not None,
    )


def _topic_row(topic: TopicMetadata, seen: Seen | None) -> dict[str, Any]:
    replies = [
        reply
        for one in topic.partitions
        if seen is not None
        and (reply := seen.leaders.get(TopicPartition(topic.name, one.partition))) is not None
    ]
    return {
        "topic": topic,
        "replication": max((len(one.replicas) for one in topic.partitions), default=0),
        "leaderless": sum(one.leader < 0 for one in topic.partitions),
        "under": sum(one.is_under_replicated for one in topic.partitions),
        "rate": seen.rates.get(topic.name) if seen is not None else None,
        "size": sum(reply.size_bytes for reply in replies) if replies else None,
        "open": sum(reply.open_transaction_count for reply in replies),
        "held": sum(reply.high_watermark - reply.last_stable_offset for reply in replies),
        "offsets": sum(reply.high_watermark - reply.log_start_offset for reply in replies)
        if replies
        else None,
    }


async def _topic(request: web.Request) -> web.Response:
    viewer = request[VIEWER]
    answer = await viewer.metadata()
    topic = find_topic(request, value_of(answer).topics)
    found = listed(request, topic.partitions, lambda one: str(one.partition))
    numbers = tuple(one.partition for one in found.items)
    replies = await viewer.replicas(topic.name, numbers)
    known = replies.value or {}
    held = tuple(
        TopicPartition(topic.name, number)
        for number, reply in known.items()
        if reply.open_transaction_count
    )[:HELD_MAX]
    answers: list[Answer[Any]] = [answer]
    holders: dict[TopicPartition, Any] = {}
    if held:
        holders_answer = await viewer.holders(held)
        answers.append(holders_answer)
        holders = holders_answer.value or {}
    return await page(
        request,
        "topic.html",
        topic.name,
        *answers,
        topic=topic,
        partitions=found,
        replies=known,
        holders=holders,
        unanswered=[tp for tp in held if tp not in holders],
        TopicPartition=TopicPartition,
        notes={one.partition: _note(one) for one in found.items},
        is_internal=topic.name in INTERNAL_TOPICS,
    )


def _note(partition: PartitionMetadata) -> str:
    """What is wrong with a partition, or about to change; "" if nothing."""
    notes = []
    if partition.leader < 0:
        notes.append("no leader")
    if partition.is_under_replicated:
        notes.append("under-replicated")
    for verb, brokers in (("adding", partition.adding), ("removing", partition.removing)):
        if brokers:
            notes.append(f"{verb} {', '.join(map(str, brokers))}")
    return "; ".join(notes)


# --- groups, queues, jobs ---------------------------------------------------------------------

_QUEUE: Final = "share"


async def _groups(request: web.Request) -> web.Response:
    answer = await request[VIEWER].groups()
    groups = [one for one in value_of(answer) if one.protocol_type != _QUEUE]
    return await page(
        request,
        "groups.html",
        "Groups",
        answer,
        groups=listed(request, groups, lambda one: one.group_id),
        kind="group",
    )


async def _queues(request: web.Request) -> web.Response:
    answer = await request[VIEWER].groups()
    groups = [one for one in value_of(answer) if one.protocol_type == _QUEUE]
    return await page(
        request,
        "groups.html",
        "Queues",
        answer,
        groups=listed(request, groups, lambda one: one.group_id),
        kind="queue",
    )


async def _group(request: web.Request) -> web.Response:
    group_id = request.query.get("id", "")
    answer = await request[VIEWER].group(group_id)
    found = value_of(answer)
    members = [(member, assigned(found.group, member.assignment)) for member in found.group.members]
    return await page(
        request,
        "group.html",
        group_id,
        answer,
        found=found,
        members=members[:ROWS_MAX],
        member_count=len(members),
        lags=listed(request, found.lags, lambda one: str(one.topic_partition)),
    )


async def _queue(request: web.Request) -> web.Response:
    group_id = request.query.get("id", "")
    answer = await request[VIEWER].queue(group_id)
    found = value_of(answer)
    return await page(
        request,
        "queue.html",
        group_id,
        answer,
        found=found,
        partitions=listed(request, found.partitions, lambda one: str(one.topic_partition)),
    )


async def _jobs(request: web.Request) -> web.Response:
    answer = await request[VIEWER].jobs()
    return await page(
        request,
        "jobs.html",
        "Jobs",
        answer,
        jobs=listed(request, value_of(answer), lambda pair: str(pair[0].group_id)),
    )


# --- charts -----------------------------------------------------------------------------------


async def _throughput(request: web.Request) -> web.Response:
    viewer = request[VIEWER]
    answer = await viewer.seen()
    samples = Samples() if answer.is_refused else viewer.throughput
    return web.json_response({"label": "records/s", "columns": samples.as_json()})


async def _lag(request: web.Request) -> web.Response:
    viewer, group_id = request[VIEWER], request.query.get("id", "")
    kind = request.query.get("kind")
    answer = await (viewer.queue(group_id) if kind == "queue" else viewer.group(group_id))
    samples = viewer.lags.get(group_id) if answer.value is not None else None
    label = "backlog" if kind == "queue" else "lag"
    return web.json_response({"label": label, "columns": (samples or Samples()).as_json()})


# --- actions ----------------------------------------------------------------------------------


def _action(request: web.Request) -> Action:
    found = ACTIONS.get(request.match_info["action"])
    if found is None:
        raise web.HTTPNotFound(text="There is no such action.\n")
    return found


async def _show_action(request: web.Request) -> web.Response:
    action = _action(request)
    given = {one.name: request.query.get(one.name, "") for one in action.fields}
    return await page(
        request,
        "action.html",
        action.title,
        is_live=False,
        action=action,
        given=given,
        step="form",
        command_line="",
        problem=None,
        done="",
    )


async def _do_action(request: web.Request) -> web.Response:
    """Show what would be done, or with ``step=do`` do it."""
    action = _action(request)
    form = await request.post()
    given = {one.name: str(form.get(one.name, "")) for one in action.fields}
    problem, done, command, step = None, "", "", "form"
    try:
        values = action.checked(form)
        command = action.command(values, request.app[CONSOLE].command_options)
        step = "confirm"
        if form.get("step") == "do":
            viewer = request[VIEWER]
            try:
                done = await action.run(viewer.connected().writes, values)
            finally:
                # Also if it failed: it may have been done.
                viewer.answers.expire()
            step = "done"
    except OncelogError as error:
        problem = error
    return await page(
        request,
        "action.html",
        action.title,
        is_live=False,
        status=200 if problem is None else 409,
        action=action,
        given=given,
        step=step,
        command_line=command,
        problem=problem,
        done=done,
    )


# --- routes -----------------------------------------------------------------------------------


def add_routes(app: web.Application, *, writes: bool) -> None:
    """Add every page; without ``writes`` there are none that change anything."""
    for path, handler in (
        ("/", _overview),
        ("/login", _login_form),
        ("/brokers", _brokers),
        ("/topics", _topics),
        ("/topics/{topic}", _topic),
        ("/topics/{topic}/records", record_pages.show_records),
        ("/topics/{topic}/records/{partition}/{offset}", record_pages.show_record),
        ("/transactions", transaction_pages.show_transactions),
        ("/transactions/hanging", transaction_pages.show_hanging),
        ("/transaction", transaction_pages.show_transaction),
        ("/groups", _groups),
        ("/group", _group),
        ("/queues", _queues),
        ("/queue", _queue),
        ("/jobs", _jobs),
        ("/data/throughput", _throughput),
        ("/data/lag", _lag),
    ):
        app.router.add_get(path, handler)
    if writes:
        app.router.add_get("/actions/{action}", _show_action)
        app.router.add_post("/actions/{action}", _do_action)
