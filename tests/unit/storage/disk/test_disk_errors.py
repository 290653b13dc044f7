"""Which errors of the disk may pass, and what they cost: the table of ``disk.errors``."""

from __future__ import annotations

import errno

import pytest

from oncelog.storage.disk.disk_errors import DiskVerdict, is_transient, verdict_of

NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EAGAIN, errno.EINTR)
FOR_GOOD = (errno.EIO, errno.EROFS, errno.EBADF, errno.EACCES, errno.ENODEV, errno.ENOENT, None)


@pytest.mark.parametrize("number", NO_DESCRIPTORS)
def test_without_descriptors_nothing_was_begun_so_all_is_done_again(number):
    error = OSError(number, "x")
    assert is_transient(error)
    assert verdict_of(error, is_sync=False) is DiskVerdict.REPEAT
    assert verdict_of(error, is_sync=True) is DiskVerdict.REPEAT


@pytest.mark.parametrize("number", NO_ROOM)
def test_want_of_room_or_memory_passes_but_a_sync_is_not_believed_again(number):
    error = OSError(number, "x")
    assert is_transient(error)
    assert verdict_of(error, is_sync=False) is DiskVerdict.REPEAT
    assert verdict_of(error, is_sync=True) is DiskVerdict.RESTART


@pytest.mark.parametrize("number", FOR_GOOD)
@pytest.mark.parametrize("is_sync", [False, True])
def test_all_else_is_for_good(number, is_sync):
    error = OSError(number, "x") if number is not None else OSError("x")
    assert not is_transient(error)
    assert verdict_of(error, is_sync=is_sync) is DiskVerdict.OFFLINE
