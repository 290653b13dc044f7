"""The arguments of ``read`` and ``write``, each declared once, as settings are; without Ray.

Arguments for Ray Data itself, such as ``concurrency``, are passed on unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

from msgspec import Meta

from oncelog.actors.protocol.messages.transaction import RUN_TIMEOUT_MS
from oncelog.api.config import CompressionType
from oncelog.api.distributing.engine_connection import Endpoint
from oncelog.api.session.login import login_of
from oncelog.ray_data.planning import END, START, Positions, position_text
from oncelog.storage.exceptions import InvalidSettingError
from oncelog.storage.model import (
    INT32_MAX,
    INT64_MAX,
    TRANSACTIONAL_ID_MAX_BYTES,
    IsolationLevel,
)
from oncelog.storage.settings import Checked, Text, check, refused

LevelText = Literal["read_committed", "read_uncommitted"]
ValueSerializer = Literal["json"]

BLOCKS_MAX: Final = 1_000_000

_ADDRESS: Final = "The Ray cluster of the log; by default this process's, or this machine's."
_USER: Final = "Log in as this user; else as that of `ONCELOG_USER`, else as any program of Ray."
_FILE: Final = (
    "The file with the user's password as its first line, on each node; else "
    "`ONCELOG_PASSWORD_FILE`."
)
_SIGNED: Final = (
    "Or: log in by the signed token in the first line of this file, on each node; else "
    "`ONCELOG_TOKEN_FILE`."
)
_CERTIFIED: Final = (
    "Or: log in by the certificate in this PEM file, which has its key too, on each node; else "
    "`ONCELOG_CERT`."
)

PathText = str | Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadArguments:
    """The arguments of a read."""

    topics: Annotated[
        str | Sequence[str],
        Checked("a topic or a list of them", "text or list"),
        "The topics to read.",
    ]
    start_offset: Annotated[
        Positions,
        Checked(position_text("earliest"), "position"),
        "Where to start, inclusive. A time means the first record at or after it.",
    ] = "earliest"
    end_offset: Annotated[
        Positions,
        Checked(position_text("latest"), "position"),
        "Where to end, exclusive; at most what can be read now.",
    ] = "latest"
    isolation_level: Annotated[
        LevelText,
        "Read committed records only, or all records that are replicated.",
    ] = "read_committed"
    include_headers: Annotated[bool, "Read column `headers` too."] = True
    address: Annotated[str | None, Checked("an address, or None"), _ADDRESS] = None
    user: Annotated[str | None, Text(may_be_blank=False), _USER] = None
    password_file: Annotated[PathText | None, Checked("a path, or None", "path"), _FILE] = None
    token: Annotated[PathText | None, Checked("a path, or None", "path"), _SIGNED] = None
    cert: Annotated[PathText | None, Checked("a path, or None", "path"), _CERTIFIED] = None
    override_num_blocks: Annotated[
        int | None,
        Meta(ge=1, le=BLOCKS_MAX),
        "How many tasks read; by default Ray Data decides by the size of the logs.",
    ] = None

    def __post_init__(self) -> None:
        """Reject invalid arguments; ``InvalidSettingError`` names the first."""
        check(self)
        given = (self.topics,) if isinstance(self.topics, str) else tuple(self.topics)
        if not given or not all(isinstance(name, str) and name for name in given):
            raise refused("topics", self.topics, "a topic or a list of them")
        # Kept, because an iterator gives its names only once.
        object.__setattr__(self, "topics", given)
        START.check(self.start_offset)
        END.check(self.end_offset)

    @property
    def topic_names(self) -> tuple[str, ...]:
        """The topics, each once."""
        given = (self.topics,) if isinstance(self.topics, str) else self.topics
        return tuple(dict.fromkeys(given))

    @property
    def endpoint(self) -> Endpoint:
        """Where to connect, and as whom; see ``endpoint_of``."""
        return endpoint_of(self)

    @property
    def level(self) -> IsolationLevel:
        """Which records are read."""
        return IsolationLevel(self.isolation_level)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteArguments:
    """The arguments of a write: its topic and its identity."""

    topic: Annotated[
        str | None,
        Text(may_be_blank=False),
        "The topic of all rows; with None each row has its own in column `topic`.",
    ]
    txn_app_id: Annotated[
        str | None,
        Text(may_be_blank=False),
        "The application that writes this version. A committed version is not written again.",
    ] = None
    txn_version: Annotated[
        int | None, Meta(ge=0, le=INT64_MAX), "A number that rises from write to write."
    ] = None
    transactional_id: Annotated[
        str | None,
        Text(TRANSACTIONAL_ID_MAX_BYTES, may_be_blank=False),
        "Without a version: the id to write under, which fences earlier writes.",
    ] = None
    transaction_timeout_ms: Annotated[
        int,
        Meta(ge=1, le=INT32_MAX),
        "Abort a write after this time without any of its tasks; with tasks it is limited by the "
        "cluster's `distributed_write_max_ms`.",
    ] = RUN_TIMEOUT_MS
    compression_type: Annotated[CompressionType, "How batches are compressed."] = "none"
    key_field: Annotated[str | None, "The column with the key, whatever its type."] = None
    value_serializer: Annotated[
        ValueSerializer | None, "With `json` the value is the whole row, as a JSON object."
    ] = None
    address: Annotated[str | None, Checked("an address, or None"), _ADDRESS] = None
    user: Annotated[str | None, Text(may_be_blank=False), _USER] = None
    password_file: Annotated[PathText | None, Checked("a path, or None", "path"), _FILE] = None
    token: Annotated[PathText | None, Checked("a path, or None", "path"), _SIGNED] = None
    cert: Annotated[PathText | None, Checked("a path, or None", "path"), _CERTIFIED] = None

    def __post_init__(self) -> None:
        """Reject invalid arguments; ``InvalidSettingError`` names the first."""
        check(self)
        if (self.txn_app_id is None) != (self.txn_version is None):
            raise InvalidSettingError(
                f"txn_app_id={self.txn_app_id!r} and txn_version={self.txn_version!r} belong "
                "together",
                advice="give both or neither",
            )

    @property
    def endpoint(self) -> Endpoint:
        """Where to connect, and as whom; see ``endpoint_of``."""
        return endpoint_of(self)


def endpoint_of(arguments: ReadArguments | WriteArguments) -> Endpoint:
    """Where to connect, and as whom; without arguments the environment of this process says it."""
    files = {name: getattr(arguments, name) for name in ("password_file", "token", "cert")}
    for name, path in files.items():
        if path is not None and not isinstance(path, str | Path):
            # Without its value, which may be what the file is for.
            raise InvalidSettingError(
                f"{name} is a {type(path).__name__}", advice="give the path of a file"
            )
    return Endpoint(address=arguments.address, login=login_of(arguments.user, **files))
