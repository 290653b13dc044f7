"""The id of the topic that a partition directory belongs to.

It is kept twice. ``partition.metadata`` is Kafka's and has no checksum; ``.topic_id`` is ours and
has one: ``0``, ``topic_id <id>`` and ``crc32c X`` (8 hex digits, of both lines) on a line each. The
files of another topic are removed, so a flipped bit must not turn one topic into another.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from crc32c import crc32c

from oncelog.storage.disk.file_system import FileSystem
from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.log.checkpoint import PARTITION_METADATA_FILE

TOPIC_ID_FILE: Final = ".topic_id"
_VERSION: Final = "0"


def encode_topic_id(topic_id: str) -> bytes:
    """The bytes of our file."""
    text = f"0\ntopic_id {topic_id}\n".encode()
    return b"%bcrc32c %08x\n" % (text, crc32c(text))


def decode_topic_id(data: bytes) -> str:
    """The id in our file; CorruptDataError if it is torn or damaged."""
    try:
        _, line, _ = data.decode("ascii").splitlines()
        topic_id = line.split(" ")[1]
    except (ValueError, IndexError) as error:
        raise CorruptDataError("topic id cannot be read") from error
    if encode_topic_id(topic_id) != data:
        raise CorruptDataError("topic id does not match its CRC")
    return topic_id


def decode_metadata(data: bytes) -> tuple[str, str]:
    """Version and topic id in Kafka's file; CorruptDataError if they are not there."""
    try:
        fields = dict(line.split(": ", 1) for line in data.decode("ascii").splitlines())
        return fields["version"], fields["topic_id"]
    except (KeyError, ValueError) as error:
        raise CorruptDataError("no version and topic id") from error


def read_topic_id(filesystem: FileSystem, directory: Path) -> str | None:
    """The id of the topic that these files belong to; None if neither file is there.

    CorruptDataError if our file is damaged and Kafka's is missing: these may be the
    files of another topic. A directory of an earlier build has only Kafka's, which is trusted.
    """
    damage: CorruptDataError | None = None
    path = directory / TOPIC_ID_FILE
    try:
        return decode_topic_id(filesystem.read_whole(path))
    except FileNotFoundError:
        pass
    except CorruptDataError as error:
        damage = CorruptDataError(f"{path}: {error}")
    metadata = directory / PARTITION_METADATA_FILE
    try:
        version, topic_id = decode_metadata(filesystem.read_whole(metadata))
    except FileNotFoundError:
        if damage is not None:
            raise damage from None
        return None
    except CorruptDataError as error:
        raise CorruptDataError(f"{metadata}: {error}") from error
    if version != _VERSION:
        raise CorruptDataError(f"{metadata}: version {version} is not known")
    return topic_id


def write_topic_id(filesystem: FileSystem, directory: Path, topic_id: str) -> None:
    """Make both files say it; durable on return. Nothing is written if they do."""
    metadata = f"version: 0\ntopic_id: {topic_id}\n".encode()
    for name, data in (
        (PARTITION_METADATA_FILE, metadata),
        (TOPIC_ID_FILE, encode_topic_id(topic_id)),
    ):
        try:
            found = filesystem.read_whole(directory / name)
        except FileNotFoundError:
            found = b""
        if found != data:
            filesystem.write_atomically(directory / name, data)
