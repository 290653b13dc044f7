"""What an application is told about the partitions that it has."""

from __future__ import annotations

from oncelog.storage.model import TopicPartition


class ConsumerRebalanceListener:
    """Base class of listeners, for ``subscribe``; override the methods you need.

    They are called in a poll, before it goes on, in the thread or task that polls; the two that
    take partitions away also in ``close`` and ``unsubscribe``. They may commit, seek and end a
    transaction, but not poll, subscribe or close. Those of an ``AsyncConsumer`` may be coroutine
    functions. What one raises leaves the poll, and the rebalance goes on with the next one.
    Source: KIP-429 for ``on_lost``; each rebalance takes all partitions before it gives any.
    """

    def on_assigned(self, partitions: frozenset[TopicPartition]) -> object:
        """These are read from now on; also called without any. Positions may still be set."""

    def on_revoked(self, partitions: frozenset[TopicPartition]) -> object:
        """These are about to be given up: what is not committed now, is read again.

        Commits are taken, also those of a transaction.
        """

    def on_lost(self, partitions: frozenset[TopicPartition]) -> object:
        """The member is out of its group, and these may be another's: no commit is taken any more.

        Calls ``on_revoked`` unless it is overridden.
        """
        return self.on_revoked(partitions)
