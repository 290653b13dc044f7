"""Kafka's AddPartitionsToTxn in versions 0 to 5; generated, do not edit."""

from __future__ import annotations

from struct import Struct as Form
from typing import Final

from msgspec import Struct

from oncelog.actors.gateway.messages.primitives import (
    Buffer,
    get_compact_count,
    get_compact_string,
    get_count,
    get_fixed,
    get_numbers,
    get_string,
    get_structs,
    put_array,
    put_compact_array,
    put_compact_string,
    put_string,
    skip_tags,
)

_I = Form(">i")
_IH = Form(">ih")
_QH = Form(">qh")
_QHT = Form(">qh?")


class AddPartitionsToTxnTopic(Struct, gc=False):
    """One of ``topics`` of ``AddPartitionsToTxnTransaction``."""

    name: str = ""
    partitions: list[int] = []


class AddPartitionsToTxnTransaction(Struct, gc=False):
    """One of ``transactions`` of ``AddPartitionsToTxnRequest``."""

    transactional_id: str = ""
    producer_id: int = 0
    producer_epoch: int = 0
    verify_only: bool = False
    topics: list[AddPartitionsToTxnTopic] = []


class AddPartitionsToTxnRequest(Struct, gc=False):
    """AddPartitionsToTxn, the request."""

    transactions: list[AddPartitionsToTxnTransaction] = []
    v3_and_below_transactional_id: str = ""
    v3_and_below_producer_id: int = 0
    v3_and_below_producer_epoch: int = 0
    v3_and_below_topics: list[AddPartitionsToTxnTopic] = []


class AddPartitionsToTxnPartitionResult(Struct, gc=False):
    """One of ``results_by_partition`` of ``AddPartitionsToTxnTopicResult``."""

    partition_index: int = 0
    partition_error_code: int = 0


class AddPartitionsToTxnTopicResult(Struct, gc=False):
    """One of ``topic_results`` of ``AddPartitionsToTxnResult``."""

    name: str = ""
    results_by_partition: list[AddPartitionsToTxnPartitionResult] = []


class AddPartitionsToTxnResult(Struct, gc=False):
    """One of ``results_by_transaction`` of ``AddPartitionsToTxnResponse``."""

    transactional_id: str = ""
    topic_results: list[AddPartitionsToTxnTopicResult] = []


class AddPartitionsToTxnResponse(Struct, gc=False):
    """AddPartitionsToTxn, the response."""

    throttle_time_ms: int = 0
    error_code: int = 0
    results_by_transaction: list[AddPartitionsToTxnResult] = []
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult] = []


def _get_add_partitions_to_txn_topic_0(
    view: memoryview, position: int
) -> tuple[AddPartitionsToTxnTopic, int]:
    name, position = get_string(view, position, "name")
    count, position = get_count(view, position, 4, "partitions")
    partitions, position = get_numbers(view, position, count, "i", 4)
    return AddPartitionsToTxnTopic(name, partitions), position


def _decode_0(view: memoryview, position: int) -> AddPartitionsToTxnRequest:
    v3_and_below_transactional_id, position = get_string(
        view, position, "v3_and_below_transactional_id"
    )
    (v3_and_below_producer_id, v3_and_below_producer_epoch), position = get_fixed(
        _QH, view, position, "v3_and_below_producer_id"
    )
    count, position = get_count(view, position, 6, "v3_and_below_topics")
    v3_and_below_topics, position = get_structs(
        view, position, count, _get_add_partitions_to_txn_topic_0
    )
    return AddPartitionsToTxnRequest(
        [],
        v3_and_below_transactional_id,
        v3_and_below_producer_id,
        v3_and_below_producer_epoch,
        v3_and_below_topics,
    )


def _get_add_partitions_to_txn_topic_3(
    view: memoryview, position: int
) -> tuple[AddPartitionsToTxnTopic, int]:
    name, position = get_compact_string(view, position, "name")
    count, position = get_compact_count(view, position, 4, "partitions")
    partitions, position = get_numbers(view, position, count, "i", 4)
    position = skip_tags(view, position)
    return AddPartitionsToTxnTopic(name, partitions), position


def _decode_3(view: memoryview, position: int) -> AddPartitionsToTxnRequest:
    v3_and_below_transactional_id, position = get_compact_string(
        view, position, "v3_and_below_transactional_id"
    )
    (v3_and_below_producer_id, v3_and_below_producer_epoch), position = get_fixed(
        _QH, view, position, "v3_and_below_producer_id"
    )
    count, position = get_compact_count(view, position, 3, "v3_and_below_topics")
    v3_and_below_topics, position = get_structs(
        view, position, count, _get_add_partitions_to_txn_topic_3
    )
    position = skip_tags(view, position)
    return AddPartitionsToTxnRequest(
        [],
        v3_and_below_transactional_id,
        v3_and_below_producer_id,
        v3_and_below_producer_epoch,
        v3_and_below_topics,
    )


def _get_add_partitions_to_txn_transaction_4(
    view: memoryview, position: int
) -> tuple[AddPartitionsToTxnTransaction, int]:
    transactional_id, position = get_compact_string(view, position, "transactional_id")
    (producer_id, producer_epoch, verify_only), position = get_fixed(
        _QHT, view, position, "producer_id"
    )
    count, position = get_compact_count(view, position, 3, "topics")
    topics, position = get_structs(view, position, count, _get_add_partitions_to_txn_topic_3)
    position = skip_tags(view, position)
    item = AddPartitionsToTxnTransaction(
        transactional_id, producer_id, producer_epoch, verify_only, topics
    )
    return item, position


def _decode_4(view: memoryview, position: int) -> AddPartitionsToTxnRequest:
    count, position = get_compact_count(view, position, 14, "transactions")
    transactions, position = get_structs(
        view, position, count, _get_add_partitions_to_txn_transaction_4
    )
    position = skip_tags(view, position)
    return AddPartitionsToTxnRequest(transactions)


def _put_add_partitions_to_txn_partition_result_0(
    out: bytearray, item: AddPartitionsToTxnPartitionResult
) -> None:
    out += _IH.pack(item.partition_index, item.partition_error_code)


def _put_add_partitions_to_txn_topic_result_0(
    out: bytearray, item: AddPartitionsToTxnTopicResult
) -> None:
    put_string(out, item.name)
    put_array(out, item.results_by_partition, _put_add_partitions_to_txn_partition_result_0)


def _encode_0(response: AddPartitionsToTxnResponse) -> list[Buffer]:
    out = bytearray()
    out += _I.pack(response.throttle_time_ms)
    put_array(
        out, response.results_by_topic_v3_and_below, _put_add_partitions_to_txn_topic_result_0
    )
    return [out]


def _put_add_partitions_to_txn_partition_result_3(
    out: bytearray, item: AddPartitionsToTxnPartitionResult
) -> None:
    out += _IH.pack(item.partition_index, item.partition_error_code)
    out.append(0)


def _put_add_partitions_to_txn_topic_result_3(
    out: bytearray, item: AddPartitionsToTxnTopicResult
) -> None:
    put_compact_string(out, item.name)
    put_compact_array(out, item.results_by_partition, _put_add_partitions_to_txn_partition_result_3)
    out.append(0)


def _encode_3(response: AddPartitionsToTxnResponse) -> list[Buffer]:
    out = bytearray()
    out += _I.pack(response.throttle_time_ms)
    put_compact_array(
        out, response.results_by_topic_v3_and_below, _put_add_partitions_to_txn_topic_result_3
    )
    out.append(0)
    return [out]


def _put_add_partitions_to_txn_result_4(out: bytearray, item: AddPartitionsToTxnResult) -> None:
    put_compact_string(out, item.transactional_id)
    put_compact_array(out, item.topic_results, _put_add_partitions_to_txn_topic_result_3)
    out.append(0)


def _encode_4(response: AddPartitionsToTxnResponse) -> list[Buffer]:
    out = bytearray()
    out += _IH.pack(response.throttle_time_ms, response.error_code)
    put_compact_array(out, response.results_by_transaction, _put_add_partitions_to_txn_result_4)
    out.append(0)
    return [out]


DECODE: Final = {
    **dict.fromkeys(range(3), _decode_0),
    3: _decode_3,
    **dict.fromkeys(range(4, 6), _decode_4),
}
ENCODE: Final = {
    **dict.fromkeys(range(3), _encode_0),
    3: _encode_3,
    **dict.fromkeys(range(4, 6), _encode_4),
}
