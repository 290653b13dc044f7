"""Keeps ``listener.json`` of a data directory: how programs find the cluster without Ray.

The controller and the broker's own actor each keep it, if they run there. Whichever is named, it
tells where all others listen; so the file is written anew only once the process that it names has
ended. A program that finds an old one goes on through Ray.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from oncelog.actors.interfaces import Background, ProcessSight
from oncelog.actors.replica.data_directory import read_identity
from oncelog.actors.rpc.listener_directory import LISTENER_FILE, NamedListener, read_named
from oncelog.storage.disk.file_system import FileSystem
from oncelog.storage.exceptions import CorruptDataError, InvalidSettingError, OncelogError

_logger = logging.getLogger(__name__)

CHECK_S: Final = 5.0
"""Interval at which the file is looked at: the process that it names may have ended."""


class ListenerFile:
    """Names one process in the data directory of its broker, unless another that lives is named.

    ``describe`` tells what to write, as soon as the process listens.
    """

    def __init__(
        self,
        data_dir: Path,
        describe: Callable[[], Awaitable[NamedListener]],
        *,
        filesystem: FileSystem,
        background: Background,
        processes: ProcessSight,
    ) -> None:
        self._data_dir = data_dir
        self._describe = describe
        self._filesystem = filesystem
        self._background = background
        self._processes = processes
        self._problem = ""

    async def keep(self) -> None:
        """Write the file when it is needed; run it in its own task."""
        while True:
            try:
                own = await self._describe()
                await self._background.run(functools.partial(self.write, own))
                self._problem = ""
            except (OSError, CorruptDataError, InvalidSettingError) as error:
                # Commands go on through Ray; a full disk may have room again.
                self._report(error, "make room, or the directory writable")
            except Exception as error:
                # Ray's own errors too, as it ends: the file is not worth an actor's life.
                self._report(error, "see whether Ray runs here")
            await asyncio.sleep(CHECK_S)

    def _report(self, error: Exception, advice: str) -> None:
        problem = str(error) or repr(error)
        if problem != self._problem:
            _logger.warning(
                "%s cannot be written: %s — commands here join Ray meanwhile; %s",
                LISTENER_FILE,
                problem,
                advice,
                exc_info=None if isinstance(error, (OSError, OncelogError)) else error,
            )
        self._problem = problem

    def write(self, own: NamedListener) -> None:
        """Name ``own``, if the directory is that broker's and names no process that lives.

        OSError, CorruptDataError.
        """
        identity = read_identity(self._filesystem, self._data_dir)
        owner = None if identity is None else (identity.cluster_id, identity.broker_id)
        if owner != (own.cluster_id, own.broker_id):
            # Not claimed yet, or another disk: nothing is left there.
            return
        known = read_named(self._data_dir)
        if known == own or (known is not None and self._counts(known, own)):
            return
        # Under a name of its own first: the controller and the broker may write at the same time.
        draft = self._data_dir / f"{LISTENER_FILE}.{own.actor}"
        self._filesystem.write_atomically(draft, own.to_bytes())
        self._filesystem.rename(draft, self._data_dir / LISTENER_FILE)

    def _counts(self, known: NamedListener, own: NamedListener) -> bool:
        """Whether the file names a process of this cluster that is alive, and not this one."""
        if known.process is None or known.process == own.process:
            return False
        is_ours = (known.cluster_id, known.broker_id) == (own.cluster_id, own.broker_id)
        return is_ours and self._processes.lives(known.process) is True
