"""oncelog: an exactly-once, transactional event log for Ray.

Public names are loaded when they are first used, so that importing the package is cheap and a
process can still be told how to join a cluster before Ray is imported.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oncelog import spark_bridge
    from oncelog.actors.protocol.messages.messages import Run, Winner
    from oncelog.api.batching.delivery import RecordMetadata
    from oncelog.api.batching.interceptors import ProducerInterceptor, ProducerRecord
    from oncelog.api.client import Cluster, connect, init
    from oncelog.api.consuming.consumer import AsyncConsumer, Consumer
    from oncelog.api.processing.job import ProcessFailedError, ProcessJob
    from oncelog.api.producing.member import Membership
    from oncelog.api.producing.producer import AsyncProducer, Producer
    from oncelog.api.records import ConsumerRecord
    from oncelog.storage.errors import ErrorCode
    from oncelog.storage.exceptions import OncelogError
    from oncelog.storage.model import IsolationLevel, TopicPartition

__version__ = "0.1.0"

__all__ = [
    "AsyncConsumer",
    "AsyncProducer",
    "Cluster",
    "Consumer",
    "ConsumerRecord",
    "ErrorCode",
    "IsolationLevel",
    "Membership",
    "OncelogError",
    "ProcessFailedError",
    "ProcessJob",
    "Producer",
    "ProducerInterceptor",
    "ProducerRecord",
    "RecordMetadata",
    "Run",
    "TopicPartition",
    "Winner",
    "connect",
    "init",
    "spark_bridge",
]

_HOMES = {
    "AsyncConsumer": "oncelog.api.consuming.consumer",
    "AsyncProducer": "oncelog.api.producing.producer",
    "Cluster": "oncelog.api.client",
    "Consumer": "oncelog.api.consuming.consumer",
    "ConsumerRecord": "oncelog.api.records",
    "ErrorCode": "oncelog.storage.errors",
    "IsolationLevel": "oncelog.storage.model",
    "Membership": "oncelog.api.producing.member",
    "OncelogError": "oncelog.storage.exceptions",
    "ProcessFailedError": "oncelog.api.processing.job",
    "ProcessJob": "oncelog.api.processing.job",
    "Producer": "oncelog.api.producing.producer",
    "ProducerInterceptor": "oncelog.api.batching.interceptors",
    "ProducerRecord": "oncelog.api.batching.interceptors",
    "RecordMetadata": "oncelog.api.batching.delivery",
    "Run": "oncelog.actors.protocol.messages.messages",
    "TopicPartition": "oncelog.storage.model",
    "Winner": "oncelog.actors.protocol.messages.messages",
    "connect": "oncelog.api.client",
    "init": "oncelog.api.client",
}


def __getattr__(name: str) -> Any:
    if name == "spark_bridge":
        return importlib.import_module("oncelog.spark_bridge")
    if name not in _HOMES:
        raise AttributeError(f"module 'oncelog' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
