"""A disk is filled until nothing can be had, however much is said to be free; and that ends."""

from __future__ import annotations

import errno
import os
import shutil
from types import SimpleNamespace

import pytest
from faults.struck_nodes import take_all


@pytest.mark.parametrize("obtainable_bytes", [0, 10_000, 1 << 20])
def test_filling_a_disk_ends_when_nothing_can_be_had(tmp_path, monkeypatch, obtainable_bytes):
    """The file system says that a MiB is free, and gives only a part of it."""
    taken: list[int] = []

    def allocate(descriptor: int, offset: int, size_bytes: int) -> None:
        if sum(taken) + size_bytes > obtainable_bytes:
            raise OSError(errno.ENOSPC, "no space left")
        taken.append(size_bytes)

    monkeypatch.setattr(os, "posix_fallocate", allocate)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=1 << 20))
    take_all(tmp_path / "filler")
    assert obtainable_bytes - sum(taken) < 4_096
