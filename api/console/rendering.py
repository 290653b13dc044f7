"""How a page is made: the templates, what each page has, and lists that are cut into pages.

A page is made whole, or only its live part when htmx asks for that every two seconds. Lists are cut
here, on the server, so that no reply grows with the cluster.
"""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar
from urllib.parse import urlencode

import jinja2
from aiohttp import web
from markupsafe import escape

from oncelog.actors.process.clock import SystemClock
from oncelog.actors.protocol.messages.cluster import TopicMetadata
from oncelog.api.console import records, text
from oncelog.api.console.access import Hosts, Sessions
from oncelog.api.console.snapshot import Answer, Link, Seen, Viewer, is_login_over
from oncelog.storage.exceptions import (
    InvalidRequestError,
    OncelogError,
    TransactionalIdNotFoundError,
    UnknownTopicOrPartitionError,
)

if TYPE_CHECKING:
    from oncelog.api.console.server import Connections

ROWS_MAX: Final = 100
"""Rows of a list on one page; the others are on the next."""

QUERY_CHARS_MAX: Final = 200
"""Of what is searched for in a list."""

COMMANDS_OF_FILES: Final = ("dump",)
"""Commands that connect to no cluster."""

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
    arrows: asyncio.Semaphore = field(
        default_factory=lambda: asyncio.Semaphore(records.ARROW_PROCESSES_MAX)
    )


CONSOLE: Final = web.AppKey("console", Console)
# Before 3.14 aiohttp knows only text as the key of what belongs to a request.
VIEWER: Final[Any] = web.RequestKey("viewer", Viewer) if hasattr(web, "RequestKey") else "viewer"
SESSION: Final[Any] = web.RequestKey("session", object) if hasattr(web, "RequestKey") else "session"

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


async def page(
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
        # Without a session it is the console's own login: nobody can log in anew for that.
        if session is not None and is_login_over(answer.error):
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
        command=lambda *words: shlex.join(
            ("oncelog", *map(str, words), *_selecting(console, words))
        ),
        **context,
    )
    # htmx shows no part of a page that failed: what is wrong is to be seen even so.
    status = 200 if "HX-Request" in request.headers else status
    return web.Response(text=html, content_type="text/html", status=status)


def _selecting(console: Console, words: Sequence[object]) -> tuple[str, ...]:
    """The options of a command that select this cluster."""
    return () if words[0] in COMMANDS_OF_FILES else console.command_options


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


async def error_page(request: web.Request, error: OncelogError) -> web.Response:
    """What went wrong, and what to do about it."""
    is_unknown = isinstance(error, (UnknownTopicOrPartitionError, TransactionalIdNotFoundError))
    is_ours = isinstance(error, InvalidRequestError)
    ends_session = request[SESSION] is not None and is_login_over(error)
    return await page(
        request,
        "error.html",
        "Error",
        Answer(error=error if ends_session else None),
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
    number = min(max(whole(request.query.get("page", "1"), "page"), 1), page_count)
    return Listed(
        items=found[(number - 1) * ROWS_MAX : number * ROWS_MAX],
        query=query,
        number=number,
        page_count=page_count,
        found_count=len(found),
        total_count=len(items),
    )


def whole(given: str, name: str) -> int:
    """A whole number of a query; ``InvalidRequestError`` says what else it is."""
    if not re.fullmatch(r"-?[0-9]{1,19}", given):
        raise InvalidRequestError(
            f"{name}={given[:100]!r} is no whole number", advice="give one of up to 19 digits"
        )
    return int(given)


def value_of(answer: Answer[ItemT]) -> ItemT:
    """What was answered last; the error if nothing ever was."""
    if answer.value is None:
        if answer.error is not None:
            raise answer.error
        raise InvalidRequestError("there is no answer yet", advice="load the page again")
    return answer.value


def find_topic(request: web.Request, topics: Iterable[TopicMetadata]) -> TopicMetadata:
    """The topic that a path names; ``UnknownTopicOrPartitionError`` without one."""
    name = request.match_info["topic"]
    for one in topics:
        if one.name == name:
            return one
    raise UnknownTopicOrPartitionError(
        f"there is no topic {name!r}", advice="`oncelog topics list` shows those that exist"
    )
