"""Which APIs of Kafka are served, in which versions, and what clients are told of it.

``offered`` is the one table: what the codec can read and what has a handler, but for two APIs.
``NOT_SERVED`` says of each other API for clients why it is missing. A request for what is not
offered closes its connection, as in Kafka, where no answer could be read either.

A client asks for the table with ApiVersions, first of all. It sends that in its own newest version,
and is answered in version 0, which everybody reads, if that is too new.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from oncelog.actors.gateway.messages.api_versions import (
    ApiVersion,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from oncelog.actors.gateway.messages.apis import APIS, ApiKey

UNSUPPORTED_VERSION: Final = 35
"""Kafka's code; no actor of ours gives it."""

PRODUCE_VERSION_MAX: Final = 12
"""The last one with names of topics; from 13 on they have ids."""

_OWN_RANGES: Final[Mapping[ApiKey, range]] = {
    # librdkafka takes a broker without version 0 for one that knows no messages of its format
    # (KAFKA-18659). It never sends it: what is below 3 has no codec.
    ApiKey.PRODUCE: range(PRODUCE_VERSION_MAX + 1),
    # From 4 on it is for brokers, which ask about several transactions at once (KIP-890).
    ApiKey.ADD_PARTITIONS_TO_TXN: range(4),
}

TRANSACTION_VERSION: Final = "transaction.version"
TRANSACTION_VERSION_MAX: Final = 2
"""With 2, clients of 4.x enrol partitions by producing to them, and each end raises the epoch."""

FEATURES_EPOCH: Final = 0
"""The version of what is finalized; a client believes a higher one. It never changes here."""

_FEATURES_SINCE: Final = 3
_FEATURES_FROM_ZERO_SINCE: Final = 4
"""Clients of earlier versions reject a feature whose lowest level is 0 (KAFKA-17011)."""

_NO_RAFT: Final = "the controller's quorum needs no such order: see `oncelog status`"
_NO_TOKENS: Final = "no delegation tokens: log in by SCRAM or OAUTHBEARER"
_CLASSIC: Final = "groups have the classic protocol, the default of clients"
_QUEUES: Final = "queues have an API of their own: `cluster.queue`"
_STREAMS: Final = "groups have the classic protocol, the default of Kafka Streams"
_TELEMETRY: Final = "clients keep their metrics; those of the cluster are in Ray's"

NOT_SERVED: Final[Mapping[str, str]] = {
    "OffsetForLeaderEpoch": "no log is cut below what a consumer was given",
    "WriteTxnMarkers": "coordinators write markers; `oncelog transactions abort` has one written",
    "AlterReplicaLogDirs": "replicas are placed by the cluster",
    "CreateDelegationToken": _NO_TOKENS,
    "RenewDelegationToken": _NO_TOKENS,
    "ExpireDelegationToken": _NO_TOKENS,
    "DescribeDelegationToken": _NO_TOKENS,
    "AlterPartitionReassignments": "`Admin.reassign_partition`",
    "ListPartitionReassignments": "`oncelog topics describe` shows them",
    "DescribeClientQuotas": "`oncelog users limits`",
    "AlterClientQuotas": "`oncelog users limit`",
    "DescribeUserScramCredentials": "`oncelog users list`",
    "AlterUserScramCredentials": "`oncelog users add` and `passwd`",
    "DescribeQuorum": _NO_RAFT,
    "UpdateFeatures": "every server has all features of its build",
    "UnregisterBroker": "`oncelog brokers drain`",
    "ConsumerGroupHeartbeat": _CLASSIC,
    "ConsumerGroupDescribe": _CLASSIC,
    "GetTelemetrySubscriptions": _TELEMETRY,
    "PushTelemetry": _TELEMETRY,
    "ListConfigResources": "topics and brokers are all that has settings",
    "DescribeTopicPartitions": "Metadata says the same, and clients ask that instead",
    "ShareGroupHeartbeat": _QUEUES,
    "ShareGroupDescribe": _QUEUES,
    "ShareFetch": _QUEUES,
    "ShareAcknowledge": _QUEUES,
    "InitializeShareGroupState": _QUEUES,
    "ReadShareGroupState": _QUEUES,
    "WriteShareGroupState": _QUEUES,
    "DeleteShareGroupState": _QUEUES,
    "ReadShareGroupStateSummary": _QUEUES,
    "DescribeShareGroupOffsets": _QUEUES,
    "AlterShareGroupOffsets": _QUEUES,
    "DeleteShareGroupOffsets": _QUEUES,
    "AddRaftVoter": _NO_RAFT,
    "RemoveRaftVoter": _NO_RAFT,
    "UnregisterController": _NO_RAFT,
    "StreamsGroupHeartbeat": _STREAMS,
    "StreamsGroupDescribe": _STREAMS,
    "StreamsGroupTopologyDescriptionUpdate": _STREAMS,
}
"""API that brokers of Kafka 4.4 serve to clients, and this does not → why, or what there is."""


def offered(handled: Collection[ApiKey]) -> Mapping[ApiKey, range]:
    """The versions of the APIs that have a handler, as clients are told them."""
    return {
        api.key: _OWN_RANGES.get(api.key, api.versions)
        for api in APIS.values()
        if api.key in handled
    }


def is_readable(versions: Mapping[ApiKey, range], key: int, version: int) -> bool:
    """Whether a request of this API and version is offered, and can be read."""
    api = APIS.get(key)
    return api is not None and version in versions.get(api.key, ()) and version in api.versions


def versions_told(versions: Mapping[ApiKey, range], version: int) -> ApiVersionsResponse:
    """The answer to ApiVersions in ``version``.

    One that is too new is answered in version 0 with what is offered of ApiVersions (KIP-511).
    """
    if version not in versions[ApiKey.API_VERSIONS]:
        own = versions[ApiKey.API_VERSIONS]
        return ApiVersionsResponse(
            error_code=UNSUPPORTED_VERSION,
            api_keys=[ApiVersion(ApiKey.API_VERSIONS, own.start, own.stop - 1)],
        )
    told = ApiVersionsResponse(
        api_keys=[ApiVersion(key, known.start, known.stop - 1) for key, known in versions.items()]
    )
    if version >= _FEATURES_SINCE:
        told.finalized_features_epoch = FEATURES_EPOCH
        told.finalized_features = [
            FinalizedFeatureKey(
                TRANSACTION_VERSION, TRANSACTION_VERSION_MAX, TRANSACTION_VERSION_MAX
            )
        ]
    if version >= _FEATURES_FROM_ZERO_SINCE:
        told.supported_features = [
            SupportedFeatureKey(TRANSACTION_VERSION, 0, TRANSACTION_VERSION_MAX)
        ]
    return told
