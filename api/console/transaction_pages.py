"""The pages of transactions: by state and age, those that hang, and the story of one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web

from oncelog.actors.protocol.messages.transaction import TransactionDescription
from oncelog.api.console import text
from oncelog.api.console.rendering import (
    QUERY_CHARS_MAX,
    ROWS_MAX,
    VIEWER,
    listed,
    page,
    value_of,
)
from oncelog.api.console.snapshot import Answer
from oncelog.storage.model import TRANSACTION_STATE_TOPIC, TopicPartition, shard_of

STORY_PARTITIONS_MAX: Final = 50
"""Partitions of a transaction that are asked for its marker."""

_DONE: Final = ("CompleteCommit", "CompleteAbort", "Empty")
_DECIDED: Final = ("PrepareCommit", "PrepareAbort")


async def show_transactions(request: web.Request) -> web.Response:
    """The transactional ids, open ones first."""
    viewer = request[VIEWER]
    answer = await viewer.transactions()
    every = value_of(answer)
    wanted = request.query.get("state", "")[:QUERY_CHARS_MAX]
    chosen = [one for one in every if not wanted or one.state == wanted]
    # Open ones first, the oldest at the top; then by the last change.
    chosen.sort(key=lambda one: (one.state in _DONE, _began_ms(one), -one.last_update_ms))
    return await page(
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


async def show_hanging(request: web.Request) -> web.Response:
    """What the search for hanging transactions has found."""
    answer = await request[VIEWER].hanging()
    return await page(
        request,
        "hanging.html",
        "Hanging transactions",
        answer,
        is_live=False,
        hanging=value_of(answer),
    )


@dataclass(frozen=True, slots=True)
class _Step:
    """A step of a transaction's story: ``when`` is a time, or bounds of one."""

    name: str
    when: str
    detail: str
    is_done: bool


async def show_transaction(request: web.Request) -> web.Response:
    """One transactional id, and the story of its transaction."""
    viewer = request[VIEWER]
    transactional_id = request.query.get("id", "")
    answer = await viewer.transaction(transactional_id)
    one = value_of(answer)
    places = _places_of(one)
    asked = places[:STORY_PARTITIONS_MAX]
    is_ended = one.state in _DONE
    answers: list[Answer[Any]] = [answer]
    open_since: dict[TopicPartition, int] = {}
    if asked and not is_ended:
        open_answer = await viewer.open_since(one, asked)
        answers.append(open_answer)
        open_since = open_answer.value or {}
    metadata = (await viewer.metadata()).value
    shard = broker = None
    if metadata is not None and metadata.transaction_state_partitions:
        shard = shard_of(transactional_id, metadata.transaction_state_partitions)
        led = [topic.find(shard) for topic in metadata.topics if topic.name == _SHARDS]
        broker = led[0].leader if led and led[0] is not None else None
    return await page(
        request,
        "transaction.html",
        transactional_id,
        *answers,
        one=one,
        story=story_of(one, len(places), open_since),
        places=places[:ROWS_MAX],
        place_count=len(places),
        open_since=open_since,
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
    one: TransactionDescription, place_count: int, open_since: Mapping[TopicPartition, int]
) -> list[_Step]:
    """What has happened to the transaction of an id, as far as its coordinator tells.

    ``open_since`` is what those partitions say that have answered, of ``place_count``.
    It keeps when a transaction began and when the id last changed: other times have bounds only.
    """
    began, changed = text.utc(one.transaction_start_ms), text.utc(one.last_update_ms)
    if one.state == "Empty":
        return [_Step("No transaction yet", "", f"the id exists since {changed} or earlier", False)]
    is_ended = one.state in ("CompleteCommit", "CompleteAbort")
    is_decided = is_ended or one.state in _DECIDED
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
    decided = changed if one.state in _DECIDED else f"by {changed}"
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
        written = sum(offset < 0 for offset in open_since.values())
        detail = f"{written:,} of {place_count:,} partitions have theirs"
        if len(open_since) < place_count:
            detail += f"; of {place_count - len(open_since):,} it is not known"
        steps.append(_Step("Markers", f"since {changed}", detail, False))
    else:
        steps.append(_Step("Markers", "", "written after the decision", False))
    steps.append(_Step("Complete", changed if is_ended else "", "", is_ended))
    return steps
