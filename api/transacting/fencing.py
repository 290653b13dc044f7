"""Why an epoch was fenced: leaders know only that it was; the transaction coordinator knows why."""

from __future__ import annotations

import asyncio

from msgspec import structs

from oncelog.actors.protocol.messages.base import Reply, ReplyT
from oncelog.api.transacting.requests import TransactionRequests
from oncelog.api.transacting.state import TransactionState
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import TopicPartition


class Fencing:
    """Finds out why leaders refuse a producer's epoch. Asks once per transaction."""

    def __init__(
        self,
        *,
        state: TransactionState | None,
        requests: TransactionRequests,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._state = state
        self._requests = requests
        self._loop = loop
        self._question: asyncio.Task[Reply] | None = None

    async def explained(self, topic_partition: TopicPartition, reply: ReplyT) -> ReplyT:
        """A leader's ``reply``; if it refuses the transaction's epoch, with the true cause."""
        state = self._state
        if reply.error is not ErrorCode.INVALID_PRODUCER_EPOCH or state is None:
            return reply
        question = self._question
        if question is None:
            question = self._question = self._loop.create_task(
                self._requests.why_fenced(state.transactional_id, state.identity, topic_partition)
            )
        await asyncio.wait((question,))
        why = Reply() if question.cancelled() else question.result()
        if why.error is ErrorCode.NONE or why.error.retriable:
            return reply
        return structs.replace(reply, error=why.error, detail=why.detail)

    def stop(self) -> None:
        """Stop asking: the transaction is over."""
        if self._question is not None:
            self._question.cancel()

    def forget(self) -> None:
        """The next transaction has another epoch."""
        self._question = None
