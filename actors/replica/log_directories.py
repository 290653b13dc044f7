"""The data directories of a broker beyond its own, and which one a replica is in.

The broker's own directory, the first, has the list of the others (``further`` in its
``meta.properties``), and a small file for each replica that is in one of them. A replica without
such a file is in the own directory. ``join_further`` updates the list when the broker starts. A
replica that starts only reads the list, and decides where it is under one lock of the broker
(``place``).

The rules are in ``protocol/partition/log_directory``. With one directory there is no list, no lock
and no file.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from oncelog.actors.config import ReplicaConfig, data_directories
from oncelog.actors.protocol.partition.log_directory import (
    DirectoryAssignment,
    NoDirectory,
    emptiest,
    possible_directories,
)
from oncelog.actors.replica.data_directory import (
    IDENTITY_FILE,
    DirectoryIdentity,
    MissingLogError,
    read_identity,
    refuse_leftovers,
    write_identity,
)
from oncelog.storage.disk.file_system import FileSystem, Lock
from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.log.side_files import LOCK_FILE, read_topic_id
from oncelog.storage.model import INTERNAL_TOPICS

_logger = logging.getLogger(__name__)

ASSIGNED_DIRECTORY: Final = "assigned"
"""Subdirectory of the own directory: a file for each replica that is in a further one."""

ASSIGNING_LOCK_FILE: Final = ".assigning.lock"
"""Held by the replica of the broker that currently decides where it is."""

DIRECTORY_ID_BYTES: Final = 16

_VERSION: Final = "0"

OWN: Final = ""
"""Stands for the own directory among directory ids."""


def join_further(
    filesystem: FileSystem, data_dir: str, *, new_directory_id: Callable[[], str]
) -> None:
    """Claim the further directories of ``data_dir`` for the broker whose own one is the first.

    A new directory gets an identity. So does an empty one in the place of another: its disk has
    been replaced. One that was in use and cannot be read now stays on the list, and one that is no
    longer named stays as long as replicas are in it. Durable on return. CorruptDataError for one
    that is another broker's, named twice, or has logs but no identity; OSError for a new one that
    cannot be used.
    """
    own, *others = data_directories(data_dir)
    identity = read_identity(filesystem, own)
    if identity is None or not (others or identity.further):
        return
    lock = filesystem.lock(own / LOCK_FILE)
    try:
        # Read again: the previous holder of the lock may have written it.
        identity = read_identity(filesystem, own) or identity
        before = {path: one for one, path in identity.further}
        now: dict[str, str] = {}
        for path in others:
            known_id = before.get(str(path))
            one = _joined(filesystem, path, identity, known_id, new_directory_id)
            if one in now:
                raise CorruptDataError(
                    f"data_dir={data_dir!r}: {now[one]} and {path} are one directory; name it once"
                )
            if one is not None:
                now[one] = str(path)
        away = {one: path for path, one in before.items() if path not in now.values()}
        used: set[str] = set()
        if away:
            used = {found.directory_id for found in _assignments(filesystem, own)}
        for one, left in away.items():
            if one not in now and (Path(left) in others or one in used):
                now[one] = left
        if dict(identity.further) != now:
            write_identity(filesystem, own, replace(identity, further=tuple(now.items())))
    finally:
        lock.release()


def _joined(
    filesystem: FileSystem,
    path: Path,
    own: DirectoryIdentity,
    known_id: str | None,
    new_directory_id: Callable[[], str],
) -> str | None:
    """The id of a further directory; ``None`` if the one that was there, ``known_id``, is away."""
    try:
        found = read_identity(filesystem, path)
        if found is None and known_id is not None and not filesystem.exists(path):
            raise FileNotFoundError(f"{path} is not there")
        if found is None:
            refuse_leftovers(filesystem, path)
            filesystem.make_directory(path)
            found = DirectoryIdentity(
                cluster_id=own.cluster_id,
                broker_id=own.broker_id,
                directory_id=new_directory_id(),
                is_further=True,
            )
            write_identity(filesystem, path, found)
            if known_id is not None:
                _logger.warning(
                    "%s is empty: its disk seems to have been replaced — mount the right disk if "
                    "it was not: its replicas are copied anew",
                    path,
                )
    except (OSError, CorruptDataError) as error:
        if known_id is None:
            raise
        _logger.error(
            "%s is away: %s — mount or repair its disk; other brokers lead its replicas",
            *(path, error),
        )
        return None
    refused = _refused(path, found, own)
    if refused:
        raise CorruptDataError(refused)
    return found.directory_id


def _refused(path: Path, found: DirectoryIdentity, own: DirectoryIdentity) -> str:
    """Why a directory is not a further one of the broker; "" if it is."""
    if not found.is_further:
        return (
            f"{path} is the own data directory of broker {found.broker_id}, or the same as the "
            "first: a further one is empty when it is named for the first time"
        )
    if (found.cluster_id, found.broker_id) != (own.cluster_id, own.broker_id):
        return (
            f"{path} is that of cluster {found.cluster_id}, broker {found.broker_id}, not of "
            f"cluster {own.cluster_id}, broker {own.broker_id}: give another directory"
        )
    return ""


def offline_directories(filesystem: FileSystem, data_dir: str) -> dict[Path, str]:
    """The directories of ``data_dir`` that cannot be used now, and why."""
    own, *others = data_directories(data_dir)
    try:
        identity = read_identity(filesystem, own)
        if identity is None:
            return {own: f"it has no {IDENTITY_FILE}"}
    except (OSError, CorruptDataError) as error:
        return {own: str(error)}
    _, away = _find_directories(filesystem, others, identity)
    return {Path(path): why for path, why in away.values()}


def _find_directories(
    filesystem: FileSystem, others: Sequence[Path], own: DirectoryIdentity
) -> tuple[dict[str, Path], dict[str, tuple[str, str]]]:
    """The further directories: id → path of the usable ones; id → (path, why) of those away."""
    there: dict[str, Path] = {}
    problems: dict[str, str] = {}
    known = dict(own.further)
    for path in others:
        try:
            found = read_identity(filesystem, path)
            problem = f"it has no {IDENTITY_FILE}" if found is None else _refused(path, found, own)
        except (OSError, CorruptDataError) as error:
            found, problem = None, str(error)
        if found is not None and not problem and found.directory_id in known:
            there[found.directory_id] = path
        else:
            problems[str(path)] = problem or f"it has another id ({found and found.directory_id})"
    away = {
        one: (path, problems.get(path, "data_dir does not name it any more"))
        for one, path in known.items()
        if one not in there
    }
    return there, away


class LogDirectories:
    """Places one replica in a data directory of its broker."""

    def __init__(self, config: ReplicaConfig, filesystem: FileSystem) -> None:
        self._config = config
        self._filesystem = filesystem
        self._own, *self._others = data_directories(config.data_dir)
        self._name = config.directory_name
        self._assignment_file = self._own / ASSIGNED_DIRECTORY / self._name
        self._has_placed = False
        self._placed: DirectoryAssignment | None = None
        """What ``place`` decided; ``None`` is the own directory."""

    def has_several(self, own: DirectoryIdentity) -> bool:
        """Whether the replica may be in another directory than the broker's own.

        Not that of a coordinator: a program connects once all coordinators lead, so if they have no
        other replica, one more disk that can fail would lock everybody out.
        """
        return self._config.topic not in INTERNAL_TOPICS and bool(self._others or own.further)

    def lock(self) -> Lock:
        """Take the lock for ``place``. DirectoryLockedError while another has it; OSError."""
        return self._filesystem.lock(self._own / ASSIGNING_LOCK_FILE)

    def place(self, own: DirectoryIdentity, topic_id: str, *, is_in_sync: bool) -> Path:
        """The replica's directory, which need not exist; ``lock`` is held.

        The decision is durable on return. MissingLogError, OSError; CorruptDataError if the
        assignment, or the topic id of the files, cannot be read.
        """
        there, away = _find_directories(self._filesystem, self._others, own)
        assigned = read_assignment(self._filesystem, self._assignment_file)
        paths = {OWN: self._own, **there}
        found = self._found(paths, away, assigned)
        possible = possible_directories(
            found, away, assigned, topic_id=topic_id, is_in_sync=is_in_sync
        )
        if isinstance(possible, NoDirectory):
            raise MissingLogError(self._missing_log_reason(possible, assigned, away))
        chosen = possible[0]
        if len(possible) > 1:
            names = {one: self._filesystem.list_directory(paths[one]) for one in possible}
            chosen = emptiest({one: sum(map(_is_replica, held)) for one, held in names.items()})
        wanted = DirectoryAssignment(directory_id=chosen, topic_id=topic_id)
        self._assign(wanted, assigned)
        self._has_placed, self._placed = True, None if chosen == OWN else wanted
        return paths[chosen] / self._name

    @property
    def is_in_further(self) -> bool:
        """Whether ``place`` chose a further directory."""
        return self._placed is not None

    def is_in_assigned_directory(self) -> bool:
        """Whether the replica is still assigned where ``place`` put it. OSError, CorruptDataError.

        If true while the replica's directory is locked, it stays so until this replica forgets it:
        others forget their assignment before they release the directory.
        """
        if not self._has_placed:
            return True
        return self._placed == read_assignment(self._filesystem, self._assignment_file)

    def forget(self) -> None:
        """Remove the assignment, after the files were removed; ``lock`` and the directory are held.

        The assignment of another incarnation stays, unless it is the same directory: that one will
        notice once it has locked the directory (``is_in_assigned_directory``). Durable on return.
        OSError, CorruptDataError.
        """
        if self._placed is not None and self.is_in_assigned_directory():
            self._filesystem.remove(self._assignment_file)
            self._filesystem.sync_directory(self._assignment_file.parent)

    def _found(
        self,
        paths: Mapping[str, Path],
        away: dict[str, tuple[str, str]],
        assigned: DirectoryAssignment | None,
    ) -> dict[str, str | None]:
        """Directory id → topic id of the replica's files; adds unreadable ones to ``away``."""
        found: dict[str, str | None] = {}
        for one, path in paths.items():
            try:
                found[one] = read_topic_id(self._filesystem, path / self._name)
            except OSError as error:
                if one == OWN or (assigned is not None and assigned.directory_id == one):
                    raise
                away[one] = (str(path), str(error))
        return found

    def _missing_log_reason(
        self,
        why: NoDirectory,
        assigned: DirectoryAssignment | None,
        away: Mapping[str, tuple[str, str]],
    ) -> str:
        if assigned is not None and why is NoDirectory.AWAY:
            path, problem = away[assigned.directory_id]
            return (
                f"the log {self._name} is in {path}, which cannot be used ({problem}): mount its "
                "disk and name it in data_dir, or, if that is lost, an empty one, and restart"
            )
        if assigned is not None:
            return (
                f"the log {self._name} is missing: it is on the disk with the directory.id "
                f"{assigned.directory_id}, and has no copy in sync elsewhere. Mount that disk again"
            )
        return (
            f"the log is missing: no directory of {self._config.data_dir} has {self._name}, and "
            "there was one. Mount its disk or put its files back"
        )

    def _assign(self, wanted: DirectoryAssignment, assigned: DirectoryAssignment | None) -> None:
        directory = self._assignment_file.parent
        if wanted.directory_id != OWN and assigned != wanted:
            self._filesystem.make_directory(directory)
            self._filesystem.write_atomically(self._assignment_file, encode_assignment(wanted))
        elif wanted.directory_id == OWN and assigned is not None:
            self._filesystem.remove(self._assignment_file)
            self._filesystem.sync_directory(directory)


def _is_replica(name: str) -> bool:
    """Whether ``name`` is that of a replica that may be in any data directory."""
    topic, _, partition = name.rpartition("-")
    return bool(topic) and partition.isdecimal() and topic not in INTERNAL_TOPICS


def read_assignment(filesystem: FileSystem, path: Path) -> DirectoryAssignment | None:
    """What a file says of where its replica is; ``None`` without one. OSError, CorruptDataError."""
    try:
        lines = filesystem.read_whole(path).decode("ascii").splitlines()
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise CorruptDataError(f"{path} is unreadable: {error}") from None
    fields = dict(line.partition("=")[::2] for line in lines)
    if fields.get("version") != _VERSION or not fields.get("directory.id"):
        raise CorruptDataError(f"{path} does not say where the log is: put it back, or remove it")
    return DirectoryAssignment(
        directory_id=fields["directory.id"], topic_id=fields.get("topic.id", "")
    )


def encode_assignment(assignment: DirectoryAssignment) -> bytes:
    """The bytes of such a file."""
    lines = (
        f"version={_VERSION}",
        f"directory.id={assignment.directory_id}",
        f"topic.id={assignment.topic_id}",
    )
    return "".join(f"{line}\n" for line in lines).encode()


def _assignments(filesystem: FileSystem, own: Path) -> Iterator[DirectoryAssignment]:
    """Of all replicas that are in further directories; one that is unreadable counts for none."""
    directory = own / ASSIGNED_DIRECTORY
    for name in filesystem.list_directory(directory):
        try:
            found = read_assignment(filesystem, directory / name)
        except CorruptDataError as error:
            _logger.error(
                "%s — remove this file if the replica that it names is on another broker", error
            )
        else:
            if found is not None:
                yield found
