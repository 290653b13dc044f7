"""Kafka's DescribeTransactions in version 0; generated, do not edit."""

from __future__ import annotations

from struct import Struct as Form
from typing import Final

from msgspec import Struct

from oncelog.actors.gateway.messages.primitives import (
    Buffer,
    get_compact_count,
    get_compact_string,
    get_strings,
    put_compact_array,
    put_compact_numbers,
    put_compact_string,
    skip_tags,
)

_H = Form(">h")
_I = Form(">i")
_IQ2H = Form(">iqqh")


class DescribeTransactionsRequest(Struct, gc=False):
    """DescribeTransactions, the request."""

    transactional_ids: list[str] = []


class TopicData(Struct, gc=False):
    """One of ``topics`` of ``TransactionState``."""

    topic: str = ""
    partitions: list[int] = []


class TransactionState(Struct, gc=False):
    """One of ``transaction_states`` of ``DescribeTransactionsResponse``."""

    error_code: int = 0
    transactional_id: str = ""
    transaction_state: str = ""
    transaction_timeout_ms: int = 0
    transaction_start_time_ms: int = 0
    producer_id: int = 0
    producer_epoch: int = 0
    topics: list[TopicData] = []


class DescribeTransactionsResponse(Struct, gc=False):
    """DescribeTransactions, the response."""

    throttle_time_ms: int = 0
    transaction_states: list[TransactionState] = []


def _decode_0(view: memoryview, position: int) -> DescribeTransactionsRequest:
    count, position = get_compact_count(view, position, 1, "transactional_ids")
    transactional_ids, position = get_strings(
        view, position, count, get_compact_string, "transactional_ids"
    )
    position = skip_tags(view, position)
    return DescribeTransactionsRequest(transactional_ids)


def _put_topic_data_0(out: bytearray, item: TopicData) -> None:
    put_compact_string(out, item.topic)
    put_compact_numbers(out, item.partitions, "i")
    out.append(0)


def _put_transaction_state_0(out: bytearray, item: TransactionState) -> None:
    out += _H.pack(item.error_code)
    put_compact_string(out, item.transactional_id)
    put_compact_string(out, item.transaction_state)
    out += _IQ2H.pack(
        item.transaction_timeout_ms,
        item.transaction_start_time_ms,
        item.producer_id,
        item.producer_epoch,
    )
    put_compact_array(out, item.topics, _put_topic_data_0)
    out.append(0)


def _encode_0(response: DescribeTransactionsResponse) -> list[Buffer]:
    out = bytearray()
    out += _I.pack(response.throttle_time_ms)
    put_compact_array(out, response.transaction_states, _put_transaction_state_0)
    out.append(0)
    return [out]


DECODE: Final = {0: _decode_0}
ENCODE: Final = {0: _encode_0}
