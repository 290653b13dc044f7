"""Environment to set before Ray is imported: authentication, and the tuning of our clusters.

Also protects signal handlers that ``ray.init`` would replace.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

SYSTEM_CONFIG: Final[dict[str, Any]] = {
    # Batches travel inside the call up to 2 MB: two to three times faster than the object store.
    "max_direct_call_object_size": 2_000_000,
    "task_rpc_inlined_bytes_limit": 64_000_000,
    # A dead node is noticed in about a second, a hung one in about four.
    "health_check_initial_delay_ms": 1_000,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 1_000,
    "health_check_failure_threshold": 3,
    # Calls to a killed actor fail within 0.3 s, and it is back after about one second.
    "timeout_ms_task_wait_for_death_info": 200,
    "core_worker_internal_heartbeat_ms": 200,
}
"""``_system_config`` of a cluster that oncelog starts; measured, see the architecture page."""


QUIET_PATTERN: Final = "|".join(
    (
        "worker processes have been started",
        "A worker died or was killed",
        "has been marked dead because",
        "Raylet is terminated",
    )
)
"""Messages that Ray prints to every driver's standard output, which commands use themselves."""


def keep_output_clean() -> None:
    """Keep Ray's warnings out of this program's output. Call it before Ray is imported."""
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", QUIET_PATTERN)


def prepare_to_join() -> None:
    """Let this process join a cluster that requires a token, if one is available.

    A process that joins by address never turns authentication on by itself, and Ray reads the
    variable when it is imported: if it is imported already, it is made to read it again.
    """
    if "RAY_AUTH_MODE" in os.environ:
        return
    default = Path.home() / ".ray" / "auth_token"
    has_token = "RAY_AUTH_TOKEN" in os.environ or "RAY_AUTH_TOKEN_PATH" in os.environ
    if not has_token and not default.exists():
        return
    os.environ["RAY_AUTH_MODE"] = "token"
    if "ray" in sys.modules:
        importlib.import_module("ray._raylet").Config.initialize("")


def prepare_to_start() -> None:
    """Set the environment for the processes of a cluster started here."""
    os.environ.setdefault("RAY_worker_niceness", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")


@contextlib.contextmanager
def own_termination() -> Iterator[None]:
    """Restore the program's SIGTERM handler after the block, in which Ray replaces it.

    A program may have a transaction to finish. Without a handler of its own it ends cleanly by
    Ray's, and a handler that is not Python's cannot be restored. Only in the main thread: in others
    Ray changes nothing.
    """
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and before not in (signal.SIG_DFL, None):
            signal.signal(signal.SIGTERM, before)
