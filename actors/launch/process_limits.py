"""What a broker's machine allows: from it follows how many replicas share an actor."""

from __future__ import annotations

import os
import resource
from typing import Final

from oncelog.actors.controller.replica_actors import MachineSize

_UNLIMITED_FILES: Final = 1_048_576


def machine_size() -> MachineSize:
    """The processors, memory and open files that a process on this machine may use."""
    _, files_max = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MachineSize(
        processor_count=len(os.sched_getaffinity(0)),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        files_max=_UNLIMITED_FILES if files_max == resource.RLIM_INFINITY else files_max,
    )
