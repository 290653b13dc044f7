"""Options of a write: of one ``save()`` or of a stream. The names are those of Kafka's sink."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from oncelog.api.config import COMPRESSION_TYPES, ProducerSettings
from oncelog.api.distributing.write import WriteOptions
from oncelog.api.producing.member import TRANSACTION_TIMEOUT_MS
from oncelog.spark_bridge.errors import PRODUCER_SETTINGS, option_of
from oncelog.spark_bridge.given_options import GivenOptions, OptionNames, check_topic
from oncelog.storage.exceptions import InvalidSettingError

PRODUCER_NUMBERS: Final = {option_of(setting): setting for setting in PRODUCER_SETTINGS}
"""Settings of each task's producer, with its own defaults and limits."""

WRITE_OPTIONS: Final = OptionNames(
    accepted=(
        "address",
        "topic",
        "transactional.id",
        "txnAppId",
        "txnVersion",
        "transaction.timeout.ms",
        "compression.type",
        *PRODUCER_NUMBERS,
        "kafka.acks",
        "kafka.enable.idempotence",
    ),
    aliases={
        "kafka.bootstrap.servers": "address",
        "kafka.compression.type": "compression.type",
        "kafka.transactional.id": "transactional.id",
        "kafka.transaction.timeout.ms": "transaction.timeout.ms",
    },
    ignored=("includeHeaders",),
    refused={
        "kafka.key.serializer": "cast column key to string or binary",
        "kafka.value.serializer": "cast column value to string or binary",
        "kafka.partitioner.class": "give each row its number in a column partition",
        "kafka.interceptor.classes": "change the rows in the DataFrame",
    },
)


def check_stream(options: WriteOptions) -> None:
    """Refuse what names one write only: each batch of a stream is a version of its query."""
    if options.txn_app_id is not None:
        raise InvalidSettingError(
            f"txnAppId={options.txn_app_id!r} and txnVersion={options.txn_version} would name "
            "every batch of the stream: leave them out, its query and batch ids are used; or give "
            "them to a batch write inside foreachBatch"
        )


def parse_write_options(options: Mapping[str, str]) -> WriteOptions:
    """The options of a write; ``InvalidSettingError`` for what is unknown or impossible."""
    given = GivenOptions.of(options, WRITE_OPTIONS)
    compression_type = given.text("compression.type") or "none"
    if compression_type not in COMPRESSION_TYPES:
        raise given.refuse("compression.type", "one of " + ", ".join(COMPRESSION_TYPES))
    if given.has("txnAppId") != given.has("txnVersion"):
        raise InvalidSettingError("txnAppId and txnVersion belong together: give both or neither")
    parsed = WriteOptions(
        engine="spark",
        address=given.text("address"),
        topic=_topic(given),
        transactional_id=given.text("transactional.id"),
        txn_app_id=given.text("txnAppId"),
        txn_version=given.integer("txnVersion", default=0, low=0, high=2**63 - 1),
        transaction_timeout_ms=given.integer(
            "transaction.timeout.ms", default=TRANSACTION_TIMEOUT_MS, low=1, high=2**31 - 1
        ),
        compression_type=compression_type,
        producer=_producer(given),
    )
    parsed.check_identity()
    return parsed


def _topic(given: GivenOptions) -> str | None:
    """Option ``topic``, for which ``save("t")`` is short."""
    topic = given.text("topic")
    if given.paths:
        raise InvalidSettingError(f"paths={list(given.paths)}: a write has one topic, or a column")
    if given.path is not None:
        if topic not in (None, given.path):
            raise InvalidSettingError(
                f"topic={topic!r} and save({given.path!r}) name different topics: give one of them"
            )
        topic = given.path
    if topic is not None:
        check_topic("topic", topic)
    return topic


def _producer(given: GivenOptions) -> dict[str, int]:
    """The settings of producers, checked by their own rules, alone and together."""
    if given.has("kafka.acks") and given.text("kafka.acks") not in ("all", "-1"):
        raise given.refuse("kafka.acks", "all; what is committed is in every in-sync replica")
    if not given.boolean("kafka.enable.idempotence", default=True):
        raise given.refuse("kafka.enable.idempotence", "true; every write is a transaction")
    settings = {}
    for option, name in PRODUCER_NUMBERS.items():
        number = given.maybe_integer(option, low=0, high=2**40)
        if number is not None:
            settings[name] = number
    ProducerSettings(**settings)  # type: ignore[arg-type]
    return settings
