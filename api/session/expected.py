"""What a program that joins a cluster expects of it; another one is refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from oncelog.actors.config import FOUNDING_SETTINGS, ClusterConfig, data_directories
from oncelog.actors.protocol.messages.cluster import MetadataReply
from oncelog.api.session.connection import data_dir_text
from oncelog.storage.exceptions import ConnectionFailedError, InvalidSettingError


def check_data_dirs(metadata: MetadataReply, expected: tuple[Path, ...]) -> None:
    """Refuse a cluster that keeps its data elsewhere."""
    found = data_directories(metadata.brokers[0].data_dir)
    if found != expected:
        raise ConnectionFailedError(
            f"a cluster with data_dir={data_dir_text(found)!r} runs here already, so "
            f"data_dir={data_dir_text(expected)!r} cannot be started: use the same directory, or "
            "stop the running cluster first"
        )


def check_cluster(metadata: MetadataReply, expected: str | None) -> None:
    """Refuse another cluster; ``None`` expects none."""
    if expected not in {None, metadata.cluster_id}:
        raise ConnectionFailedError(
            f"cluster {metadata.cluster_id} runs here already, not cluster_id={expected!r}: stop "
            "it first, or give its id"
        )


def check_settings(metadata: MetadataReply, expected: Mapping[str, Any]) -> None:
    """Refuse settings that the cluster does not have: it was started with its own."""
    for name, value in expected.items():
        found = setting(metadata, name)
        if str(value) != found:
            raise InvalidSettingError(
                f"{name}={value!r} is not what the cluster of {metadata.brokers[0].data_dir} has, "
                f"which is {found}: leave it out, or stop the cluster and start it with that"
                + (" in a new directory" if name in FOUNDING_SETTINGS else "")
            )


def setting(metadata: MetadataReply, name: str) -> str:
    """What the cluster has of one setting of ``ClusterConfig``."""
    return dict(metadata.settings).get(name, str(getattr(ClusterConfig(), name)))
