"""The pages: what each asks of the cluster, and the template that shows it.

A page is made whole, or only its live part when htmx asks for that every two seconds. Lists are cut
into pages here, on the server, so that no reply grows with the cluster.

One file: the routes, in the order of the menu.
"""

from __future__ import annotations

import asyncio
import datetime
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar
from urllib.parse import urlencode

import jinja2
from aiohttp import web
from markupsafe import escape

from oncelog.actors.process.clock import SystemClock
from oncelog.actors.protocol.messages.cluster import (
    BrokerMetadata,
    PartitionMetadata,
    TopicMetadata,
)
from oncelog.actors.protocol.messages.transaction import TransactionDescription
from oncelog.api.cli.status import FoundCondition, broker_state, voter_state
from oncelog.api.console import records, text
from oncelog.api.console.access import Hosts, Sessions
from oncelog.api.console.actions import ACTIONS, Action
from oncelog.api.console.records import Browser, Filter, Found, FoundRecord
from oncelog.api.console.snapshot import (
    Answer,
    Link,
    Samples,
    Seen,
    Viewer,
    assigned,
    is_login_over,
)
from oncelog.storage.exceptions import (
    InvalidRequestError,
    OncelogError,
    TransactionalIdNotFoundError,
    UnknownTopicOrPartitionError,
)
from oncelog.storage.model import (
    INTERNAL_TOPICS,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
    shard_of,
)

if TYPE_CHECKING:
    from oncelog.api.console.server import Connections

ROWS_MAX: Final = 100
"""Rows of a list on one page; the others are on the next."""

PLACES_MAX: Final = 20
"""Places of a finding that are named."""

HELD_MAX: Final = 25
"""Partitions of a page whose oldest open transaction is looked up."""

STORY_PARTITIONS_MAX: Final = 50
"""Partitions of a transaction that are asked for its marker."""

PAGE_RECORDS: Final = 50
QUERY_CHARS_MAX: Final = 200
"""Of what is searched for in a list."""

ItemT = TypeVar("ItemT")


@dataclass(slots=True, kw_only=True)
class Console:
    """What every request shares."""

    link: Link
    own_viewer: Viewer
    sessions: Sessions
    hosts: Hosts
    asks_login: bool
    writes: bool
    title: str
    is_secure: bool
    command_options: tuple[str, ...]
    connections: Connections | None = None
    reads: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(records.READS_MAX))


CONSOLE: Final = web.AppKey("console", Console)
VIEWER: Final = "viewer"
SESSION: Final = "session"

_clock: Final = SystemClock()


# --- making a page ----------------------------------------------------------------------------


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=text.finalized,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        size=text.size,
        number=text.number,
        duration=text.duration,
        utc=text.utc,
        advice=text.advice_markup,
        preview=text.preview,
        exact=lambda value: escape(value),
        short=lambda value, most=60: text.shown(value, chars_max=most),
    )
    environment.globals.update(url=url, ago=ago, ROWS_MAX=ROWS_MAX)
    return environment


def url(path: str, **query: object) -> str:
    """A path with a query; values that are ``None`` or empty are left out."""
    kept = {name: value for name, value in query.items() if value not in (None, "")}
    return f"{path}?{urlencode(kept)}" if kept else path


def ago(time_ms: int) -> str:
    """How long ago a time was, "-" if it is none."""
    return text.duration(max(_clock.now_ms() - time_ms, 0)) if time_ms >= 0 else "-"


_templates: Final = _environment()

MENU: Final = (
    ("o", "/", "Overview"),
    ("b", "/brokers", "Brokers"),
    ("t", "/topics", "Topics"),
    ("x", "/transactions", "Transactions"),
    ("g", "/groups", "Groups"),
    ("q", "/queues", "Queues"),
    ("j", "/jobs", "Jobs"),
)


async def _page(
    request: web.Request,
    template: str,
    title: str,
    *answers: Answer[Any],
    is_live: bool = True,
    status: int = 200,
    **context: Any,
) -> web.Response:
    """Render a page, or its live part; say since when the cluster does not answer."""
    console, viewer, session = request.app[CONSOLE], request[VIEWER], request[SESSION]
    for answer in answers:
        if is_login_over(answer.error):
            await console.sessions.end_all_of(viewer)
            if "HX-Request" in request.headers:
                return web.Response(status=401, headers={"HX-Refresh": "true"})
            raise web.HTTPSeeOther("/login")
    failed = [one for one in answers if one.error is not None and not one.is_refused]
    silent = [one for one in failed if one.error is not None and one.error.retriable]
    refused = [one for one in answers if one.is_refused]
    seen = viewer.last_seen
    html = _templates.get_template(template).render(
        layout="fragment.html" if "HX-Request" in request.headers else "page.html",
        title=title,
        console_title=console.title,
        menu=MENU,
        path=request.path,
        here=request.path_qs,
        is_live=is_live,
        state=_state(seen, silent),
        cluster_id=seen.status.metadata.cluster_id if seen is not None else "",
        user=session.viewer.name if session is not None else "",
        token=console.sessions.form_token(session),
        writes=console.writes,
        failed=failed[0] if failed else None,
        refused=refused[0] if refused else None,
        now_ms=_clock.now_ms(),
        **context,
    )
    # htmx shows no part of a page that failed: what is wrong is to be seen even so.
    status = 200 if "HX-Request" in request.headers else status
    return web.Response(text=html, content_type="text/html", status=status)


def _state(seen: Seen | None, silent: Sequence[Answer[Any]]) -> str:
    if silent:
        return "no answer"
    return "unknown" if seen is None else seen.state


def login_page(request: web.Request, problem: str = "", status: int = 200) -> web.Response:
    """The form to log in, and why it did not work."""
    console = request.app[CONSOLE]
    html = _templates.get_template("login.html").render(
        problem=problem,
        token=console.sessions.form_token(request[SESSION]),
        console_title=console.title,
        is_secure=console.is_secure,
    )
    return web.Response(text=html, content_type="text/html", status=status)


async def _login_form(request: web.Request) -> web.Response:
    if request[SESSION] is not None or not request.app[CONSOLE].asks_login:
        raise web.HTTPSeeOther("/")
    return login_page(request)


async def error_page(request: web.Request, error: OncelogError) -> web.Response:
    """What went wrong, and what to do about it."""
    is_unknown = isinstance(error, (UnknownTopicOrPartitionError, TransactionalIdNotFoundError))
    is_ours = isinstance(error, InvalidRequestError)
    return await _page(
        request,
        "error.html",
        "Error",
        Answer(error=error if is_login_over(error) else None),
        is_live=False,
        status=404 if is_unknown else 400 if is_ours else 503 if error.retriable else 403,
        error=error,
    )


# --- lists ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed(Generic[ItemT]):
    """One page of a list that was searched: ``number`` counts from 1."""

    items: Sequence[ItemT]
    query: str
    number: int
    page_count: int
    found_count: int
    total_count: int


def listed(
    request: web.Request, items: Sequence[ItemT], name_of: Callable[[ItemT], str]
) -> Listed[ItemT]:
    """The page of ``items`` that the query of a request asks for, by ``q`` and ``page``."""
    query = request.query.get("q", "").strip()[:QUERY_CHARS_MAX]
    wanted = query.casefold()
    found = [one for one in items if wanted in name_of(one).casefold()] if wanted else items
    page_count = max((len(found) + ROWS_MAX - 1) // ROWS_MAX, 1)
    number = min(max(_whole(request.query.get("page", "1"), "page"), 1), page_count)
    return Listed(
        items=found[(number - 1) * ROWS_MAX : number * ROWS_MAX],
        query=query,
        number=number,
        page_count=page_count,
        found_count=len(found),
        total_count=len(items),
    )


def _whole(given: str, name: str) -> int:
    """A whole number of a query; ``InvalidRequestError`` says what else it is."""
    if not re.fullmatch(r"-?[0-9]{1,19}", given):
        raise InvalidRequestError(
            f"{name}={given[:100]!r} is no whole number", advice="give one of up to 19 digits"
        )
    return int(given)


def _value(answer: Answer[ItemT]) -> ItemT:
    """What was answered last; the error if nothing ever was."""
    if answer.value is None:
        if answer.error is not None:
            raise answer.error
        raise InvalidRequestError("there is no answer yet", advice="load the page again")
    return answer.value


# --- overview ---------------------------------------------------------------------------------


async def _overview(request: web.Request) -> web.Response:
    viewer = request[VIEWER]
    answer = await viewer.seen()
    seen = answer.value
    known = viewer.last_seen if not answer.is_refused else None
    metadata = None
    if answer.is_refused:
        metadata = (await viewer.metadata()).value
    return await _page(
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
        options=request.app[CONSOLE].command_options,
    )


@dataclass(frozen=True, slots=True)
class _Finding:
    name: str
    is_served: bool
    places: tuple[str, ...]
    more: int
    advice: str
    command: str


def _finding(found: FoundCondition, seen: Seen) -> _Finding:
    condition = found.condition
    return _Finding(
        name=condition.name,
        is_served=condition.is_served,
        places=found.places[:PLACES_MAX],
        more=max(len(found.places) - PLACES_MAX, 0),
        advice=condition.advice,
        command=command_for(found, seen),
    )


_TOPIC_CONDITIONS: Final = ("without a leader", "refuses acks=all", "under-replicated")
_DISK_CONDITIONS: Final = ("takes no writes", "disk refuses")


def command_for(found: FoundCondition, seen: Seen) -> str:
    """The command to type first about a finding."""
    name, place = found.condition.name, found.places[0]
    if name == "broker away":
        return f"oncelog brokers drain {place.removeprefix('broker ')}"
    if name in _TOPIC_CONDITIONS:
        topic = place.partition(" ")[0].rpartition("-")[0]
        if topic in INTERNAL_TOPICS:
            return "oncelog status"
        return f"oncelog topics describe {topic}"
    if name in _DISK_CONDITIONS:
        return "oncelog brokers log-dirs"
    if name == "damaged":
        damaged = [actor.reply for actor in seen.status.actors if actor.is_damaged]
        tp, directory = damaged[0].topic_partition, damaged[0].directory
        return f"oncelog dump {directory}/{tp} --verify" if directory else "oncelog status"
    return "oncelog status"


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
    leaders = Counter(partition.leader for _, partition in status.partitions())
    replicas: Counter[int] = Counter()
    for _, partition in status.partitions():
        replicas.update(partition.replicas)
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
            "size": sizes[one.broker_id],
        }
        for one in status.metadata.brokers
    ]
    voters = [(one, voter_state(one)) for one in status.metadata.voters]
    return await _page(
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
    metadata = _value(answer)
    seen = viewer.last_seen if not seen_answer.is_refused else None
    shows_internal = request.query.get("internal") == "yes"
    topics = [
        one
        for one in sorted(metadata.topics, key=lambda topic: topic.name)
        if shows_internal or one.name not in INTERNAL_TOPICS
    ]
    found = listed(request, topics, lambda topic: topic.name)
    return await _page(
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


def _find_topic(request: web.Request, topics: Iterable[TopicMetadata]) -> TopicMetadata:
    name = request.match_info["topic"]
    for one in topics:
        if one.name == name:
            return one
    raise UnknownTopicOrPartitionError(
        f"there is no topic {name!r}", advice="`oncelog topics list` shows those that exist"
    )


async def _topic(request: web.Request) -> web.Response:
    viewer = request[VIEWER]
    answer = await viewer.metadata()
    topic = _find_topic(request, _value(answer).topics)
    found = listed(request, topic.partitions, lambda one: str(one.partition))
    numbers = tuple(one.partition for one in found.items)
    replies = await viewer.replicas(topic.name, numbers)
    known = replies.value or {}
    held = tuple(
        TopicPartition(topic.name, number)
        for number, reply in known.items()
        if reply.open_transaction_count
    )[:HELD_MAX]
    holders = await viewer.holders(held) if held else None
    return await _page(
        request,
        "topic.html",
        topic.name,
        answer,
        topic=topic,
        partitions=found,
        replies=known,
        holders=(holders.value or {}) if holders is not None else {},
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


# --- records ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What the record browser is asked for; ``partition`` ``None``: of several, together."""

    partition: int | None
    begin: str
    offset: int
    at: str
    count: int
    wanted: Filter

    def query(self, **changed: object) -> dict[str, object]:
        """The query of a link to the same, but for what is ``changed``."""
        return {
            "partition": self.partition,
            "from": self.begin,
            "offset": self.offset if self.begin == "offset" else None,
            "at": self.at if self.begin == "time" else None,
            "n": self.count if self.count != PAGE_RECORDS else None,
            "key": self.wanted.key,
            "header": self.wanted.header,
            "value": self.wanted.value,
            "show": "all" if self.wanted.shows_all else None,
            **changed,
        }


BEGINNINGS: Final = ("end", "beginning", "offset", "time")


def _asked(query: Mapping[str, str], partition_count: int) -> _Asked:
    begin = query.get("from") or "end"
    if begin not in BEGINNINGS:
        raise InvalidRequestError(
            f"from={begin[:100]!r} is not allowed", advice=f"give one of {', '.join(BEGINNINGS)}"
        )
    partition = _whole(query["partition"], "partition") if query.get("partition") else None
    if partition is None and partition_count == 1:
        partition = 0
    if partition is None and begin == "offset":
        partition = 0
    if partition is not None and not 0 <= partition < partition_count:
        raise UnknownTopicOrPartitionError(
            f"there is no partition {partition}", advice=f"give one from 0 to {partition_count - 1}"
        )
    count = _whole(query.get("n") or str(PAGE_RECORDS), "n")
    return _Asked(
        partition=partition,
        begin=begin,
        offset=max(_whole(query.get("offset") or "0", "offset"), 0),
        at=query.get("at", "")[:QUERY_CHARS_MAX],
        count=min(max(count, 1), records.PAGE_RECORDS_MAX),
        wanted=Filter(
            key=query.get("key", ""),
            header=query.get("header", ""),
            value=query.get("value", ""),
            shows_all=query.get("show") == "all",
        ),
    )


def time_ms(given: str) -> int:
    """An ISO 8601 date or time, UTC unless it says else, or ms since the epoch."""
    if re.fullmatch("[0-9]{11,18}", given):
        return int(given)
    try:
        moment = datetime.datetime.fromisoformat(given.strip().removesuffix("Z"))
    except ValueError:
        raise InvalidRequestError(
            f"{given!r} is no time", advice="give one like 2026-01-31T12:00, in UTC"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.timezone.utc)
    return max(int(moment.timestamp() * 1_000), 0)


def _browser(request: web.Request) -> Browser:
    connected = request[VIEWER].connected()
    return Browser(connected.router, connected.admin, request.app[CONSOLE].reads)


async def _read(browser: Browser, topic: str, partition: int, asked: _Asked) -> tuple[int, Found]:
    tp = TopicPartition(topic, partition)
    if asked.begin == "end":
        return partition, await browser.read_last(tp, asked.wanted, asked.count)
    offset = asked.offset if asked.begin == "offset" else 0
    if asked.begin == "time":
        offset = await browser.offset_at(tp, time_ms(asked.at), await browser.bounds(tp))
    return partition, await browser.read(tp, offset, asked.wanted, asked.count)


async def _records(request: web.Request) -> web.Response:
    viewer = request[VIEWER]
    answer = await viewer.metadata()
    topic = _find_topic(request, _value(answer).topics)
    context: dict[str, Any] = {"topic": topic, "problem": None, "founds": {}, "rows": []}
    context |= {"asked": None, "next": None, "partitions_shown": 0}
    try:
        asked = _asked(request.query, len(topic.partitions))
        context["asked"] = asked
        wanted = [asked.partition] if asked.partition is not None else range(len(topic.partitions))
        numbers = list(wanted)[: records.MERGED_PARTITIONS_MAX]
        browser = _browser(request)
        founds = dict([await _read(browser, topic.name, one, asked) for one in numbers])
    except OncelogError as error:
        if is_login_over(error):
            answer = Answer(error=error)
        context["problem"] = error
        return await _page(
            request, "records.html", f"Records of {topic.name}", answer, is_live=False, **context
        )
    rows = [one for found in founds.values() for one in found.records]
    if asked.partition is None:
        rows.sort(key=lambda one: (one.timestamp_ms, one.partition, one.offset))
        rows = rows[-asked.count :] if asked.begin == "end" else rows[: asked.count]
    context |= {"founds": founds, "rows": rows, "partitions_shown": len(numbers)}
    if asked.partition is not None:
        context["next"] = _next(topic.name, asked, founds[asked.partition])
    return await _page(
        request, "records.html", f"Records of {topic.name}", answer, is_live=False, **context
    )


def _next(topic: str, asked: _Asked, found: Found) -> dict[str, str]:
    """Links to the records before and after those that are shown."""
    links = {"earlier": "", "later": ""}
    path = f"/topics/{topic}/records"
    end = found.bounds.high_watermark
    end = end if asked.wanted.shows_all else found.bounds.last_stable_offset
    if found.next_offset < end:
        after = asked.query(**{"from": "offset", "offset": found.next_offset})
        links["later"] = url(path, **after)
    first = found.records[0].offset if found.records else found.offset
    if first > found.bounds.log_start_offset:
        begin = max(first - asked.count, found.bounds.log_start_offset)
        links["earlier"] = url(path, **asked.query(**{"from": "offset", "offset": begin}))
    return links


async def _record(request: web.Request) -> web.Response:
    viewer = request[VIEWER]
    answer = await viewer.metadata()
    topic = _find_topic(request, _value(answer).topics)
    partition = _whole(request.match_info["partition"], "partition")
    offset = _whole(request.match_info["offset"], "offset")
    form = request.query.get("form") or "auto"
    if form not in records.FORMS:
        raise InvalidRequestError(
            f"form={form[:100]!r} is not allowed", advice=f"give one of {', '.join(records.FORMS)}"
        )
    tp = TopicPartition(topic.name, partition)
    found = await _browser(request).read(tp, offset, Filter(shows_all=True), 1)
    record = found.records[0] if found.records else None
    if record is None or record.offset != offset:
        raise InvalidRequestError(
            f"{tp} has no record at offset {offset} now",
            advice=f"it has those from {found.bounds.log_start_offset} to "
            f"{found.bounds.high_watermark}, but for what was compacted",
        )
    return await _page(
        request,
        "record.html",
        f"{tp} at {offset}",
        answer,
        is_live=False,
        topic=topic,
        record=record,
        parts_of_record=await _parts(record, form),
        forms=records.FORMS,
        form=form,
    )


async def _parts(record: FoundRecord, form: str) -> list[tuple[str, int, str, str]]:
    """Key and value: name, bytes, form and lines."""
    parts = []
    for name, data in (("key", record.key), ("value", record.value)):
        if data is None:
            parts.append((name, 0, "null", "null"))
            continue
        kind, lines = await records.form_of(data, "auto" if name == "key" else form)
        # Made visible already, with its lines kept.
        parts.append((name, len(data), kind, escape(lines)))
    return parts


# --- transactions -----------------------------------------------------------------------------

_DONE: Final = ("CompleteCommit", "CompleteAbort", "Empty")


async def _transactions(request: web.Request) -> web.Response:
    viewer = request[VIEWER]
    answer = await viewer.transactions()
    every = _value(answer)
    wanted = request.query.get("state", "")[:QUERY_CHARS_MAX]
    chosen = [one for one in every if not wanted or one.state == wanted]
    # Open ones first, the oldest at the top; then by the last change.
    chosen.sort(key=lambda one: (one.state in _DONE, _began_ms(one), -one.last_update_ms))
    return await _page(
        request,
        "transactions.html",
        "Transactions",
        answer,
        states=sorted(Counter(one.state for one in every).items()),
        wanted=wanted,
        transactions=listed(request, chosen, lambda one: one.transactional_id),
        done=_DONE,
    )


def _began_ms(one: TransactionDescription) -> int:
    return one.transaction_start_ms if one.transaction_start_ms >= 0 else 2**63


async def _hanging(request: web.Request) -> web.Response:
    answer = await request[VIEWER].hanging()
    return await _page(
        request,
        "hanging.html",
        "Hanging transactions",
        answer,
        is_live=False,
        hanging=_value(answer),
    )


@dataclass(frozen=True, slots=True)
class _Step:
    """A step of a transaction's story: ``when`` is a time, or bounds of one."""

    name: str
    when: str
    detail: str
    is_done: bool


async def _transaction(request: web.Request) -> web.Response:
    viewer = request[VIEWER]
    transactional_id = request.query.get("id", "")
    answer = await viewer.transaction(transactional_id)
    one = _value(answer)
    places = _places_of(one)
    asked = places[:STORY_PARTITIONS_MAX]
    is_ended = one.state in _DONE
    unmarked_answer = None
    if asked and not is_ended:
        ids = frozenset((one.producer_id, *(member.producer_id for member in one.members)))
        unmarked_answer = await viewer.unmarked(asked, ids)
    unmarked = (unmarked_answer.value or {}) if unmarked_answer is not None else {}
    metadata = (await viewer.metadata()).value
    shard = broker = None
    if metadata is not None and metadata.transaction_state_partitions:
        shard = shard_of(transactional_id, metadata.transaction_state_partitions)
        led = [topic.find(shard) for topic in metadata.topics if topic.name == _SHARDS]
        broker = led[0].leader if led and led[0] is not None else None
    return await _page(
        request,
        "transaction.html",
        transactional_id,
        answer,
        one=one,
        story=story_of(one, len(places), len(unmarked), len(asked)),
        places=places[:ROWS_MAX],
        place_count=len(places),
        unmarked=unmarked,
        asked=asked,
        is_ended=is_ended,
        shard=shard,
        broker=broker,
    )


_SHARDS: Final = TRANSACTION_STATE_TOPIC


def _places_of(one: TransactionDescription) -> tuple[TopicPartition, ...]:
    """The partitions that are enrolled, those of members included."""
    found = {*one.partitions, *(tp for member in one.members for tp in member.partitions)}
    return tuple(sorted(found))


def story_of(
    one: TransactionDescription, place_count: int, unmarked_count: int, asked_count: int
) -> list[_Step]:
    """What has happened to the transaction of an id, as far as its coordinator tells.

    It keeps when a transaction began and when the id last changed: other times have bounds only.
    """
    began, changed = text.utc(one.transaction_start_ms), text.utc(one.last_update_ms)
    if one.state == "Empty":
        return [_Step("No transaction yet", "", f"the id exists since {changed} or earlier", False)]
    is_ended = one.state in ("CompleteCommit", "CompleteAbort")
    is_decided = is_ended or (one.state.startswith("Prepare") and one.state != "PrepareEpochFence")
    steps = [
        _Step("Began", began if one.transaction_start_ms >= 0 else f"before {changed}", "", True)
    ]
    enrolled = f"{place_count:,} partitions" if place_count else "none is kept"
    if is_ended and not place_count:
        enrolled = "which ones is not kept once it is complete"
    bound = f"between {began} and {changed}" if one.transaction_start_ms >= 0 else f"by {changed}"
    steps.append(_Step("Enrolled", bound, enrolled, place_count > 0 or is_decided))
    if one.prepared is not None:
        prepared = text.utc(one.prepared.prepared_ms)
        steps.append(
            _Step("Prepared", prepared, "another system decides; there is no timeout", True)
        )
    verdict = "abort" if "Abort" in one.state or one.state == "PrepareEpochFence" else "commit"
    decided = changed if one.state.startswith("Prepare") else f"by {changed}"
    if is_decided:
        steps.append(_Step(f"Decided: {verdict}", decided, "logged by the coordinator", True))
    else:
        steps.append(
            _Step(
                "Decided",
                "",
                f"within {text.duration(one.transaction_timeout_ms)} of "
                "its begin, or it is aborted",
                False,
            )
        )
    if is_ended:
        steps.append(_Step("Markers", f"by {changed}", "each partition has its marker", True))
    elif is_decided:
        written = asked_count - unmarked_count
        steps.append(
            _Step(
                "Markers",
                f"since {changed}",
                f"{written:,} of {asked_count:,} partitions have theirs",
                False,
            )
        )
    else:
        steps.append(_Step("Markers", "", "written after the decision", False))
    steps.append(_Step("Complete", changed if is_ended else "", "", is_ended))
    return steps


# --- groups, queues, jobs ---------------------------------------------------------------------

_QUEUE: Final = "share"


async def _groups(request: web.Request) -> web.Response:
    answer = await request[VIEWER].groups()
    groups = [one for one in _value(answer) if one.protocol_type != _QUEUE]
    return await _page(
        request,
        "groups.html",
        "Groups",
        answer,
        groups=listed(request, groups, lambda one: one.group_id),
        kind="group",
    )


async def _queues(request: web.Request) -> web.Response:
    answer = await request[VIEWER].groups()
    groups = [one for one in _value(answer) if one.protocol_type == _QUEUE]
    return await _page(
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
    found = _value(answer)
    members = [(member, assigned(found.group, member.assignment)) for member in found.group.members]
    return await _page(
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
    found = _value(answer)
    return await _page(
        request,
        "queue.html",
        group_id,
        answer,
        found=found,
        partitions=listed(request, found.partitions, lambda one: str(one.topic_partition)),
    )


async def _jobs(request: web.Request) -> web.Response:
    answer = await request[VIEWER].jobs()
    return await _page(
        request,
        "jobs.html",
        "Jobs",
        answer,
        jobs=listed(request, _value(answer), lambda pair: str(pair[0].group_id)),
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
    return await _page(
        request,
        "action.html",
        action.title,
        is_live=False,
        action=action,
        given=given,
        step="form",
        command="",
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
            done = await action.run(request[VIEWER].connected().writes, values)
            step = "done"
    except OncelogError as error:
        problem = error
    return await _page(
        request,
        "action.html",
        action.title,
        is_live=False,
        status=200 if problem is None else 409,
        action=action,
        given=given,
        step=step,
        command=command,
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
        ("/topics/{topic}/records", _records),
        ("/topics/{topic}/records/{partition}/{offset}", _record),
        ("/transactions", _transactions),
        ("/transactions/hanging", _hanging),
        ("/transaction", _transaction),
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
