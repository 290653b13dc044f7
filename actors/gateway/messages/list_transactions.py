"""Kafka's ListTransactions in versions 0 to 2; generated, do not edit."""

from __future__ import annotations

from struct import Struct as Form
from typing import Final

from msgspec import Struct

from oncelog.actors.gateway.messages.primitives import (
    Buffer,
    get_compact_count,
    get_compact_nullable_string,
    get_compact_string,
    get_fixed,
    get_numbers,
    get_strings,
    put_compact_array,
    put_compact_string,
    skip_tags,
)

_IH = Form(">ih")
_Q = Form(">q")


class ListTransactionsRequest(Struct, gc=False):
    """ListTransactions, the request."""

    state_filters: list[str] = []
    producer_id_filters: list[int] = []
    duration_filter: int = -1
    transactional_id_pattern: str | None = None


class TransactionState(Struct, gc=False):
    """One of ``transaction_states`` of ``ListTransactionsResponse``."""

    transactional_id: str = ""
    producer_id: int = 0
    transaction_state: str = ""


class ListTransactionsResponse(Struct, gc=False):
    """ListTransactions, the response."""

    throttle_time_ms: int = 0
    error_code: int = 0
    unknown_state_filters: list[str] = []
    transaction_states: list[TransactionState] = []


def _decode_0(view: memoryview, position: int) -> ListTransactionsRequest:
    count, position = get_compact_count(view, position, 1, "state_filters")
    state_filters, position = get_strings(
        view, position, count, get_compact_string, "state_filters"
    )
    count, position = get_compact_count(view, position, 8, "producer_id_filters")
    producer_id_filters, position = get_numbers(view, position, count, "q", 8)
    position = skip_tags(view, position)
    return ListTransactionsRequest(state_filters, producer_id_filters)


def _decode_1(view: memoryview, position: int) -> ListTransactionsRequest:
    count, position = get_compact_count(view, position, 1, "state_filters")
    state_filters, position = get_strings(
        view, position, count, get_compact_string, "state_filters"
    )
    count, position = get_compact_count(view, position, 8, "producer_id_filters")
    producer_id_filters, position = get_numbers(view, position, count, "q", 8)
    (duration_filter,), position = get_fixed(_Q, view, position, "duration_filter")
    position = skip_tags(view, position)
    return ListTransactionsRequest(state_filters, producer_id_filters, duration_filter)


def _decode_2(view: memoryview, position: int) -> ListTransactionsRequest:
    count, position = get_compact_count(view, position, 1, "state_filters")
    state_filters, position = get_strings(
        view, position, count, get_compact_string, "state_filters"
    )
    count, position = get_compact_count(view, position, 8, "producer_id_filters")
    producer_id_filters, position = get_numbers(view, position, count, "q", 8)
    (duration_filter,), position = get_fixed(_Q, view, position, "duration_filter")
    transactional_id_pattern, position = get_compact_nullable_string(
        view, position, "transactional_id_pattern"
    )
    position = skip_tags(view, position)
    return ListTransactionsRequest(
        state_filters, producer_id_filters, duration_filter, transactional_id_pattern
    )


def _put_transaction_state_0(out: bytearray, item: TransactionState) -> None:
    put_compact_string(out, item.transactional_id)
    out += _Q.pack(item.producer_id)
    put_compact_string(out, item.transaction_state)
    out.append(0)


def _encode_0(response: ListTransactionsResponse) -> list[Buffer]:
    out = bytearray()
    out += _IH.pack(response.throttle_time_ms, response.error_code)
    put_compact_array(out, response.unknown_state_filters, put_compact_string)
    put_compact_array(out, response.transaction_states, _put_transaction_state_0)
    out.append(0)
    return [out]


DECODE: Final = {0: _decode_0, 1: _decode_1, 2: _decode_2}
ENCODE: Final = {**dict.fromkeys(range(3), _encode_0)}
