"""Options of the data source, as text from Spark, parsed into what they mean.

The names are those of Kafka's Spark source wherever it has one. Spark hands over keys in lower
case and every value as text. An unknown or impossible option is refused with its name, its value
and what is allowed; options of Kafka's source without meaning here are logged and ignored.
"""

from __future__ import annotations

import difflib
import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from oncelog.actors.protocol.transaction.commit_versions import version_token
from oncelog.api.config import COMPRESSION_TYPES
from oncelog.api.producing.member import TRANSACTION_TIMEOUT_MS
from oncelog.spark_bridge.offsets import (
    EARLIEST,
    LATEST,
    Offsets,
    Selection,
    parse_assignment,
    parse_offsets,
)
from oncelog.storage.exceptions import InvalidSettingError
from oncelog.storage.model import (
    COMMIT_TOKEN_MAX_BYTES,
    TRANSACTIONAL_ID_MAX_BYTES,
    IsolationLevel,
    TopicPartition,
    is_valid_topic_name,
)

READ_OPTIONS: Final = (
    "address",
    "subscribe",
    "assign",
    "subscribePattern",
    "startingOffsets",
    "endingOffsets",
    "failOnDataLoss",
    "minPartitions",
    "includeHeaders",
    "isolation.level",
)
WRITE_OPTIONS: Final = (
    "address",
    "topic",
    "transactional.id",
    "txnAppId",
    "txnVersion",
    "transaction.timeout.ms",
    "compression.type",
)

_ALIASES: Final = {
    "kafka.bootstrap.servers": "address",
    "kafka.isolation.level": "isolation.level",
    "kafka.compression.type": "compression.type",
    "kafka.transactional.id": "transactional.id",
    "kafka.transaction.timeout.ms": "transaction.timeout.ms",
}
_SPARKS_OWN: Final = frozenset({"path", "paths", "checkpointlocation", "queryname"})
_PASSED_OVER: Final = re.compile(
    r"kafka\.(ssl|sasl|security)\..*|kafka\.group\.id|groupidprefix|fetchoffset\..*"
    r"|kafkaconsumer\.polltimeoutms|maxoffsetspertrigger|minoffsetspertrigger|maxtriggerdelay"
    r"|includeheaders"
)

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """A read. ``starting`` and ``ending`` are those of ``offsets.plan``.

    ``address`` ``None`` stands for the default, of reads as of writes.
    """

    selection: Selection
    address: str | None = None
    starting: int | Offsets = EARLIEST
    ending: int | Offsets = LATEST
    fails_on_data_loss: bool = True
    partitions_min: int = 1
    includes_headers: bool = True
    isolation_level: IsolationLevel = IsolationLevel.READ_COMMITTED

    def check_batch(self) -> None:
        """Refuse what makes no sense in a batch read, such as starting at the end."""
        for name, wanted, never, word in (
            ("startingOffsets", self.starting, LATEST, "latest"),
            ("endingOffsets", self.ending, EARLIEST, "earliest"),
        ):
            if wanted == never or (isinstance(wanted, Mapping) and never in wanted.values()):
                raise InvalidSettingError(
                    f"{name} may not be {word} ({never}) in a batch read: nothing could be read"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """A write. ``topic`` ``None``: each row names its own."""

    address: str | None = None
    topic: str | None = None
    transactional_id: str | None = None
    txn_app_id: str | None = None
    txn_version: int = 0
    transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS
    compression_type: str = "none"

    def check_stream(self) -> None:
        """Refuse what names one write only: each batch of a stream is a version of its query."""
        if self.txn_app_id is not None:
            raise InvalidSettingError(
                f"txnAppId={self.txn_app_id!r} and txnVersion={self.txn_version} would name every "
                "batch of the stream: leave them out, its query and batch ids are used; or give "
                "them to a batch write inside foreachBatch"
            )

    def identity(self, run_id: str) -> tuple[str, bytes]:
        """The transactional id that a run writes under, and the commit token of what it writes.

        With ``txnAppId`` the application has its own transactional id, and the token names the
        version: a committed version is not written again. Otherwise ``transactional.id`` is used
        as it is; without one each run has a new id and no token, so that the coordinator may
        expire it. A batch of a stream is a version of its query.
        """
        if self.txn_app_id is not None:
            transactional_id = f"{self.transactional_id or 'spark'}-{self.txn_app_id}"
            return transactional_id, version_token(self.txn_app_id, self.txn_version)
        if self.transactional_id is not None:
            return self.transactional_id, run_id.encode()
        return f"spark-{run_id}", b""


# --- parsing ----------------------------------------------------------------------------------


def parse_read_options(options: Mapping[str, str]) -> ReadOptions:
    """The options of a read; ``InvalidSettingError`` for what is unknown or impossible."""
    given = _Given.of(options, READ_OPTIONS)
    return ReadOptions(
        selection=_selection(given),
        address=given.text("address"),
        starting=_offsets(given, "startingOffsets", default=EARLIEST),
        ending=_offsets(given, "endingOffsets", default=LATEST),
        fails_on_data_loss=given.boolean("failOnDataLoss", default=True),
        partitions_min=given.integer("minPartitions", default=1, low=1, high=1_000_000),
        includes_headers=given.boolean("includeHeaders", default=True),
        isolation_level=_isolation_level(given),
    )


def parse_write_options(options: Mapping[str, str]) -> WriteOptions:
    """The options of a write; ``InvalidSettingError`` for what is unknown or impossible."""
    given = _Given.of(options, WRITE_OPTIONS)
    topic = given.text("topic")
    if given.path is not None:
        if topic not in (None, given.path):
            raise InvalidSettingError(
                f"topic={topic!r} and save({given.path!r}) name different topics: give one of them"
            )
        topic = given.path
    if topic is not None:
        _check_topic("topic", topic)
    compression_type = given.text("compression.type") or "none"
    if compression_type not in COMPRESSION_TYPES:
        raise given.refuse("compression.type", "one of " + ", ".join(COMPRESSION_TYPES))
    parsed = WriteOptions(
        address=given.text("address"),
        topic=topic,
        transactional_id=given.text("transactional.id"),
        txn_app_id=given.text("txnAppId"),
        txn_version=given.integer("txnVersion", default=0, low=0, high=2**63 - 1),
        transaction_timeout_ms=given.integer(
            "transaction.timeout.ms", default=TRANSACTION_TIMEOUT_MS, low=1, high=2**31 - 1
        ),
        compression_type=compression_type,
    )
    if given.has("txnAppId") != given.has("txnVersion"):
        raise InvalidSettingError("txnAppId and txnVersion belong together: give both or neither")
    _check_lengths(parsed)
    return parsed


@dataclass(frozen=True, slots=True, kw_only=True)
class _Given:
    """The options that were given, under their own names in lower case."""

    values: dict[str, str] = field(default_factory=dict)
    path: str | None = None
    paths: tuple[str, ...] = ()

    @classmethod
    def of(cls, options: Mapping[str, str], allowed: tuple[str, ...]) -> _Given:
        """Sort the options: aliases, Spark's own, those without meaning here, unknown ones."""
        names = {name.lower(): name for name in allowed}
        values: dict[str, str] = {}
        for key, value in options.items():
            lower = key.lower()
            name = _ALIASES.get(lower, lower)
            if name in names:
                if values.get(name, value) != value:
                    raise InvalidSettingError(f"{key}={value!r} and {name}={values[name]!r} differ")
                values[name] = value
            elif _PASSED_OVER.fullmatch(lower):
                _logger.warning("option %s=%r means nothing to oncelog", key, value)
            elif lower not in _SPARKS_OWN:
                raise _unknown(key, value, allowed)
        paths = tuple(_path_list(options["paths"])) if "paths" in options else ()
        return cls(values=values, path=options.get("path"), paths=paths)

    def has(self, name: str) -> bool:
        """Whether the option was given."""
        return name.lower() in self.values

    def text(self, name: str) -> str | None:
        """The option's value, which is not empty, or ``None``."""
        value = self.values.get(name.lower())
        if value is not None and not value.strip():
            raise self.refuse(name, "text that is not empty")
        return value

    def boolean(self, name: str, *, default: bool) -> bool:
        """The option as a truth value."""
        value = self.values.get(name.lower(), str(default)).strip().lower()
        if value not in ("true", "false"):
            raise self.refuse(name, "true or false")
        return value == "true"

    def integer(self, name: str, *, default: int, low: int, high: int) -> int:
        """The option as a whole number from ``low`` to ``high``, both inclusive."""
        value = self.values.get(name.lower(), str(default)).strip()
        if not re.fullmatch(r"-?[0-9]{1,19}", value) or not low <= int(value) <= high:
            raise self.refuse(name, f"a whole number from {low} to {high}")
        return int(value)

    def refuse(self, name: str, allowed: str) -> InvalidSettingError:
        """The refusal of an option's value."""
        return InvalidSettingError(
            f"{name}={self.values.get(name.lower())!r} is not allowed: {allowed}"
        )


def _unknown(key: str, value: str, allowed: tuple[str, ...]) -> InvalidSettingError:
    names = {name.lower(): name for name in allowed}
    close = difflib.get_close_matches(key.lower(), names, n=1)
    hint = f"did you mean {names[close[0]]}?" if close else f"known are {', '.join(allowed)}"
    return InvalidSettingError(f"there is no option {key}={value!r}; {hint}")


def _path_list(text: str) -> list[str]:
    try:
        parsed = json.loads(text)
    except ValueError:
        parsed = None
    if not isinstance(parsed, list) or not all(isinstance(item, str) for item in parsed):
        raise InvalidSettingError(f"paths={text!r} is not allowed: a JSON list of topics")
    return parsed


def _check_topic(option: str, topic: str) -> None:
    if not is_valid_topic_name(topic):
        raise InvalidSettingError(
            f"{option}: {topic!r} is not a topic name: 1 to 249 of letters, digits, '.', '_', '-'"
        )


def _check_lengths(options: WriteOptions) -> None:
    """Ids and tokens are bounded; the id of a run, of 32 characters, fits in any case."""
    transactional_id, token = options.identity("0" * 32)
    if len(transactional_id.encode()) > TRANSACTIONAL_ID_MAX_BYTES:
        raise InvalidSettingError(
            f"transactional.id and txnAppId have more than {TRANSACTIONAL_ID_MAX_BYTES} bytes "
            "together: give shorter ones"
        )
    if len(token) > COMMIT_TOKEN_MAX_BYTES:
        raise InvalidSettingError("txnAppId is too long for a commit token: give a shorter one")


def _selection(given: _Given) -> Selection:
    """What is read; ``load("t")`` is short for ``subscribe``."""
    by_path = given.paths or ((given.path,) if given.path is not None else ())
    ways = [name for name in ("subscribe", "assign", "subscribePattern") if given.has(name)]
    if len(ways) + bool(by_path) != 1:
        names = [*ways, "load(path)"] if by_path else ways
        raise InvalidSettingError(
            "exactly one of subscribe, assign and subscribePattern says what to read; given: "
            + (", ".join(names) or "none")
        )
    pattern = given.text("subscribePattern")
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise given.refuse(
                "subscribePattern", f"a regular expression is needed ({error})"
            ) from None
        return Selection(pattern=pattern)
    assigned = given.text("assign")
    partitions: tuple[TopicPartition, ...] = ()
    if assigned is not None:
        partitions = parse_assignment("assign", assigned)
    subscribed = given.text("subscribe")
    topics = by_path if subscribed is None else tuple(subscribed.split(","))
    topics = tuple(dict.fromkeys(topic.strip() for topic in topics))
    for topic in (*topics, *(item.topic for item in partitions)):
        _check_topic("assign" if partitions else "subscribe", topic)
    return Selection(topics=topics, partitions=partitions)


def _offsets(given: _Given, name: str, *, default: int) -> int | Offsets:
    text = given.text(name)
    if text is None:
        return default
    word = text.strip().lower()
    if word in ("earliest", "latest"):
        return EARLIEST if word == "earliest" else LATEST
    if not word.startswith("{"):
        raise given.refuse(name, 'earliest, latest, or JSON as {"topic": {"0": 23}}')
    return parse_offsets(name, text)


def _isolation_level(given: _Given) -> IsolationLevel:
    text = given.text("isolation.level")
    if text is None:
        return IsolationLevel.READ_COMMITTED
    try:
        return IsolationLevel(text.strip().lower())
    except ValueError:
        raise given.refuse("isolation.level", "read_committed or read_uncommitted") from None
