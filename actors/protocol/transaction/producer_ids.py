"""Producer ids, in blocks that the controller reserved; each is handed out once.

Taking an id needs no log record: a block lost with its coordinator only leaves a gap.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

from oncelog.actors.protocol.effects import Decision
from oncelog.actors.protocol.invariants import invariant
from oncelog.actors.protocol.messages.base import Reply, Request
from oncelog.actors.protocol.transaction.checks import Refusal
from oncelog.actors.protocol.transaction.transaction_state import TransactionMetadata
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import NO_PRODUCER_ID

PREFETCH_SHARE: Final = 10
"""Reserve the next block when less than this fraction (one in so many) of a block is left."""

NONE_LEFT: Final[Refusal] = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    "no producer id is reserved at the moment",
)

DecideT = TypeVar("DecideT", bound=Callable[..., Decision[Any]])


class NoProducerIdError(Exception):
    """All reserved ids are taken; the caller may retry in a moment."""


class ProducerIdBlocks:
    """The ids that a coordinator may still hand out."""

    __slots__ = ("_blocks", "_last_count", "_next_unseen")

    def __init__(self) -> None:
        self._blocks: deque[range] = deque()
        self._last_count = 0
        self._next_unseen = 0

    @property
    def remaining(self) -> int:
        """Number of ids left."""
        return sum(len(block) for block in self._blocks)

    @property
    def needs_block(self) -> bool:
        """Whether the next block should be reserved now, before the last id is gone."""
        return self.remaining * PREFETCH_SHARE <= self._last_count

    def add_block(self, first: int, count: int) -> None:
        """Add the ids from ``first`` (inclusive) to ``first + count`` (exclusive).

        Invariant: I-17, the controller's blocks rise and never overlap.
        """
        invariant(
            first >= self._next_unseen and count > 0,
            "I-17",
            f"block of {count} from {first} on, ids below {self._next_unseen} were given before",
        )
        self._blocks.append(range(first, first + count))
        self._last_count = count
        self._next_unseen = first + count

    def take(self) -> int:
        """The next id, never handed out twice. Raises ``NoProducerIdError``."""
        if not self._blocks:
            raise NoProducerIdError
        block = self._blocks.popleft()
        if len(block) > 1:
            self._blocks.appendleft(block[1:])
        return block[0]

    def spare(self, metadata: TransactionMetadata) -> int:
        """The next id if the epochs of ``metadata`` are used up, else -1. Raises as ``take``."""
        return self.take() if metadata.is_exhausted else NO_PRODUCER_ID


def waiting_for_producer_ids(decide: DecideT) -> DecideT:
    """Decorate ``decide`` to answer "retry" if there is no producer id left.

    Its first argument is a request, or the id of a decision by the coordinator itself.
    """

    @functools.wraps(decide)
    def decide_or_wait(part: Any, about: Any, *args: Any, **named: Any) -> Decision[Any]:
        try:
            return decide(part, about, *args, **named)
        except NoProducerIdError:
            error, detail = NONE_LEFT
            failed = about.failed if isinstance(about, Request) else Reply
            return Decision(reply=failed(error=error, detail=detail))

    return cast("DecideT", decide_or_wait)
