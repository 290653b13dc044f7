"""Transactions and producers, for those who look after Kafka's clients: listing and describing.

A node of Kafka lists the transactions of its own coordinators, and clients ask every node. So the
gateway lists the shards that its broker leads: each transaction is in one node's list.

A pattern for transactional ids is a regular expression of RE2, as in Kafka, and fits whole ids.
It comes from a stranger, and Python's ``re`` may take for ever over one; RE2 takes linear time.

| request | whom it is for |
|---|---|
| DescribeProducers | the leaders of partitions |
| ListTransactions | this broker's transaction coordinators |
| DescribeTransactions | the coordinator of each transactional id |

Source: KIP-664, KIP-994, KIP-1152.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from oncelog.actors.gateway.administration.brokers import (
    PARTITIONS_AT_ONCE_MAX,
    Handler,
    ask_leader,
    deadline_of,
    in_parallel,
    text_of,
    throttle_of,
)
from oncelog.actors.gateway.calls import FRESH_MS, Call
from oncelog.actors.gateway.errors import of_coordinator, of_leader
from oncelog.actors.gateway.messages import describe_transactions as describing
from oncelog.actors.gateway.messages.apis import ApiKey
from oncelog.actors.gateway.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from oncelog.actors.gateway.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from oncelog.actors.gateway.messages.list_transactions import TransactionState as ListedState
from oncelog.actors.process.clock import loop_ms
from oncelog.actors.protocol.messages import partition, transaction
from oncelog.actors.protocol.messages.partition import ProducerDescription
from oncelog.actors.protocol.messages.transaction import ANY_DURATION_MS, TransactionDescription
from oncelog.actors.protocol.transaction.transaction_state import TransactionState
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import NO_PRODUCER_ID, TRANSACTION_STATE_TOPIC, TopicPartition

STATES: Final = tuple(
    state.value
    for state in TransactionState
    if state not in (TransactionState.DEAD, TransactionState.PREPARED)
)
"""Kafka's names of the states; in Kafka a transaction that is prepared is still ongoing."""

PATTERN_CHARS_MAX: Final = 249
"""A longer pattern of transactional ids is refused."""


# --- producers --------------------------------------------------------------------------------


async def describe_producers(
    call: Call, request: DescribeProducersRequest
) -> DescribeProducersResponse:
    """The producers that leaders of partitions know, with their open transactions."""
    timeout_ms = deadline_of(0) - loop_ms()
    wanted = dict.fromkeys(
        TopicPartition(topic.name, number)
        for topic in request.topics
        for number in topic.partition_indexes
    )
    replies = await in_parallel(
        wanted,
        lambda tp: ask_leader(
            *(call, tp, partition.DescribeProducersRequest(topic_partition=tp)),
            timeout_ms=timeout_ms,
        ),
        at_once_max=PARTITIONS_AT_ONCE_MAX,
    )
    by_topic: dict[str, list[PartitionResponse]] = {}
    for tp, reply in zip(wanted, replies, strict=True):
        described = PartitionResponse(
            partition_index=tp.partition,
            error_code=of_leader(reply.error),
            error_message=text_of(reply, f"producers of {tp}: {reply.error.name}"),
            active_producers=[_as_state(one) for one in reply.producers],
        )
        by_topic.setdefault(tp.topic, []).append(described)
    return DescribeProducersResponse(
        throttle_time_ms=throttle_of(*replies),
        topics=[
            TopicResponse(name=topic, partitions=partitions)
            for topic, partitions in by_topic.items()
        ],
    )


def _as_state(one: ProducerDescription) -> ProducerState:
    return ProducerState(
        producer_id=one.producer_id,
        producer_epoch=one.producer_epoch,
        last_sequence=one.last_sequence,
        last_timestamp=one.last_timestamp_ms,
        coordinator_epoch=one.coordinator_epoch,
        current_txn_start_offset=one.current_txn_first_offset,
    )


# --- transactions -----------------------------------------------------------------------------


async def list_transactions(
    call: Call, request: ListTransactionsRequest
) -> ListTransactionsResponse:
    """The transactional ids of this broker's coordinators that pass all filters."""
    known = [state for state in request.state_filters if state in STATES]
    unknown = [state for state in request.state_filters if state not in STATES]
    pattern = request.transactional_id_pattern or ""
    if pattern:
        try:
            # In a thread, as the first pattern loads a library: some 0.3 s.
            await asyncio.to_thread(fits, pattern, ("",))
        except ValueError:
            return ListTransactionsResponse(error_code=int(ErrorCode.INVALID_REGULAR_EXPRESSION))
    if unknown and not known:
        return ListTransactionsResponse(unknown_state_filters=unknown)
    asked = transaction.DescribeTransactionsRequest(
        states=_ours_of(known),
        producer_ids=tuple(request.producer_id_filters),
        running_longer_than_ms=max(request.duration_filter, ANY_DURATION_MS),
    )
    timeout_ms = deadline_of(0) - loop_ms()
    replies = await in_parallel(
        await _own_shards(call),
        lambda shard: ask_leader(call, shard, asked, timeout_ms=timeout_ms),
        at_once_max=PARTITIONS_AT_ONCE_MAX,
    )
    if any(reply.error is not ErrorCode.NONE for reply in replies):
        # Clients ask again for this one code only.
        loading = int(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return ListTransactionsResponse(error_code=loading, unknown_state_filters=unknown)
    found = [one for reply in replies for one in reply.transactions]
    if pattern:
        ids = [one.transactional_id for one in found]
        fitting = await asyncio.to_thread(fits, pattern, ids)
        found = [one for one, is_fitting in zip(found, fitting, strict=True) if is_fitting]
    return ListTransactionsResponse(
        throttle_time_ms=throttle_of(*replies),
        unknown_state_filters=unknown,
        transaction_states=[
            ListedState(
                transactional_id=one.transactional_id,
                producer_id=producer_id,
                transaction_state=_kafkas(one.state),
            )
            for one in found
            for producer_id in _producer_ids(one, set(request.producer_id_filters))
        ],
    )


def _producer_ids(one: TransactionDescription, wanted: Collection[int]) -> Iterable[int]:
    """The producer id of a transactional id, or those of its writers that are looked for.

    Who looks for the owner of a producer id finds it by the id that he asked about.
    """
    if not wanted:
        return (one.producer_id,)
    others = [member.producer_id for member in one.members]
    if one.prepared is not None:
        others.append(one.prepared.producer_id)
    return [each for each in dict.fromkeys((one.producer_id, *others)) if each in wanted]


async def _own_shards(call: Call) -> list[TopicPartition]:
    """The shards of coordinators that this broker leads, and those that nobody leads now."""
    own = (call.cluster.broker_id, -1)
    view, topic = call.cluster.view, TRANSACTION_STATE_TOPIC
    _, topics = await view.topics((topic,), as_of_ms=loop_ms() - FRESH_MS)
    if topic not in topics:
        # Nothing is known yet: the error of the one that there always is, is the answer.
        return [TopicPartition(topic, 0)]
    return [
        TopicPartition(topic, one.partition)
        for one in topics[topic].partitions
        if one.leader in own
    ]


def _ours_of(states: Iterable[str]) -> tuple[str, ...]:
    """The states that are meant by Kafka's names."""
    names = set(states)
    if TransactionState.ONGOING.value in names:
        names.add(TransactionState.PREPARED.value)
    return tuple(sorted(names))


def _kafkas(state: str) -> str:
    is_prepared = state == TransactionState.PREPARED.value
    return TransactionState.ONGOING.value if is_prepared else state


def fits(pattern: str, ids: Sequence[str]) -> list[bool]:
    """Which ids the pattern fits as a whole. ``ValueError`` if it is no pattern.

    Blocks the first time: it loads a library.
    """
    if len(pattern) > PATTERN_CHARS_MAX:
        raise ValueError(f"a pattern of {len(pattern)} characters: give {PATTERN_CHARS_MAX}")
    import pyarrow as pa
    import pyarrow.compute as pc

    # By itself first: what closes more brackets than it opens would be one within others.
    for whole in (pattern, rf"\A(?:{pattern})\z"):
        found = pc.match_substring_regex(pa.array(ids, pa.string()), whole)
    return [bool(one) for one in found.to_pylist()]


async def describe_transactions(
    call: Call, request: describing.DescribeTransactionsRequest
) -> describing.DescribeTransactionsResponse:
    """The state of each transactional id, and the partitions of its open transaction."""
    timeout_ms = deadline_of(0) - loop_ms()
    ids = list(dict.fromkeys(request.transactional_ids))

    async def ask(transactional_id: str) -> transaction.DescribeTransactionsReply:
        # One by one: an id that is unknown would be the error of all.
        asked = transaction.DescribeTransactionsRequest(transactional_ids=(transactional_id,))
        shard = await call.shard(TRANSACTION_STATE_TOPIC, transactional_id)
        if shard is None:
            return asked.failed(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return await ask_leader(call, shard, asked, timeout_ms=timeout_ms)

    replies = await in_parallel(ids, ask, at_once_max=PARTITIONS_AT_ONCE_MAX)
    return describing.DescribeTransactionsResponse(
        throttle_time_ms=throttle_of(*replies),
        transaction_states=[
            _described(transactional_id, reply)
            for transactional_id, reply in zip(ids, replies, strict=True)
        ],
    )


def _described(
    transactional_id: str, reply: transaction.DescribeTransactionsReply
) -> describing.TransactionState:
    found = (one for one in reply.transactions if one.transactional_id == transactional_id)
    one = next(found, None)
    if reply.error is not ErrorCode.NONE or one is None:
        error = reply.error or ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        return describing.TransactionState(
            error_code=of_coordinator(error), transactional_id=transactional_id
        )
    by_topic: dict[str, list[int]] = {}
    for tp in sorted(one.partitions):
        by_topic.setdefault(tp.topic, []).append(tp.partition)
    # Of a version 1 client what it knows itself; its batches have the other pair.
    is_told = one.told_producer_id != NO_PRODUCER_ID
    return describing.TransactionState(
        transactional_id=transactional_id,
        transaction_state=_kafkas(one.state),
        transaction_timeout_ms=one.transaction_timeout_ms,
        transaction_start_time_ms=one.transaction_start_ms,
        producer_id=one.told_producer_id if is_told else one.producer_id,
        producer_epoch=one.told_producer_epoch if is_told else one.producer_epoch,
        topics=[
            describing.TopicData(topic=topic, partitions=partitions)
            for topic, partitions in by_topic.items()
        ],
    )


HANDLERS: Final[Mapping[ApiKey, Handler]] = {
    ApiKey.DESCRIBE_PRODUCERS: describe_producers,
    ApiKey.LIST_TRANSACTIONS: list_transactions,
    ApiKey.DESCRIBE_TRANSACTIONS: describe_transactions,
}
