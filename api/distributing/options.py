"""What a distributed write is told: where to, and under which identity."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from oncelog.actors.protocol.transaction.commit_versions import version_in, version_token
from oncelog.api.producing.member import TRANSACTION_TIMEOUT_MS
from oncelog.storage.exceptions import InvalidSettingError
from oncelog.storage.model import COMMIT_TOKEN_MAX_BYTES, TRANSACTIONAL_ID_MAX_BYTES

ENGINES: Final = ("spark", "ray-data")
"""Who writes versions: an application of one is another one than that of the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """A write. ``topic`` ``None``: each row names its own.

    ``engine`` is how the ids begin of versions, and of writes without an id.
    ``producer`` are settings of ``ProducerSettings`` that differ from its defaults.
    """

    engine: str = "write"
    address: str | None = None
    topic: str | None = None
    transactional_id: str | None = None
    txn_app_id: str | None = None
    txn_version: int = 0
    transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS
    compression_type: str = "none"
    producer: Mapping[str, int] = field(default_factory=dict)

    @property
    def producer_settings(self) -> dict[str, Any]:
        """What each task's producer is told."""
        return {"compression_type": self.compression_type, **self.producer}

    def identity(self, run_id: str) -> tuple[str, bytes]:
        """The transactional id that a run writes under, and the commit token of what it writes.

        With ``txn_app_id`` the application has its own transactional id, and the token names the
        version: a committed version is not written again, whatever ``transactional_id`` says.
        Otherwise that is used as it is; without one each run has a new id and no token, so that
        the coordinator may expire it. A batch of a stream is a version of its query.
        """
        if self.txn_app_id is not None:
            token = version_token(self.txn_app_id, self.txn_version)
            return f"{self.engine}-{self.txn_app_id}", token
        if self.transactional_id is not None:
            return self.transactional_id, run_id.encode()
        return f"{self.engine}-{run_id}", b""

    @property
    def prefixed_id(self) -> str | None:
        """The id that a former oncelog wrote the application's versions under, with this prefix."""
        if self.txn_app_id is None or self.transactional_id is None:
            return None
        prefixed = f"{self.transactional_id}-{self.txn_app_id}"
        return prefixed if len(prefixed.encode()) <= TRANSACTIONAL_ID_MAX_BYTES else None

    def is_remembered(self, token: bytes | None) -> bool:
        """Whether a commit token names a version of the application."""
        version = version_in(token or b"")
        return version is not None and version.app_id == self.txn_app_id

    def is_former_id(self, transactional_id: str) -> bool:
        """Whether a former oncelog may have written the application's versions under the id.

        That had any prefix; what another engine writes is not meant.
        """
        prefix = transactional_id.removesuffix(f"-{self.txn_app_id}")
        return prefix not in ("", transactional_id, self.engine, *ENGINES)

    def check_identity(self) -> None:
        """Refuse ids that no coordinator takes: ``InvalidSettingError`` names what is too long.

        The id of a run, of 32 characters, fits in any case.
        """
        transactional_id, token = self.identity("0" * 32)
        if len(transactional_id.encode()) > TRANSACTIONAL_ID_MAX_BYTES:
            raise InvalidSettingError(
                f"the transactional id {transactional_id[:40]!r}... has more than "
                f"{TRANSACTIONAL_ID_MAX_BYTES} bytes: give a shorter one, or a shorter name of the "
                "application"
            )
        if len(token) > COMMIT_TOKEN_MAX_BYTES:
            raise InvalidSettingError(
                f"the application's name {str(self.txn_app_id)[:40]!r}... is too long for a commit "
                "token: give a shorter one"
            )
