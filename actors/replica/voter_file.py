"""What a voter of the metadata log must not forget, in a file of its data directory."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from oncelog.actors.protocol.cluster.quorum import VoterState
from oncelog.storage.disk.file_system import FileSystem
from oncelog.storage.exceptions import CorruptDataError

VOTER_FILE: Final = "quorum-state"
"""Of the data directory, which it shares the disk with; Kafka's name."""

_VERSION: Final = 1


class _Contents(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    version: int = _VERSION
    epoch: int
    voted_for: int
    is_copied: bool


def read_voter_state(filesystem: FileSystem, data_dir: Path) -> VoterState | None:
    """What the file says; None without one. OSError, CorruptDataError."""
    try:
        data = filesystem.read_whole(data_dir / VOTER_FILE)
    except FileNotFoundError:
        return None
    try:
        found = msgspec.json.decode(data, type=_Contents)
    except msgspec.DecodeError as error:
        raise CorruptDataError(f"{data_dir / VOTER_FILE} is unreadable: {error}") from None
    if found.version != _VERSION:
        raise CorruptDataError(f"{data_dir / VOTER_FILE} is of version {found.version}")
    return VoterState(epoch=found.epoch, voted_for=found.voted_for, is_copied=found.is_copied)


def write_voter_state(filesystem: FileSystem, data_dir: Path, state: VoterState) -> None:
    """Replace the file, durably. OSError."""
    contents = _Contents(epoch=state.epoch, voted_for=state.voted_for, is_copied=state.is_copied)
    filesystem.write_atomically(data_dir / VOTER_FILE, msgspec.json.encode(contents) + b"\n")
