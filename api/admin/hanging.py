"""Hanging transactions: open on a partition, and no coordinator will ever end them.

Rules. A partition's open transaction is *owned* by the transactional id that has its producer id
in that epoch, with the partition enrolled; its marker will come. The search asks the leader, then
every coordinator, then the leader again. A transaction that ended between the first two replies
had its marker before its coordinator forgot it, so the third reply shows it as ended.
A transaction that is about to end is therefore never called hanging.

Coordinators that do not reply are named, and what the others found is still reported. Until all
have replied, a transaction without a known owner cannot be called hanging.

An abort has the leader of one partition write the missing marker, if just that transaction is still
open there. A transaction that an id may still end or write to is always rejected: one part of it
would be aborted and the rest committed. End its owner first.

Source: KIP-664; KIP-98, "Tools"; the epochs of markers are those of KIP-890.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from oncelog.actors.protocol.messages.base import Reply
from oncelog.actors.protocol.messages.partition import (
    AbortHangingRequest,
    DescribeProducersRequest,
    ProducerDescription,
)
from oncelog.actors.protocol.messages.transaction import (
    DescribeTransactionsRequest,
    TransactionDescription,
)
from oncelog.api.admin.calls import AdminCalls, check
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import (
    InvalidTxnStateError,
    RequestTimedOutError,
    exception_for,
)
from oncelog.storage.model import NO_OFFSET, TRANSACTION_STATE_TOPIC, TopicPartition

_ONGOING: Final = "Ongoing"
_PREPARED_ELSEWHERE: Final = "Prepared"
_PREPARED: Final = ("PrepareCommit", "PrepareAbort")


@dataclass(frozen=True, slots=True, kw_only=True)
class HangingTransaction:
    """A transaction that is open on one partition though no coordinator will end it.

    ``start_offset`` (inclusive) is its first record; read_committed consumers stop there.
    ``transactional_id`` is set if its producer id belongs to one that has moved on.
    """

    topic_partition: TopicPartition
    producer_id: int
    producer_epoch: int
    start_offset: int
    last_timestamp_ms: int
    coordinator_epoch: int
    transactional_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unanswered:
    """A partition or coordinator shard that did not reply, and why."""

    topic_partition: TopicPartition
    error: ErrorCode
    detail: str = ""

    def __str__(self) -> str:
        reason = f"{self.error.name}: {self.detail}" if self.detail else self.error.name
        return f"{self.topic_partition} ({reason})"


class IncompleteSearchError(RequestTimedOutError):
    """Some leaders or coordinators did not reply, so there may be more hanging transactions.

    ``found`` is certain to be hanging; ``unanswered`` names who did not reply.
    """

    def __init__(
        self,
        what: str = "",
        *,
        advice: str = "",
        found: Sequence[HangingTransaction] = (),
        unanswered: Sequence[Unanswered] = (),
    ) -> None:
        super().__init__(what, advice=advice)
        self.found = tuple(found)
        self.unanswered = tuple(unanswered)


async def find_hanging(
    calls: AdminCalls, partitions: Iterable[TopicPartition], *, older_than_ms: int
) -> list[HangingTransaction]:
    """Find the hanging transactions of ``partitions``, sorted by partition and start offset.

    Only those whose newest record is older than ``older_than_ms``, comparing its timestamp with
    this client's clock. Raises ``IncompleteSearchError`` if some did not reply.
    """
    search = _Search(calls)
    wanted = sorted(set(partitions))
    seen = await search.open_on(dict.fromkeys(wanted))
    horizon_ms = calls.router.clock.now_ms() - older_than_ms
    suspects = {
        tp: [one for one in producers if one.last_timestamp_ms <= horizon_ms]
        for tp, producers in seen.items()
    }
    producer_ids = {one.producer_id for producers in suspects.values() for one in producers}
    ids = await search.ids_of(producer_ids)
    unowned = {
        tp: [one for one in producers if not _is_owned(ids.get(one.producer_id), one, tp)]
        for tp, producers in suspects.items()
        if ids is not None
    }
    ids = ids or {}
    still = await search.still_open({tp: found for tp, found in unowned.items() if found})
    hanging = [
        _hanging(tp, one, ids.get(one.producer_id))
        for tp, producers in still.items()
        for one in producers
    ]
    if search.unanswered:
        raise _incomplete(hanging, search.unanswered)
    return hanging


async def abort_hanging(
    calls: AdminCalls, topic_partition: TopicPartition, *, start_offset: int
) -> HangingTransaction:
    """Abort the transaction that began at ``start_offset`` of a partition; return it.

    Durable on return. ``InvalidTxnStateError`` if none is open there, or if a transactional id may
    still end it or write to it.
    """
    search = _Search(calls)
    seen = await search.open_on({topic_partition: None})
    search.check()
    for one in seen[topic_partition]:
        if one.current_txn_first_offset == start_offset:
            break
    else:
        raise _none_open(topic_partition, start_offset)
    ids = await search.ids_of({one.producer_id})
    search.check()
    owner = (ids or {}).get(one.producer_id)
    if owner is not None and (_is_owned(owner, one, topic_partition) or _may_join(owner, one)):
        raise _owned(owner, one, topic_partition)
    still = await search.still_open({topic_partition: (one,)})
    search.check()
    if not still[topic_partition]:
        raise _none_open(topic_partition, start_offset)
    request = AbortHangingRequest(
        topic_partition=topic_partition,
        producer_id=one.producer_id,
        producer_epoch=one.producer_epoch,
        start_offset=start_offset,
    )
    reply = await calls.leader(topic_partition, request)
    check(reply, f"{topic_partition} does not abort it: look again what is open")
    return _hanging(topic_partition, one, owner)


class _Search:
    """The calls of one search; ``unanswered`` collects who did not reply, and why."""

    def __init__(self, calls: AdminCalls) -> None:
        self._calls = calls
        self.unanswered: list[Unanswered] = []

    async def open_on(
        self, wanted: Mapping[TopicPartition, tuple[int, ...] | None]
    ) -> dict[TopicPartition, list[ProducerDescription]]:
        """The producers with an open transaction per partition that replies, by first offset.

        ``wanted`` lists the producer ids to ask for; ``None`` is all.
        """
        replies = await asyncio.gather(
            *(
                self._calls.leader(
                    tp, DescribeProducersRequest(topic_partition=tp, producer_ids=ids)
                )
                for tp, ids in wanted.items()
            )
        )
        found = {}
        for tp, reply in zip(wanted, replies, strict=True):
            if self._has_answered(tp, reply):
                open_here = (one for one in reply.producers if _is_open(one))
                found[tp] = sorted(open_here, key=lambda one: one.current_txn_first_offset)
        return found

    async def still_open(
        self, suspects: Mapping[TopicPartition, Sequence[ProducerDescription]]
    ) -> dict[TopicPartition, list[ProducerDescription]]:
        """Those of ``suspects`` that still have the same transaction open."""
        found = await self.open_on(
            {tp: tuple(one.producer_id for one in before) for tp, before in suspects.items()}
        )
        known = {
            (tp, one.producer_id, one.current_txn_first_offset)
            for tp, before in suspects.items()
            for one in before
        }
        return {
            tp: [one for one in now if (tp, one.producer_id, one.current_txn_first_offset) in known]
            for tp, now in found.items()
        }

    async def ids_of(self, producer_ids: set[int]) -> Mapping[int, TransactionDescription] | None:
        """The transactional id of each producer id that has one; ``None`` if a shard was silent."""
        if not producer_ids:
            return {}
        request = DescribeTransactionsRequest(producer_ids=tuple(sorted(producer_ids)))
        count = await self._calls.router.partition_count(TRANSACTION_STATE_TOPIC)
        shards = [TopicPartition(TRANSACTION_STATE_TOPIC, number) for number in range(count)]
        replies = await asyncio.gather(*(self._calls.leader(shard, request) for shard in shards))
        have_answered = [self._has_answered(*pair) for pair in zip(shards, replies, strict=True)]
        if not all(have_answered):
            return None
        found: dict[int, TransactionDescription] = {}
        for reply in replies:
            for description in reply.transactions:
                others = [member.producer_id for member in description.members]
                if description.prepared is not None:
                    others.append(description.prepared.producer_id)
                for producer_id in (description.producer_id, *others):
                    found[producer_id] = description
        return found

    def check(self) -> None:
        """Raise the first error of any call: never act on an incomplete picture."""
        for one in self.unanswered:
            raise exception_for(one.error, one.detail or f"producers of {one.topic_partition}")

    def _has_answered(self, topic_partition: TopicPartition, reply: Reply) -> bool:
        if reply.error is ErrorCode.NONE:
            return True
        self.unanswered.append(
            Unanswered(topic_partition=topic_partition, error=reply.error, detail=reply.detail)
        )
        return False


def _incomplete(
    found: Sequence[HangingTransaction], unanswered: Sequence[Unanswered]
) -> IncompleteSearchError:
    silent = sorted(unanswered, key=lambda one: one.topic_partition)
    names = ", ".join(map(str, silent))
    return IncompleteSearchError(
        f"no answer from {names}, so there may be more hanging transactions",
        advice="ask again later",
        found=found,
        unanswered=silent,
    )


def _is_open(one: ProducerDescription) -> bool:
    return one.current_txn_first_offset != NO_OFFSET


def _is_owned(
    owner: TransactionDescription | None, one: ProducerDescription, tp: TopicPartition
) -> bool:
    """Whether the coordinator will still send this transaction's marker to the partition."""
    if owner is None:
        return False
    epoch, partitions = _part_of(owner, one.producer_id)
    if owner.prepared is not None:
        written = (owner.prepared.producer_id, owner.prepared.producer_epoch)
        return written == (one.producer_id, one.producer_epoch) and tp in partitions
    if owner.state == _ONGOING:
        return one.producer_epoch == epoch and tp in partitions
    return owner.state in _PREPARED and one.producer_epoch == epoch - 1 and tp in partitions


def _may_join(owner: TransactionDescription, one: ProducerDescription) -> bool:
    """Whether the id may still enrol the partition in the same transaction and write to it."""
    return _part_of(owner, one.producer_id)[0] == one.producer_epoch


def _part_of(
    owner: TransactionDescription, producer_id: int
) -> tuple[int, tuple[TopicPartition, ...]]:
    """Epoch and enrolled partitions of one producer id of a transactional id."""
    for member in owner.members:
        if member.producer_id == producer_id:
            return member.producer_epoch, member.partitions
    return owner.producer_epoch, owner.partitions


def _hanging(
    topic_partition: TopicPartition,
    one: ProducerDescription,
    owner: TransactionDescription | None,
) -> HangingTransaction:
    return HangingTransaction(
        topic_partition=topic_partition,
        producer_id=one.producer_id,
        producer_epoch=one.producer_epoch,
        start_offset=one.current_txn_first_offset,
        last_timestamp_ms=one.last_timestamp_ms,
        coordinator_epoch=one.coordinator_epoch,
        transactional_id=None if owner is None else owner.transactional_id,
    )


def _owned(
    owner: TransactionDescription, one: ProducerDescription, topic_partition: TopicPartition
) -> InvalidTxnStateError:
    calls = {_ONGOING: "abort_transaction", _PREPARED_ELSEWHERE: "complete_prepared_transaction"}
    call = calls.get(owner.state, "delete_transactional_id")
    advice = (
        "wait until it is complete"
        if owner.state in _PREPARED
        else f"use {call}({owner.transactional_id!r}) first"
    )
    return InvalidTxnStateError(
        f"the transaction at {one.current_txn_first_offset} of {topic_partition} may still be "
        f"ended or written to by the transactional id {owner.transactional_id!r}, which is in "
        f"state {owner.state}",
        advice=advice,
    )


def _none_open(topic_partition: TopicPartition, start_offset: int) -> InvalidTxnStateError:
    return InvalidTxnStateError(
        f"no transaction is open from offset {start_offset} of {topic_partition} on",
        advice="look with find_hanging_transactions() or `oncelog transactions find-hanging`",
    )
