"""What a program's calls wait for: told once when it begins to last, and once when it is over.

Calls are repeated for as long as their time allows, many of them without end, so a program that
gets nothing looks like one that has nothing to do.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from oncelog.actors.process.clock import monotonic_s
from oncelog.actors.process.metrics import CLIENT_OUTAGES, NO_METRICS, MetricSink
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import TopicPartition

OUTAGE_S: Final = 5.0
"""How long something is not answered before that is told: an election takes less."""

AWAY: Final = frozenset(
    {
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REPLICA_OFFLINE,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)
"""Codes of what cannot serve now; any other is an answer."""

_log = logging.getLogger("oncelog.client")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """``what`` does not answer, or does again (``is_over``); ``lasted_s`` is how long so far.

    ``who`` was called last, "" if nobody is known, and ``error`` is what came of that.
    """

    what: str
    who: str
    error: ErrorCode
    lasted_s: float
    is_over: bool


@dataclass(slots=True)
class _Silence:
    since_s: float
    is_told: bool = False


class Outages:
    """Of one connection; belongs to one event loop. Bounded by what its program calls.

    ``listeners`` are called on the loop with each ``Outage``: when one begins, and when it is over.
    """

    def __init__(
        self, now_s: Callable[[], float] = monotonic_s, metrics: MetricSink = NO_METRICS
    ) -> None:
        self.listeners: list[Callable[[Outage], None]] = []
        self._now_s = now_s
        self._metrics = metrics
        self._silences: dict[TopicPartition | str, _Silence] = {}

    def now_s(self) -> float:
        """For ``note``: when a call began."""
        return self._now_s()

    @property
    def count(self) -> int:
        """How many last that were told."""
        return sum(silence.is_told for silence in self._silences.values())

    def note(
        self, what: TopicPartition | str, who: str, error: ErrorCode, *, began_s: float
    ) -> None:
        """A call of ``who`` for ``what`` that began then has come to this."""
        silence = self._silences.get(what)
        if error not in AWAY:
            if silence is not None:
                del self._silences[what]
                if silence.is_told:
                    self._tell(what, who, error, silence, is_over=True)
            return
        if silence is None:
            silence = self._silences[what] = _Silence(began_s)
        if not silence.is_told and self._now_s() - silence.since_s >= OUTAGE_S:
            silence.is_told = True
            self._tell(what, who, error, silence, is_over=False)

    def _tell(
        self,
        target: TopicPartition | str,
        who: str,
        error: ErrorCode,
        silence: _Silence,
        *,
        is_over: bool,
    ) -> None:
        what = f"partition {target}" if isinstance(target, TopicPartition) else target
        lasted_s = self._now_s() - silence.since_s
        if is_over:
            _log.warning("%s answers again, after %.0f s", what, lasted_s)
        else:
            kind = "partition" if isinstance(target, TopicPartition) else target.split()[1]
            self._metrics.add(CLIENT_OUTAGES, 1, {"what": kind})
            _log.warning(
                "%s does not answer since %.0f s: %s of %s; calls are repeated while their time "
                "allows",
                what,
                lasted_s,
                error.name,
                who or "nobody: none is known",
            )
        outage = Outage(what=what, who=who, error=error, lasted_s=lasted_s, is_over=is_over)
        for listener in tuple(self.listeners):
            try:
                listener(outage)
            except Exception:
                _log.exception("a listener of outages failed")
