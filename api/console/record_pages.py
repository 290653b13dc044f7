"""The pages of the record browser: what is asked for, and the links to what comes next."""

from __future__ import annotations

import asyncio
import datetime
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web
from markupsafe import escape

from oncelog.api.console import records
from oncelog.api.console.records import Browser, Filter, Found, FoundRecord
from oncelog.api.console.rendering import (
    CONSOLE,
    QUERY_CHARS_MAX,
    VIEWER,
    find_topic,
    page,
    url,
    value_of,
    whole,
)
from oncelog.api.console.snapshot import Answer, is_login_over
from oncelog.storage.exceptions import (
    InvalidRequestError,
    OncelogError,
    UnknownTopicOrPartitionError,
)
from oncelog.storage.model import TopicPartition

PAGE_RECORDS: Final = 50
"""Records on a page that does not ask for another number."""


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
    partition = whole(query["partition"], "partition") if query.get("partition") else None
    if partition is None and partition_count == 1:
        partition = 0
    if partition is None and begin == "offset":
        partition = 0
    if partition is not None and not 0 <= partition < partition_count:
        raise UnknownTopicOrPartitionError(
            f"there is no partition {partition}", advice=f"give one from 0 to {partition_count - 1}"
        )
    count = whole(query.get("n") or str(PAGE_RECORDS), "n")
    return _Asked(
        partition=partition,
        begin=begin,
        offset=max(whole(query.get("offset") or "0", "offset"), 0),
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


async def show_records(request: web.Request) -> web.Response:
    """Records of one partition, or of several together."""
    viewer = request[VIEWER]
    answer = await viewer.metadata()
    topic = find_topic(request, value_of(answer).topics)
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
        return await page(
            request, "records.html", f"Records of {topic.name}", answer, is_live=False, **context
        )
    rows = [one for found in founds.values() for one in found.records]
    if asked.partition is None:
        rows.sort(key=lambda one: (one.timestamp_ms, one.partition, one.offset))
        rows = rows[-asked.count :] if asked.begin == "end" else rows[: asked.count]
    context |= {"founds": founds, "rows": rows, "partitions_shown": len(numbers)}
    if asked.partition is not None:
        context["next"] = _next(topic.name, asked, founds[asked.partition])
    return await page(
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


async def show_record(request: web.Request) -> web.Response:
    """One record, with its value in the form that is asked for."""
    viewer = request[VIEWER]
    answer = await viewer.metadata()
    topic = find_topic(request, value_of(answer).topics)
    partition = whole(request.match_info["partition"], "partition")
    offset = whole(request.match_info["offset"], "offset")
    form = request.query.get("form") or "auto"
    if form not in records.FORMS:
        raise InvalidRequestError(
            f"form={form[:100]!r} is not allowed", advice=f"give one of {', '.join(records.FORMS)}"
        )
    tp = TopicPartition(topic.name, partition)
    found = await _browser(request).read(tp, offset, Filter(shows_all=True), 1, keeps_whole=True)
    record = found.records[0] if found.records else None
    if record is None or record.offset != offset:
        raise InvalidRequestError(
            f"{tp} has no record at offset {offset} now",
            advice=f"it has those from {found.bounds.log_start_offset} to "
            f"{found.bounds.high_watermark}, but for what was compacted",
        )
    return await page(
        request,
        "record.html",
        f"{tp} at {offset}",
        answer,
        is_live=False,
        topic=topic,
        record=record,
        parts_of_record=await _parts(record, form, request.app[CONSOLE].arrows),
        forms=records.FORMS,
        form=form,
    )


async def _parts(
    record: FoundRecord, form: str, arrows: asyncio.Semaphore
) -> list[tuple[str, int, str, str]]:
    """Key and value: name, bytes, form and lines."""
    parts = []
    for name, data in (("key", record.key), ("value", record.value)):
        if data is None:
            parts.append((name, 0, "null", "null"))
            continue
        kind, lines = await records.form_of(data, "auto" if name == "key" else form, arrows)
        # Made visible already, with its lines kept.
        parts.append((name, len(data), kind, escape(lines)))
    return parts
