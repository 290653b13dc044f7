"""Every API of Kafka that the gateway can read and write; generated, do not edit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from types import ModuleType
from typing import Any, Final

from oncelog.actors.gateway.messages import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    alter_configs,
    api_versions,
    create_acls,
    create_partitions,
    create_topics,
    delete_acls,
    delete_groups,
    delete_records,
    delete_topics,
    describe_acls,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_transactions,
    elect_leaders,
    end_txn,
    fetch,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_groups,
    list_offsets,
    list_transactions,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    produce,
    sasl_authenticate,
    sasl_handshake,
    sync_group,
    txn_offset_commit,
)
from oncelog.actors.gateway.messages.primitives import Buffer

NEVER_FLEXIBLE: Final = 32_768
"""Above every version."""


class ApiKey(IntEnum):
    """The number of an API in the header of its requests."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    OFFSET_DELETE = 47
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66


@dataclass(frozen=True, slots=True)
class Api:
    """One API: its versions, and by version how its requests are read and responses written.

    ``decode[version](view, position)`` reads the request in ``view`` from ``position`` to the end
    of ``view`` and raises ``MalformedError``. ``encode[version](response)`` gives the response in
    parts, without a header; fields that the version lacks are left out.
    """

    key: ApiKey
    name: str
    versions: range
    flexible_from: int
    """From this version on it has compact forms and tagged fields, also in its headers."""
    decode: Mapping[int, Callable[[memoryview, int], Any]] = field(repr=False)
    encode: Mapping[int, Callable[[Any], list[Buffer]]] = field(repr=False)


def _api(key: ApiKey, flexible_from: int, module: ModuleType) -> Api:
    decode, encode = module.DECODE, module.ENCODE
    versions = range(min(decode), max(decode) + 1)
    return Api(key, key.name.title().replace("_", ""), versions, flexible_from, decode, encode)


APIS: Final[dict[int, Api]] = {
    api.key: api
    for api in (
        _api(ApiKey.PRODUCE, 9, produce),
        _api(ApiKey.FETCH, 12, fetch),
        _api(ApiKey.LIST_OFFSETS, 6, list_offsets),
        _api(ApiKey.METADATA, 9, metadata),
        _api(ApiKey.OFFSET_COMMIT, 8, offset_commit),
        _api(ApiKey.OFFSET_FETCH, 6, offset_fetch),
        _api(ApiKey.FIND_COORDINATOR, 3, find_coordinator),
        _api(ApiKey.JOIN_GROUP, 6, join_group),
        _api(ApiKey.HEARTBEAT, 4, heartbeat),
        _api(ApiKey.LEAVE_GROUP, 4, leave_group),
        _api(ApiKey.SYNC_GROUP, 4, sync_group),
        _api(ApiKey.DESCRIBE_GROUPS, 5, describe_groups),
        _api(ApiKey.LIST_GROUPS, 3, list_groups),
        _api(ApiKey.SASL_HANDSHAKE, NEVER_FLEXIBLE, sasl_handshake),
        _api(ApiKey.API_VERSIONS, 3, api_versions),
        _api(ApiKey.CREATE_TOPICS, 5, create_topics),
        _api(ApiKey.DELETE_TOPICS, 4, delete_topics),
        _api(ApiKey.DELETE_RECORDS, 2, delete_records),
        _api(ApiKey.INIT_PRODUCER_ID, 2, init_producer_id),
        _api(ApiKey.ADD_PARTITIONS_TO_TXN, 3, add_partitions_to_txn),
        _api(ApiKey.ADD_OFFSETS_TO_TXN, 3, add_offsets_to_txn),
        _api(ApiKey.END_TXN, 3, end_txn),
        _api(ApiKey.TXN_OFFSET_COMMIT, 3, txn_offset_commit),
        _api(ApiKey.DESCRIBE_ACLS, 2, describe_acls),
        _api(ApiKey.CREATE_ACLS, 2, create_acls),
        _api(ApiKey.DELETE_ACLS, 2, delete_acls),
        _api(ApiKey.DESCRIBE_CONFIGS, 4, describe_configs),
        _api(ApiKey.ALTER_CONFIGS, 2, alter_configs),
        _api(ApiKey.DESCRIBE_LOG_DIRS, 2, describe_log_dirs),
        _api(ApiKey.SASL_AUTHENTICATE, 2, sasl_authenticate),
        _api(ApiKey.CREATE_PARTITIONS, 2, create_partitions),
        _api(ApiKey.DELETE_GROUPS, 2, delete_groups),
        _api(ApiKey.ELECT_LEADERS, 2, elect_leaders),
        _api(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, incremental_alter_configs),
        _api(ApiKey.OFFSET_DELETE, NEVER_FLEXIBLE, offset_delete),
        _api(ApiKey.DESCRIBE_CLUSTER, 0, describe_cluster),
        _api(ApiKey.DESCRIBE_PRODUCERS, 0, describe_producers),
        _api(ApiKey.DESCRIBE_TRANSACTIONS, 0, describe_transactions),
        _api(ApiKey.LIST_TRANSACTIONS, 0, list_transactions),
    )
}
"""Every API that the codec knows, by its key."""
