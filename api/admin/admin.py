"""``Admin``: topics, groups and transactions, for programs without an event loop."""

from __future__ import annotations

from random import Random

from oncelog.api.admin.async_admin import AsyncAdmin
from oncelog.api.admin.calls import TIMEOUT_MS
from oncelog.api.session.event_loop import Blocking, LoopThread, blocking
from oncelog.api.session.routing import Router

__all__ = ["Admin", "AsyncAdmin"]


class Admin(Blocking[AsyncAdmin]):
    """Topics, groups and transactions of a cluster. Make it with ``cluster.admin()``.

    The methods are those of ``AsyncAdmin``; each blocks until it has its answer.
    """

    def __init__(
        self,
        router: Router,
        loop_thread: LoopThread,
        *,
        random: Random,
        timeout_ms: int = TIMEOUT_MS,
    ) -> None:
        super().__init__(loop_thread, AsyncAdmin(router, random=random, timeout_ms=timeout_ms))

    # --- topics -------------------------------------------------------------------------------

    create_topic = blocking(AsyncAdmin.create_topic)
    create_partitions = blocking(AsyncAdmin.create_partitions)
    alter_topic = blocking(AsyncAdmin.alter_topic)
    delete_records = blocking(AsyncAdmin.delete_records)
    list_offsets = blocking(AsyncAdmin.list_offsets)
    delete_topic = blocking(AsyncAdmin.delete_topic)
    list_topics = blocking(AsyncAdmin.list_topics)
    describe_topic = blocking(AsyncAdmin.describe_topic)
    describe_cluster = blocking(AsyncAdmin.describe_cluster)
    rotate_ticket_key = blocking(AsyncAdmin.rotate_ticket_key)

    # --- replicas -----------------------------------------------------------------------------

    reassign_partition = blocking(AsyncAdmin.reassign_partition)
    cancel_reassignment = blocking(AsyncAdmin.cancel_reassignment)
    drain_broker = blocking(AsyncAdmin.drain_broker)
    resume_broker = blocking(AsyncAdmin.resume_broker)

    # --- groups -------------------------------------------------------------------------------

    list_groups = blocking(AsyncAdmin.list_groups)
    describe_group = blocking(AsyncAdmin.describe_group)
    delete_group = blocking(AsyncAdmin.delete_group)
    remove_members_from_group = blocking(AsyncAdmin.remove_members_from_group)
    list_group_offsets = blocking(AsyncAdmin.list_group_offsets)
    alter_group_offsets = blocking(AsyncAdmin.alter_group_offsets)

    # --- transactions -------------------------------------------------------------------------

    list_transactions = blocking(AsyncAdmin.list_transactions)
    describe_transaction = blocking(AsyncAdmin.describe_transaction)
    abort_transaction = blocking(AsyncAdmin.abort_transaction)
    delete_transactional_id = blocking(AsyncAdmin.delete_transactional_id)
    find_hanging_transactions = blocking(AsyncAdmin.find_hanging_transactions)
    abort_hanging_transaction = blocking(AsyncAdmin.abort_hanging_transaction)
    describe_producers = blocking(AsyncAdmin.describe_producers)
    describe_replica = blocking(AsyncAdmin.describe_replica)
