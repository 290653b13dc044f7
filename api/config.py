"""Settings of the clients, in Kafka's names written with underscores; checked at construction.

An unknown or impossible setting is refused at once with its name, its value and what is allowed.
Times are milliseconds, sizes bytes. ``ProducerOptions`` and ``ConsumerOptions`` are the same
settings as keywords, for editors and type checkers; a test keeps them equal.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypedDict, TypeVar, get_args

from oncelog.api.batching.interceptors import ProducerInterceptor
from oncelog.storage.exceptions import InvalidSettingError
from oncelog.storage.model import (
    DUPLICATE_WINDOW_BATCHES,
    FETCH_MAX_BYTES,
    GROUP_ID_MAX_BYTES,
    MESSAGE_MAX_BYTES,
    TRANSACTIONAL_ID_MAX_BYTES,
    IsolationLevel,
    has_utf8_bytes,
)

ACKS_ALL: Final = -1
Acks = Literal["all", -1, 0, 1]
CompressionType = Literal["none", "gzip", "snappy", "lz4", "zstd"]
OffsetReset = Literal["earliest", "latest", "none"]
AssignmentStrategy = Literal["range", "roundrobin", "sticky"]
AssignmentStrategies = AssignmentStrategy | Sequence[AssignmentStrategy]
COMPRESSION_TYPES: Final[tuple[str, ...]] = get_args(CompressionType)

_INT32_MAX: Final = 2**31 - 1

SettingsT = TypeVar("SettingsT", bound="ProducerSettings | ConsumerSettings")


def _refuse(name: str, value: object, allowed: str) -> InvalidSettingError:
    return InvalidSettingError(f"{name}={value!r} is not allowed: {allowed}")


def _check_integer(settings: object, name: str, low: int, high: int = _INT32_MAX) -> None:
    value = getattr(settings, name)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise _refuse(name, value, f"a whole number from {low} to {high}")


def _check_boolean(settings: object, name: str) -> None:
    value = getattr(settings, name)
    if not isinstance(value, bool):
        raise _refuse(name, value, "True or False")


def _check_choice(settings: object, name: str, choices: tuple[str, ...]) -> None:
    value = getattr(settings, name)
    if value not in choices:
        raise _refuse(name, value, "one of " + ", ".join(repr(choice) for choice in choices))


def _check_strategies(settings: ConsumerSettings) -> None:
    given = settings.partition_assignment_strategy
    names = (given,) if isinstance(given, str) else given
    choices = get_args(AssignmentStrategy)
    if (
        not isinstance(names, list | tuple)
        or not names
        or any(name not in choices for name in names)
        or len(set(names)) < len(names)
    ):
        allowed = "one or several of " + ", ".join(map(repr, choices))
        raise _refuse("partition_assignment_strategy", given, allowed)
    object.__setattr__(settings, "partition_assignment_strategy", tuple(names))


def _check_id(settings: object, name: str, bytes_max: int) -> None:
    value = getattr(settings, name)
    if value is None:
        return
    if not isinstance(value, str) or not has_utf8_bytes(value, 1, bytes_max):
        raise _refuse(name, value, f"text of 1 to {bytes_max} bytes of UTF-8")


def _check_interceptors(settings: ProducerSettings) -> None:
    given = settings.interceptors
    if not isinstance(given, list | tuple) or not all(
        isinstance(interceptor, ProducerInterceptor) for interceptor in given
    ):
        raise _refuse("interceptors", given, "a list of ProducerInterceptor objects")
    object.__setattr__(settings, "interceptors", tuple(given))


def _from_options(kind: type[SettingsT], options: Mapping[str, Any]) -> SettingsT:
    known = [field.name for field in dataclasses.fields(kind)]
    for name, value in options.items():
        if name not in known:
            close = difflib.get_close_matches(name.replace(".", "_"), known, n=1)
            hint = f"did you mean {close[0]}?" if close else "known are " + ", ".join(known)
            raise InvalidSettingError(f"{name}={value!r}: there is no such setting; {hint}")
    return kind(**options)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """How a producer batches, retries and gives up. Every producer is idempotent (KIP-98).

    ``acks`` is ``"all"`` (or -1), 1 or 0; a transactional producer needs all. ``batch_size`` is
    the target size of a batch, ``max_request_size`` the limit of one record and one batch.
    ``buffer_memory`` bounds what is not yet acknowledged: beyond it ``send`` waits up to
    ``max_block_ms``, which also bounds each transactional call. ``interceptors`` are objects.

    If the first record of a transaction comes within ``enrol_ahead_ms`` of the end before, its
    commit begins the next one at the coordinator as well, with the same partitions; that is
    aborted if no record comes within this time. 0 turns it off, and so does a transaction timeout
    below ten times as much.
    """

    transactional_id: str | None = None
    transaction_timeout_ms: int = 60_000
    client_id: str = "oncelog"
    acks: Acks = ACKS_ALL
    batch_size: int = 262_144
    linger_ms: int = 5
    enrol_ahead_ms: int = 100
    max_in_flight_requests_per_connection: int = DUPLICATE_WINDOW_BATCHES
    delivery_timeout_ms: int = 120_000
    request_timeout_ms: int = 30_000
    max_block_ms: int = 60_000
    buffer_memory: int = 33_554_432
    max_request_size: int = 1_048_576
    compression_type: CompressionType = "none"
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    interceptors: Sequence[ProducerInterceptor] = ()

    def __post_init__(self) -> None:
        """Check every setting and their relations. ``InvalidSettingError`` names the first bad."""
        _check_interceptors(self)
        if self.acks == "all":
            object.__setattr__(self, "acks", ACKS_ALL)
        if isinstance(self.acks, bool) or self.acks not in (ACKS_ALL, 0, 1):
            raise _refuse("acks", self.acks, "'all' (-1), 1 or 0")
        _check_id(self, "transactional_id", TRANSACTIONAL_ID_MAX_BYTES)
        _check_id(self, "client_id", TRANSACTIONAL_ID_MAX_BYTES)
        _check_integer(self, "transaction_timeout_ms", 1)
        _check_integer(self, "batch_size", 1, MESSAGE_MAX_BYTES)
        _check_integer(self, "linger_ms", 0)
        _check_integer(self, "enrol_ahead_ms", 0)
        _check_integer(self, "max_in_flight_requests_per_connection", 1, DUPLICATE_WINDOW_BATCHES)
        _check_integer(self, "delivery_timeout_ms", 1)
        _check_integer(self, "request_timeout_ms", 1)
        _check_integer(self, "max_block_ms", 1)
        _check_integer(self, "buffer_memory", 1, 2**40)
        _check_integer(self, "max_request_size", 100)
        _check_integer(self, "retry_backoff_ms", 1)
        _check_integer(self, "retry_backoff_max_ms", 1)
        _check_choice(self, "compression_type", COMPRESSION_TYPES)
        if self.delivery_timeout_ms < self.linger_ms + self.request_timeout_ms:
            raise _refuse(
                "delivery_timeout_ms",
                self.delivery_timeout_ms,
                f"at least linger_ms + request_timeout_ms = "
                f"{self.linger_ms + self.request_timeout_ms}",
            )
        if self.transactional_id is not None and self.acks != ACKS_ALL:
            raise _refuse("acks", self.acks, "a transactional producer needs acks='all'")

    @property
    def acks_count(self) -> int:
        """``acks`` as the number that requests carry: -1, 0 or 1."""
        return int(self.acks)

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> ProducerSettings:
        """Settings from keywords of a user; an unknown name is refused with the nearest known."""
        return _from_options(cls, options)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """How a consumer fetches, commits and takes part in its group.

    ``isolation_level`` may be given as text. ``max_poll_interval_ms`` is also the group's
    rebalance timeout. Without ``group_id`` positions are not committed. Of several strategies the
    group takes one that all its members have; to change it one member after another, give the new
    and the old one first, and leave the old one out in a second round.
    """

    group_id: str | None = None
    group_instance_id: str | None = None
    client_id: str = "oncelog"
    isolation_level: IsolationLevel = IsolationLevel.READ_COMMITTED
    auto_offset_reset: OffsetReset = "latest"
    enable_auto_commit: bool = True
    auto_commit_interval_ms: int = 5_000
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    max_poll_interval_ms: int = 300_000
    max_poll_records: int = 500
    partition_assignment_strategy: AssignmentStrategies = ("range",)
    fetch_min_bytes: int = 1
    fetch_max_bytes: int = FETCH_MAX_BYTES
    max_partition_fetch_bytes: int = 1_048_576
    fetch_max_wait_ms: int = 500
    check_crcs: bool = True
    request_timeout_ms: int = 30_000
    default_api_timeout_ms: int = 60_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000

    def __post_init__(self) -> None:
        """Check every setting and their relations. ``InvalidSettingError`` names the first bad."""
        if not isinstance(self.isolation_level, IsolationLevel):
            try:
                level = IsolationLevel(self.isolation_level)
            except ValueError as error:
                raise _refuse(
                    "isolation_level",
                    self.isolation_level,
                    "'read_committed' or 'read_uncommitted'",
                ) from error
            object.__setattr__(self, "isolation_level", level)
        _check_id(self, "group_id", GROUP_ID_MAX_BYTES)
        _check_id(self, "group_instance_id", GROUP_ID_MAX_BYTES)
        _check_id(self, "client_id", GROUP_ID_MAX_BYTES)
        _check_choice(self, "auto_offset_reset", get_args(OffsetReset))
        _check_strategies(self)
        _check_boolean(self, "enable_auto_commit")
        _check_boolean(self, "check_crcs")
        _check_integer(self, "fetch_max_wait_ms", 0)
        for name in (
            "auto_commit_interval_ms",
            "session_timeout_ms",
            "heartbeat_interval_ms",
            "max_poll_interval_ms",
            "max_poll_records",
            "fetch_min_bytes",
            "fetch_max_bytes",
            "max_partition_fetch_bytes",
            "request_timeout_ms",
            "default_api_timeout_ms",
            "retry_backoff_ms",
            "retry_backoff_max_ms",
        ):
            _check_integer(self, name, 1)
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise _refuse(
                "heartbeat_interval_ms",
                self.heartbeat_interval_ms,
                f"less than session_timeout_ms={self.session_timeout_ms}",
            )
        if self.group_instance_id is not None and self.group_id is None:
            raise _refuse("group_instance_id", self.group_instance_id, "only with a group_id")

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> ConsumerSettings:
        """Settings from keywords of a user; an unknown name is refused with the nearest known."""
        return _from_options(cls, options)


class ProducerOptions(TypedDict, total=False):
    """``ProducerSettings`` as keywords."""

    transactional_id: str | None
    transaction_timeout_ms: int
    client_id: str
    acks: Acks
    batch_size: int
    linger_ms: int
    enrol_ahead_ms: int
    max_in_flight_requests_per_connection: int
    delivery_timeout_ms: int
    request_timeout_ms: int
    max_block_ms: int
    buffer_memory: int
    max_request_size: int
    compression_type: CompressionType
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    interceptors: Sequence[ProducerInterceptor]


class ConsumerOptions(TypedDict, total=False):
    """``ConsumerSettings`` as keywords; the isolation level may be text."""

    group_id: str | None
    group_instance_id: str | None
    client_id: str
    isolation_level: IsolationLevel | Literal["read_committed", "read_uncommitted"]
    auto_offset_reset: OffsetReset
    enable_auto_commit: bool
    auto_commit_interval_ms: int
    session_timeout_ms: int
    heartbeat_interval_ms: int
    max_poll_interval_ms: int
    max_poll_records: int
    partition_assignment_strategy: AssignmentStrategies
    fetch_min_bytes: int
    fetch_max_bytes: int
    max_partition_fetch_bytes: int
    fetch_max_wait_ms: int
    check_crcs: bool
    request_timeout_ms: int
    default_api_timeout_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
