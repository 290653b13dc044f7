"""Many writers, one transaction: the members of a distributed write, and how it ends.

The planner begins one *run* per attempt at the whole write; the newest run fences earlier ones.
Each task attempt is a member: it enlists, sends, flushes and reports its producer id and record
count. The planner ends the run by naming the winners. Every other member, whether failed, retried
or late, is aborted; if all have failed, immediately. The commit token names what is written: once
committed, it is never written again.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from types import TracebackType
from typing import Final

from oncelog.actors.protocol.messages.transaction import (
    RUN_TIMEOUT_MS,
    BeginRunRequest,
    DriverProcess,
    EndTxnRequest,
    Run,
    Winner,
)
from oncelog.api.config import ProducerSettings
from oncelog.api.producing.core import ProducerCore
from oncelog.api.producing.producer import AsyncSending, SyncSending
from oncelog.api.session.event_loop import LoopThread
from oncelog.api.session.routing import Router
from oncelog.api.transacting.producer_transaction import severity
from oncelog.api.transacting.requests import TransactionRequests
from oncelog.storage.errors import ErrorClass, ErrorCode
from oncelog.storage.exceptions import IllegalStateError, RequestTimedOutError, exception_for

_PASSED: Final = frozenset({ErrorCode.OUTDATED_VERSION, ErrorCode.PRODUCER_FENCED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """The run that a member belongs to; made by ``begin_run`` and sent to every task.

    ``is_committed`` means that the token is committed already, so there is nothing to write.
    ``last_token`` is the token of the id's last committed transaction when the run began. The run
    times out after ``transaction_timeout_ms`` without any of its members.
    """

    transactional_id: str
    run: Run
    token: bytes = b""
    is_committed: bool = False
    last_token: bytes | None = None
    transaction_timeout_ms: int = RUN_TIMEOUT_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnd:
    """How a run ended. ``visible`` says whether all of it was readable at the reply.

    ``was_committed_before`` means that the token was committed already, maybe by another run.
    """

    visible: bool
    was_committed_before: bool = False


class TransactionMember(SyncSending):
    """The producer of one task attempt of a distributed write; usable from any thread.

    Make it with ``cluster.member(...)``, in a ``with`` block. If the block ends with an error, the
    member leaves its run: it can no longer win. Once all members have left, their records are
    aborted at once. ``settings.transactional_id`` is ignored: ``membership`` names the transaction.
    """

    make_there = "pass its Membership and make one there with cluster.member(...)"

    def __init__(
        self,
        router: Router,
        loop_thread: LoopThread,
        settings: ProducerSettings,
        membership: Membership,
        *,
        random: Random,
    ) -> None:
        self._membership = membership
        self._core = _member_core(router, settings, membership, random, loop_thread.loop)
        super().__init__(self._core.sender, loop_thread)
        loop_thread.call_when_closed(self._core._report.stop)

    def enlist(self) -> bool:
        """Join the run, durably; return false if the token is committed: there is nothing to write.

        ``ProducerFencedError`` if a newer run has begun.
        """
        return self._loop_thread.run(_enlist(self._core, self._membership))

    def flush(self) -> None:
        """Send what is buffered and wait for its outcome; raise if any record failed.

        All records sent so far are acknowledged by all in-sync replicas on return.
        """
        self._loop_thread.run(self._core.flush())

    @property
    def winner(self) -> Winner:
        """The report for ``end_run``, after ``flush``: producer id and acknowledged record count.

        ``IllegalStateError`` before ``enlist``, or while a record is unacknowledged: it would be
        missing from the commit. ``TransactionAbortableError`` if a ``send`` was rejected.
        """
        return _winner(self._core)

    @property
    def record_count(self) -> int:
        """The number of acknowledged records."""
        return self._core.sender.counters.records_acknowledged

    def close(self) -> None:
        """Stop without aborting: the end of the run commits or aborts this member's records."""
        self._loop_thread.run(self._core.leave())

    def __enter__(self) -> TransactionMember:
        """Return the member; its run does not time out within the block."""
        if not self._membership.is_committed:
            self._loop_thread.run(_keep(self._core, self._membership))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the member; after an error it leaves its run."""
        if error is None:
            self.close()
        else:
            self._loop_thread.run(self._core.leave_run(self._membership.run))


class AsyncTransactionMember(AsyncSending):
    """``TransactionMember`` for the event loop that it is made on: ``async with``, ``await``."""

    def __init__(
        self,
        router: Router,
        settings: ProducerSettings,
        membership: Membership,
        *,
        random: Random,
    ) -> None:
        self._membership = membership
        loop = asyncio.get_running_loop()
        self._core = _member_core(router, settings, membership, random, loop)
        super().__init__(self._core.sender)

    async def enlist(self) -> bool:
        """See ``TransactionMember.enlist``."""
        return await _enlist(self._core, self._membership)

    async def flush(self) -> None:
        """See ``TransactionMember.flush``."""
        await self._core.flush()

    @property
    def winner(self) -> Winner:
        """See ``TransactionMember.winner``."""
        return _winner(self._core)

    @property
    def record_count(self) -> int:
        """How many records were acknowledged."""
        return self._core.sender.counters.records_acknowledged

    async def close(self) -> None:
        """See ``TransactionMember.close``."""
        await self._core.leave()

    async def __aenter__(self) -> AsyncTransactionMember:
        """See ``TransactionMember.__enter__``."""
        if not self._membership.is_committed:
            await _keep(self._core, self._membership)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """See ``TransactionMember.__exit__``."""
        if error is None:
            await self.close()
        else:
            await self._core.leave_run(self._membership.run)


async def begin_run(
    router: Router,
    settings: ProducerSettings,
    transactional_id: str,
    *,
    token: bytes = b"",
    transaction_timeout_ms: int = RUN_TIMEOUT_MS,
    run_id: str = "",
    driver: DriverProcess | None = None,
    random: Random,
) -> Membership:
    """Begin a run of a distributed write; older runs and producers of the id are fenced.

    Durable on return. ``run_id`` is random by default. Once ``driver`` has ended, the
    coordinator aborts the run unless it is decided. ``OutdatedVersionError``: the token names a
    version below the one committed last. ``RequestTimedOutError``: not known; call again.
    """
    requests = TransactionRequests(router=router, settings=settings, random=random)
    run_id = run_id or new_run_id(random)
    reply = await requests.begin_run(
        BeginRunRequest(
            transactional_id=transactional_id,
            run_id=run_id,
            token=token,
            transaction_timeout_ms=transaction_timeout_ms,
            driver=driver,
        )
    )
    is_committed = reply.error is ErrorCode.ALREADY_COMMITTED
    if is_committed or reply.error is ErrorCode.NONE:
        return Membership(
            transactional_id=transactional_id,
            run=Run(number=reply.number, id=run_id),
            token=token,
            is_committed=is_committed,
            last_token=reply.commit_token,
            transaction_timeout_ms=transaction_timeout_ms,
        )
    if severity("begin_run", reply.error) is ErrorClass.RETRIABLE:
        raise RequestTimedOutError(
            f"no run of {transactional_id!r} began within max_block_ms={settings.max_block_ms} "
            f"(last: {reply.error.name} {reply.detail})",
            advice="begin one again",
        )
    raise exception_for(reply.error, reply.detail)


def new_run_id(random: Random) -> str:
    """An id that no other run has."""
    return f"{random.getrandbits(128):032x}"


async def end_run(
    router: Router,
    settings: ProducerSettings,
    membership: Membership,
    *,
    committed: bool,
    winners: Sequence[Winner] = (),
    random: Random,
) -> RunEnd:
    """End a distributed write: commit ``winners`` and abort every other member, or abort all.

    Safe to repeat with the same arguments: the decision that was made is answered; aborting after
    it changes nothing. ``InvalidTxnStateError``: a winner is unknown or its records are not all
    there; nothing is changed. ``ProducerFencedError``: a newer run has begun.
    ``RequestTimedOutError``: not known yet; call again.
    """
    requests = TransactionRequests(router=router, settings=settings, random=random)
    strangers = [winner for winner in winners if not isinstance(winner, Winner)]
    if strangers:
        raise TypeError(f"winners must be what member.winner gave, not {strangers[0]!r}")
    reply = await requests.end(
        EndTxnRequest(
            transactional_id=membership.transactional_id,
            committed=committed,
            token=membership.token,
            run=membership.run,
            winners=tuple(winners),
        ),
    )
    if reply.error in (ErrorCode.NONE, ErrorCode.ALREADY_COMMITTED):
        return RunEnd(
            visible=reply.visible,
            was_committed_before=reply.error is ErrorCode.ALREADY_COMMITTED,
        )
    if membership.is_committed and reply.error in _PASSED:
        # A later commit exists, and it began only once this one was readable.
        return RunEnd(visible=True, was_committed_before=True)
    if severity("end_txn", reply.error) is ErrorClass.RETRIABLE:
        raise RequestTimedOutError(
            f"the run of {membership.transactional_id!r} was not ended within "
            f"max_block_ms={settings.max_block_ms} (last: {reply.error.name} {reply.detail})",
            advice="end it again with the same arguments",
        )
    raise exception_for(reply.error, reply.detail)


def _member_core(
    router: Router,
    settings: ProducerSettings,
    membership: Membership,
    random: Random,
    loop: asyncio.AbstractEventLoop,
) -> ProducerCore:
    settings = dataclasses.replace(settings, transactional_id=membership.transactional_id)
    return ProducerCore(router=router, settings=settings, random=random, loop=loop)


async def _keep(core: ProducerCore, membership: Membership) -> None:
    await core.keep_run(membership.run, membership.transaction_timeout_ms)


async def _enlist(core: ProducerCore, membership: Membership) -> bool:
    if membership.is_committed:
        return False
    await _keep(core, membership)
    return await core.enlist(membership.run, membership.token)


def _winner(core: ProducerCore) -> Winner:
    identity = core.sender.transaction.identity
    if identity is None:
        raise IllegalStateError("the member has no producer id yet", advice="call enlist() first")
    core.check_complete()
    counters = core.sender.counters
    if core.sender.buffer.buffered_bytes or counters.records_acknowledged != counters.records_sent:
        raise IllegalStateError("not every record is acknowledged", advice="call flush() first")
    if counters.records_failed:
        raise IllegalStateError(
            f"{counters.records_failed} records of the member failed, so it cannot win",
            advice="flush() before close(), or write them all again as another member",
        )
    return Winner(
        producer_id=identity.producer_id,
        record_count=counters.records_acknowledged,
    )
