"""What a replica does after a disk error: one table.

=========================================  =====================  ======================
error                                      of a write, an open,   of a sync
                                           a rename, a removal
=========================================  =====================  ======================
EMFILE, ENFILE: no descriptors left        REPEAT                 REPEAT
ENOSPC, EDQUOT, ENOMEM, EAGAIN, EINTR      REPEAT                 RESTART
all others, such as EIO and EROFS          OFFLINE                OFFLINE
=========================================  =====================  ======================

A failed write can be repeated. After a failed sync the kernel may have dropped pages and marked
them clean, so only a recovery, which rewrites everything that was never synced, makes them durable.
EMFILE or ENFILE from a sync means that a directory could not be opened, so nothing was begun. Where
a step must not be left half done, such as the commit of a compaction, a transient write error is
RESTART too: the next open finishes it.

After a read error the replica stays online: the bytes count as damaged, as if they had changed.
Only if no part of a file can be read is the disk itself suspected.
"""

from __future__ import annotations

import enum
import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from oncelog.storage.disk.file_system import FileSystem
from oncelog.storage.exceptions import CorruptDataError


class DiskVerdict(enum.Enum):
    """What to do after a disk error."""

    REPEAT = "the log stays usable, and the step is done again later"
    RESTART = "the replica goes offline and begins again by itself, with a recovery"
    OFFLINE = "the replica goes offline until an operator has its process started again"


_NO_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE})
TRANSIENT: Final = _NO_DESCRIPTORS | {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.ENOMEM,
    errno.EAGAIN,
    errno.EINTR,
}
"""Errors that may be transient."""


def is_transient(error: OSError) -> bool:
    """Whether a retry may succeed: there may be room, memory or descriptors again."""
    return error.errno in TRANSIENT


def verdict_of(error: OSError, *, is_sync: bool) -> DiskVerdict:
    """The table above. ``is_sync``: it came from a sync, of a file or of a directory."""
    if not is_transient(error):
        return DiskVerdict.OFFLINE
    if is_sync and error.errno not in _NO_DESCRIPTORS:
        return DiskVerdict.RESTART
    return DiskVerdict.REPEAT


_UNREADABLE: Final = frozenset({errno.EIO, errno.EBADMSG, errno.EUCLEAN})


def is_unreadable(error: OSError) -> bool:
    """Whether a read failed because the medium cannot return these bytes."""
    return error.errno in _UNREADABLE


@contextmanager
def named_in_errors(path: Path) -> Iterator[None]:
    """CorruptDataError that names the file, if the medium cannot return its bytes."""
    try:
        yield
    except OSError as error:
        if not is_unreadable(error):
            raise
        raise CorruptDataError(f"{path} cannot be read: {error}") from error


def read_small_file(filesystem: FileSystem, path: Path) -> bytes:
    """All bytes of a small file; CorruptDataError also if the medium cannot return them."""
    with named_in_errors(path):
        return filesystem.read_whole(path)
