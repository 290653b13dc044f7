"""The in-sync replicas of a partition as its leader knows them, and what it proposes to change.

Rules. The controller's record alone decides who is in sync. A change is proposed by compare-and-set
on (leader epoch, partition version), one at a time. Until its outcome is known both sets may be the
controller's, so the high watermark waits for all of both: the *maximal* ISR. A proposal can
still be accepted as long as the version that it names is current, however often its call failed;
only a newer version ends that. One that was refused because a member is fenced is over at once:
the controller raises the version before that member could be accepted (``cluster.elections``).

====================================  ============================================================
answer                                effect
====================================  ============================================================
NONE, or INVALID_UPDATE_VERSION, with what the controller has is learned; all proposals are over
a newer version
INELIGIBLE_REPLICA                    nothing is proposed any more
an older or equal version, or an      the same proposal is made again
error of the call
====================================  ============================================================

Source: KIP-497, KIP-841.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from oncelog.storage.errors import ErrorCode


class IsrProposal(msgspec.Struct, frozen=True, kw_only=True):
    """Make ``isr`` the in-sync replicas if ``partition_version`` is still current."""

    isr: tuple[int, ...]
    partition_version: int


class InSyncReplicas:
    """The committed ISR, its version, and the proposal whose outcome is not known."""

    __slots__ = ("_isr", "_possible", "_proposal", "_version")

    def __init__(self, isr: Iterable[int], partition_version: int) -> None:
        self._isr = frozenset(isr)
        self._version = partition_version
        self._proposal: frozenset[int] | None = None
        self._possible = self._isr

    @property
    def isr(self) -> frozenset[int]:
        """The in-sync replicas as the controller last told them."""
        return self._isr

    @property
    def version(self) -> int:
        """The partition's version that came with them."""
        return self._version

    @property
    def maximal(self) -> frozenset[int]:
        """Everyone who may be in the controller's ISR now: the high watermark waits for them."""
        return self._possible

    @property
    def proposal(self) -> IsrProposal | None:
        """What to propose, again and again until it is answered; None if nothing is pending."""
        if self._proposal is None:
            return None
        return IsrProposal(isr=tuple(sorted(self._proposal)), partition_version=self._version)

    def propose(self, isr: frozenset[int]) -> None:
        """Want ``isr``; nothing happens if it is the ISR, or while a proposal is pending."""
        if self._proposal is None and isr != self._isr:
            self._proposal = isr
            self._possible |= isr

    def refused(self, error: ErrorCode) -> None:
        """The proposal was answered with ``error``; see the table."""
        if error is ErrorCode.INELIGIBLE_REPLICA and self._proposal is not None:
            self._proposal = None
            self._possible = self._isr

    def learn(self, isr: Iterable[int], partition_version: int) -> bool:
        """Take what the controller has, if it is newer than what is known; whether it was."""
        if partition_version <= self._version:
            return False
        self._isr = self._possible = frozenset(isr)
        self._version = partition_version
        self._proposal = None
        return True
