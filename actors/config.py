"""Typed settings of the cluster and of topics, with units in their names.

An unknown or impossible setting is refused when it is built, with its name, its value and what is
allowed. Client settings are in ``api/config.py``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from oncelog.storage.exceptions import InvalidSettingError
from oncelog.storage.model import INDEX_INTERVAL_BYTES, MESSAGE_MAX_BYTES, SEGMENT_BYTES

SettingsT = TypeVar("SettingsT")

FLUSH_POLICIES: Final = ("sync", "os")
TIMESTAMP_TYPES: Final = ("CreateTime", "LogAppendTime")


def check_range(name: str, value: object, minimum: int, maximum: int) -> None:
    """Refuse anything but an int between ``minimum`` and ``maximum``, both inclusive."""
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
        raise InvalidSettingError(
            f"{name}={value!r} is not allowed: give a whole number from {minimum} to {maximum}"
        )


def check_choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    """Refuse anything but one of ``allowed``."""
    if value not in allowed:
        raise InvalidSettingError(
            f"{name}={value!r} is not allowed: give one of {', '.join(allowed)}"
        )


def build_settings(kind: type[SettingsT], values: Mapping[str, Any]) -> SettingsT:
    """Build a settings dataclass from keywords; an unknown name is refused with the known ones."""
    known = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    for name, value in values.items():
        if name not in known:
            raise InvalidSettingError(
                f"{name}={value!r} is not a setting: known are {', '.join(sorted(known))}"
            )
    return kind(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """Settings of one topic. ``flush="os"`` answers before the data is on disk, as Kafka does."""

    max_message_bytes: int = MESSAGE_MAX_BYTES
    segment_bytes: int = SEGMENT_BYTES
    segment_ms: int = 604_800_000
    index_interval_bytes: int = INDEX_INTERVAL_BYTES
    flush: str = "sync"
    message_timestamp_type: str = "CreateTime"

    def __post_init__(self) -> None:
        check_range("max_message_bytes", self.max_message_bytes, 62, 2**30)
        check_range("segment_bytes", self.segment_bytes, 4_096, 2**31 - 1)
        check_range("segment_ms", self.segment_ms, 1, 2**63 - 1)
        check_range("index_interval_bytes", self.index_interval_bytes, 0, 2**31 - 1)
        check_choice("flush", self.flush, FLUSH_POLICIES)
        check_choice("message_timestamp_type", self.message_timestamp_type, TIMESTAMP_TYPES)

    @classmethod
    def from_text(cls, settings: Mapping[str, str]) -> TopicConfig:
        """Build from names and text values, as they stand in the metadata log."""
        defaults = {field.name: field.default for field in dataclasses.fields(cls)}
        values: dict[str, Any] = {}
        for name, text in settings.items():
            if isinstance(defaults.get(name), int):
                try:
                    values[name] = int(text)
                except ValueError:
                    raise InvalidSettingError(
                        f"{name}={text!r} is not allowed: give a whole number"
                    ) from None
            else:
                values[name] = text
        return build_settings(cls, values)

    def to_text(self) -> tuple[tuple[str, str], ...]:
        """Every setting that differs from its default, by name, with its value as text."""
        return tuple(
            (field.name, str(getattr(self, field.name)))
            for field in dataclasses.fields(self)
            if getattr(self, field.name) != field.default
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """Settings of a cluster; the two partition counts are fixed when it is founded."""

    transaction_state_partitions: int = 2
    offsets_partitions: int = 2
    transaction_max_timeout_ms: int = 900_000
    transaction_visibility_wait_ms: int = 1_000
    transaction_abort_scan_ms: int = 1_000
    transactional_id_expiration_ms: int = 604_800_000
    producer_id_expiration_ms: int = 86_400_000
    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    group_initial_rebalance_delay_ms: int = 0
    out_of_order_wait_ms: int = 1_000
    internal_call_timeout_ms: int = 5_000

    def __post_init__(self) -> None:
        check_range("transaction_state_partitions", self.transaction_state_partitions, 1, 1_000)
        check_range("offsets_partitions", self.offsets_partitions, 1, 1_000)
        for field in dataclasses.fields(self):
            if field.name.endswith("_ms"):
                check_range(field.name, getattr(self, field.name), 0, 2**31 - 1)
        if self.group_min_session_timeout_ms > self.group_max_session_timeout_ms:
            raise InvalidSettingError(
                f"group_min_session_timeout_ms={self.group_min_session_timeout_ms} is above "
                f"group_max_session_timeout_ms={self.group_max_session_timeout_ms}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaConfig:
    """What the process of one replica is started with; the rest it learns from the controller."""

    topic: str
    partition: int
    broker_id: int
    data_dir: str
    cluster: ClusterConfig = dataclasses.field(default_factory=ClusterConfig)

    @property
    def directory(self) -> Path:
        """Where the replica keeps its files: ``<data_dir>/<topic>-<partition>``."""
        return Path(self.data_dir) / f"{self.topic}-{self.partition}"
