"""What the machine's processors do while they wait: sleep, or poll and so answer sooner.

A commit is a chain of calls between processes that wait for each other, so most of its steps begin
with a processor that has to wake up. On a virtual machine that takes the host's help, and 50 us
(ADR 13).
"""

from __future__ import annotations

import functools
import logging
import os
from pathlib import Path
from typing import Final, Literal

_logger = logging.getLogger(__name__)

SLEEP: Final = "sleep"
POLL: Final = "poll"
Policy = Literal["sleep", "poll"]

LATENCY_FILE: Final = Path("/dev/cpu_dma_latency")


@functools.cache
def keep_processors_awake(file: Path = LATENCY_FILE) -> bool:
    """Let no processor of this machine sleep until this process ends; whether that was granted.

    It costs power, and speed that other processors might have had, so it is the operator's choice.
    A refusal is logged with its reason, and all works as before. Linux only. Source: the kernel's
    "PM Quality Of Service Interface": the request holds while the file is open.
    """
    try:
        # Open to the end of the process, however it dies.
        descriptor = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
        os.write(descriptor, (0).to_bytes(4, "little"))
    except OSError as error:
        _logger.warning(
            "processor_idle=%r: processors go on sleeping, for want of the right to write %s (%s)",
            POLL,
            file,
            error.strerror,
        )
        return False
    return True
