"""Options of one ``save()`` or of a stream. The names are those of Kafka's sink."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

from msgspec import Meta

from oncelog.actors.protocol.messages.transaction import RUN_TIMEOUT_MS
from oncelog.api.config import COMPRESSION_TYPES, ProducerSettings
from oncelog.api.distributing.write import WriteOptions
from oncelog.spark_bridge.errors import PRODUCER_SETTINGS, option_of
from oncelog.spark_bridge.given_options import (
    GivenOptions,
    OptionNames,
    check_topic,
    client_option,
)
from oncelog.spark_bridge.read_options import CONNECTION, endpoint_of
from oncelog.storage.exceptions import InvalidSettingError
from oncelog.storage.model import INT64_MAX, TOPIC_NAME_RULE
from oncelog.storage.settings import Checked, declared

PRODUCER_NUMBERS: Final = {option_of(setting): setting for setting in PRODUCER_SETTINGS}
"""Settings of each task's producer, with the producer's defaults and limits."""

_WHAT: Final = (
    declared(
        "topic",
        Annotated[
            str,
            Checked(TOPIC_NAME_RULE),
            'The topic of all rows; without it each row has its own in column `topic`. `save("t")` '
            "is short for it.",
        ],
        None,
    ),
    client_option(
        ProducerSettings,
        "transactional_id",
        "transactional.id",
        sentence="Batches without a version: the id to write under, which fences earlier writes; "
        "no effect otherwise.",
    ),
    declared(
        "txnAppId",
        Annotated[
            str,
            "Batches: the application that writes this version. A committed version is not written "
            "again.",
        ],
        None,
    ),
    declared(
        "txnVersion",
        Annotated[
            int, Meta(ge=0, le=INT64_MAX), "Batches: a number that rises from write to write."
        ],
        None,
    ),
    client_option(
        ProducerSettings,
        "transaction_timeout_ms",
        "transaction.timeout.ms",
        default=RUN_TIMEOUT_MS,
        sentence="Abort a batch after this time without any of its tasks; with tasks it is limited "
        "by the cluster's `distributed_write_max_ms`.",
    ),
    client_option(ProducerSettings, "compression_type", "compression.type"),
)

_PRODUCERS: Final = (
    *(client_option(ProducerSettings, name, option) for option, name in PRODUCER_NUMBERS.items()),
    declared("kafka.acks", Annotated[str, Checked("all"), "Every write uses all."], "all"),
    declared(
        "kafka.enable.idempotence",
        Annotated[bool, Checked("true"), "Every write is a transaction."],
        True,
    ),
)

WRITE_OPTIONS: Final = OptionNames(
    accepted=(*CONNECTION, *_WHAT, *_PRODUCERS),
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
    """Reject a name for one write only: each batch of a stream is a version of its query."""
    if options.txn_app_id is not None:
        raise InvalidSettingError(
            f"txnAppId={options.txn_app_id!r} and txnVersion={options.txn_version} would name "
            "every batch of the stream",
            advice="leave them out, its query and batch ids are used; or give them to a batch "
            "write inside foreachBatch",
        )


def parse_write_options(options: Mapping[str, str]) -> WriteOptions:
    """Parse the options of a write; ``InvalidSettingError`` for an unknown or invalid one."""
    given = GivenOptions.of(options, WRITE_OPTIONS)
    compression_type = given.text("compression.type") or "none"
    if compression_type not in COMPRESSION_TYPES:
        raise given.refuse(
            "compression.type", WRITE_OPTIONS.option("compression.type").rule.allowed
        )
    if given.has("txnAppId") != given.has("txnVersion"):
        raise InvalidSettingError(
            "txnAppId and txnVersion belong together", advice="give both or neither"
        )
    parsed = WriteOptions(
        engine="spark",
        endpoint=endpoint_of(given),
        topic=_topic(given),
        transactional_id=given.value("transactional.id"),
        txn_app_id=given.text("txnAppId"),
        txn_version=given.value("txnVersion") or 0,
        transaction_timeout_ms=given.value("transaction.timeout.ms"),
        compression_type=compression_type,
        producer=_producer(given),
    )
    parsed.check_identity()
    return parsed


def _topic(given: GivenOptions) -> str | None:
    """Option ``topic``, for which ``save("t")`` is short."""
    topic = given.text("topic")
    if given.paths:
        raise InvalidSettingError(
            f"paths={list(given.paths)}", advice="a write has one topic, or a column"
        )
    if given.path is not None:
        if topic not in (None, given.path):
            raise InvalidSettingError(
                f"topic={topic!r} and save({given.path!r}) name different topics",
                advice="give one of them",
            )
        topic = given.path
    if topic is not None:
        check_topic("topic", topic)
    return topic


def _producer(given: GivenOptions) -> dict[str, int]:
    """The settings of producers, checked by their own rules, alone and together."""
    if given.has("kafka.acks") and given.text("kafka.acks") not in ("all", "-1"):
        raise given.refuse("kafka.acks", "all: what is committed is in every in-sync replica")
    if (given.text("kafka.enable.idempotence") or "true").strip().lower() != "true":
        raise given.refuse("kafka.enable.idempotence", "true: every write is a transaction")
    settings: dict[str, int] = {
        name: given.value(option) for option, name in PRODUCER_NUMBERS.items() if given.has(option)
    }
    ProducerSettings.from_options(settings)
    return settings
