"""Limits per principal, so that one greedy program does not take what all the others need.

*Rates* are counted in token buckets, as in Kafka's quotas. A bucket holds what its principal may
spend in ``QUOTA_WINDOW_MS``, fills at the limit's rate, and is full at first. A request is always
served, even if that leaves a debt. Its answer then says how long the debt takes to repay: a polite
caller waits that long, and for any other the connection is not read meanwhile.

No debt exceeds ``THROTTLE_MAX_MS``: what is beyond is forgiven, so nobody waits for longer after
the greed has ended. Therefore the rate holds for callers whose requests in progress together cost
less than ``THROTTLE_MAX_MS`` at that rate; the limit of connections keeps them few.

*Counts* (connections, open transactions) are of what is there now; one more is refused.

Everything here is of one actor, and forgotten when it ends.

Source: KIP-13, KIP-124, KIP-599 (token bucket, debt), KIP-612 (connections).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from oncelog.actors.protocol.messages.access import Limits
from oncelog.actors.protocol.messages.base import Request
from oncelog.actors.protocol.messages.transaction import BeginRunRequest, InitProducerIdRequest

QUOTA_WINDOW_MS: Final = 10_000
"""How long an idle principal saves up. Kafka's is 11 s: ``quota.window.num``, each of a second."""

THROTTLE_MAX_MS: Final = 30_000
"""The longest throttle, and so the largest debt."""

PRINCIPALS_MAX: Final = 1_000
"""Principals with a rate limit that an actor remembers.

Beyond, the one that was silent for longest is forgotten; it comes back with full buckets.
"""

OWNERS_MAX: Final = 1_000
"""Principals whose open transactions are counted; beyond, the first one is counted anew."""

IDS_MAX: Final = 1_000
"""Transactional ids of a principal that are remembered besides those that are open."""


# --- rates ----------------------------------------------------------------------------------------


class TokenBucket:
    """Tokens of one principal and rate, full at ``now_ms``. Exact: in thousandths of a token."""

    __slots__ = ("_balance", "_rate_per_second", "_updated_ms")

    def __init__(self, rate_per_second: int, now_ms: int) -> None:
        self._rate_per_second = rate_per_second
        self._balance = rate_per_second * QUOTA_WINDOW_MS
        self._updated_ms = now_ms

    def spend(self, amount: int, now_ms: int) -> int:
        """Take ``amount`` tokens; return for how many ms the bucket then is in debt.

        If the clock has gone back nothing is filled in, and time is counted from there.
        """
        rate = self._rate_per_second
        gained = rate * max(0, now_ms - self._updated_ms)
        self._updated_ms = now_ms
        filled = min(self._balance + gained, rate * QUOTA_WINDOW_MS)
        self._balance = max(filled - 1_000 * amount, -rate * THROTTLE_MAX_MS)
        return max(0, -(self._balance // rate))


class _Buckets:
    """The buckets of one principal under one version of its limits."""

    __slots__ = ("_bytes", "_requests", "limits")

    def __init__(self, limits: Limits, now_ms: int) -> None:
        self.limits = limits
        requests, bytes_ = limits.requests_per_second, limits.bytes_per_second
        self._requests = None if requests is None else TokenBucket(requests, now_ms)
        self._bytes = None if bytes_ is None else TokenBucket(bytes_, now_ms)

    def spend(self, *, requests: int, size_bytes: int, now_ms: int) -> int:
        by_requests = 0 if self._requests is None else self._requests.spend(requests, now_ms)
        by_bytes = 0 if self._bytes is None else self._bytes.spend(size_bytes, now_ms)
        return max(by_requests, by_bytes)


class Quotas:
    """The rates of all principals at one actor; ``now_ms`` is of one clock."""

    def __init__(self) -> None:
        self._buckets: dict[str, _Buckets] = {}
        """Principal → its buckets; who was silent for longest comes first."""

    def __len__(self) -> int:
        """Number of principals remembered."""
        return len(self._buckets)

    def spend(
        self, principal: str, limits: Limits, *, requests: int = 1, size_bytes: int, now_ms: int
    ) -> int:
        """Count requests of ``size_bytes`` together; return the throttle in ms, 0 for none.

        Under changed limits a principal begins with full buckets.
        """
        if limits.requests_per_second is None and limits.bytes_per_second is None:
            return 0
        buckets = self._buckets.pop(principal, None)
        if buckets is None or buckets.limits != limits:
            if len(self._buckets) >= PRINCIPALS_MAX:
                del self._buckets[next(iter(self._buckets))]
            buckets = _Buckets(limits, now_ms)
        self._buckets[principal] = buckets
        return buckets.spend(requests=requests, size_bytes=size_bytes, now_ms=now_ms)

    def owed_ms(self, principal: str, limits: Limits, now_ms: int) -> int:
        """For how long ``principal`` is still throttled; this counts no request."""
        if principal not in self._buckets:
            return 0
        return self.spend(principal, limits, requests=0, size_bytes=0, now_ms=now_ms)


# --- transactions ---------------------------------------------------------------------------------


def timeout_refusal(request: Request[Any], principal: str, limits: Limits) -> str:
    """Why the transactions that ``request`` asks for would be open for too long; "" if not.

    The timeout of a distributed write begins anew while its tasks are heard; that is bounded by
    ``distributed_write_max_ms`` only.
    """
    longest_ms = limits.transaction_timeout_ms_max
    if longest_ms is None or not isinstance(request, InitProducerIdRequest | BeginRunRequest):
        return ""
    if request.transactional_id is None or request.transaction_timeout_ms <= longest_ms:
        return ""
    return (
        f"transaction_timeout_ms={request.transaction_timeout_ms}: give at most {longest_ms}, "
        f"the limit of {principal} (transaction_timeout_ms_max)"
    )


class OpenTransactions:
    """Which principal has which transactions open, at one shard of coordinators.

    A transaction is counted from the first request that enrols a partition, for the principal that
    makes it, while ``is_open``. What ended is found out only when a limit is reached, or
    ``IDS_MAX``. A new leader of the shard knows no owners yet: it counts a transaction that is open
    already once its producer enrols another partition, and never refuses that.
    """

    def __init__(self, is_open: Callable[[str], bool]) -> None:
        self._is_open = is_open
        self._of: dict[str, set[str]] = {}
        """Principal → its transactional ids that are open, being opened, or have been open."""
        self._opening: dict[str, int] = {}
        """Transactional id → how many requests in progress may open its transaction."""

    def __len__(self) -> int:
        """Number of transactional ids remembered."""
        return sum(map(len, self._of.values()))

    def begin(self, principal: str, transactional_id: str, limit: int) -> bool:
        """Count a request that may open a transaction, until ``end``; False: it is one too many."""
        ids = self._of.get(principal)
        if ids is None:
            ids = self._of[principal] = self._new_owner()
        others = len(ids) - (transactional_id in ids)
        if others >= limit and not self._is_counted(transactional_id):
            ids.intersection_update(self._still_open(ids))
            if len(ids) >= limit:
                return False
        elif others and others % IDS_MAX == 0:
            ids.intersection_update(self._still_open(ids))
        ids.add(transactional_id)
        self._opening[transactional_id] = self._opening.get(transactional_id, 0) + 1
        return True

    def end(self, transactional_id: str) -> None:
        """The request has ended: what counts from now on is whether the transaction is open."""
        left = self._opening.pop(transactional_id) - 1
        if left:
            self._opening[transactional_id] = left

    def _is_counted(self, transactional_id: str) -> bool:
        return transactional_id in self._opening or self._is_open(transactional_id)

    def _still_open(self, ids: set[str]) -> set[str]:
        return set(filter(self._is_counted, ids))

    def _new_owner(self) -> set[str]:
        """Make room for one more principal."""
        if len(self._of) >= OWNERS_MAX:
            for owner, ids in list(self._of.items()):
                ids.intersection_update(self._still_open(ids))
                if not ids:
                    del self._of[owner]
        if len(self._of) >= OWNERS_MAX:
            del self._of[next(iter(self._of))]
        return set()
