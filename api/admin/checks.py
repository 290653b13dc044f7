"""What is checked of arguments before anybody is called; the controller checks what there is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oncelog.actors.config import TopicConfig
from oncelog.storage.exceptions import (
    InvalidPartitionsError,
    InvalidReplicationFactorError,
    InvalidTopicError,
)
from oncelog.storage.model import is_valid_topic_name
from oncelog.storage.settings import check_name


def is_whole(value: object) -> bool:
    """Whether it is a number of something."""
    return isinstance(value, int) and not isinstance(value, bool)


def settings_text(settings: Mapping[str, Any]) -> dict[str, str]:
    """Topic settings as requests carry them, without those that are ``None``, the default."""
    for name, value in settings.items():
        check_name(TopicConfig, name, f"{name}={value!r}")
    return {name: str(value) for name, value in settings.items() if value is not None}


def check_topic_name(name: object) -> None:
    """Refuse what cannot be the name of a topic."""
    if not isinstance(name, str) or not is_valid_topic_name(name):
        raise InvalidTopicError(
            f"topic name {name!r} is not allowed: give 1 to 249 of letters, digits, '.', '_' "
            "and '-', but not '.' or '..'"
        )


def check_partitions(partitions: object) -> None:
    """Refuse what is not a number."""
    if not is_whole(partitions):
        raise InvalidPartitionsError(f"partitions={partitions!r}: give a whole number")


def check_replication_factor(replication_factor: object) -> None:
    """Refuse what is neither a number of replicas nor ``None``."""
    if replication_factor is None:
        return
    if not (is_whole(replication_factor) and int(str(replication_factor)) >= 1):
        raise InvalidReplicationFactorError(
            f"replication_factor={replication_factor!r}: give a whole number from 1 to the number "
            "of brokers, or None"
        )
