"""A client of transactions' version 1, its gateways, and a coordinator that is replaced.

The coordinator's machine is that of production. The client does one thing at a time: it begins a
transaction by enrolling P, may enrol Q, and commits or aborts. It may give up a request, connect
again and repeat it; then an enrolment may also become an abort. It may ask for another pair, and
another process may take the id. Whatever was ever sent may arrive at any time, at any coordinator,
and more than once. A transaction may time out. A coordinator that was replaced does not know it: it
still answers, as far as that needs no record.

A message made for transaction N must change something only while N is the client's newest, and not
over for it; or as a repetition, without effect. And whatever the client is told must be so.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from functools import partial
from typing import Any

import msgspec
from explorer import OMITTED, BrokenPromiseError, ExploredWorld, Step
from msgspec.structs import replace

from oncelog.actors.protocol.effects import Decision, LogRecord
from oncelog.actors.protocol.messages.base import Reply
from oncelog.actors.protocol.messages.transaction import (
    AddPartitionsToTxnRequest,
    ConnectionLabel,
    EndTxnRequest,
    InitProducerIdRequest,
)
from oncelog.actors.protocol.transaction.producer_ids import ProducerIdBlocks
from oncelog.actors.protocol.transaction.transaction_machine import TransactionMachine
from oncelog.actors.protocol.transaction.transaction_records import encode_key, encode_value
from oncelog.actors.protocol.transaction.transaction_state import (
    DECIDED,
    TransactionMetadata,
    TransactionState,
)
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import TopicPartition

ID = "writer"
P, Q = TopicPartition("p", 0), TopicPartition("q", 0)
COUNTS = {"p": 1, "q": 1}
LATER_MS = 10**9
"""When each transaction has timed out."""

NOBODY = (-1, -1)

OMITTED["OneOfThem"] = frozenset({"machine"})  # It is what its last record makes it.


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """How often what may happen."""

    transactions: int = 2
    requests: int = 6
    copies: int = 2
    """Deliveries of what was delivered already."""
    reconnections: int = 2
    timeouts: int = 0
    replacements: int = 1
    recoveries: int = 0
    takeovers: int = 0


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One request of the client, made for transaction ``n``."""

    what: str
    n: int
    pair: tuple[int, int]
    label: ConnectionLabel
    tp: TopicPartition = P


class Client(msgspec.Struct, frozen=True, kw_only=True):
    """``phase``: idle, open, commit, abort, init or dead; ``waiting`` is not answered yet."""

    phase: str = "idle"
    n: int = 0
    pair: tuple[int, int] = NOBODY
    enrolled: tuple[TopicPartition, ...] = ()
    waiting: Message | None = None
    is_connected: bool = True
    place: tuple[int, int] = (1, 1)
    """The coordinator epoch and the number in the labels of its connection."""
    request: int = 0


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What is left of the scope, who sent what, and what has become of the transactions."""

    left: Scope
    client: Client
    newest: int = 1
    """The coordinator that leads; ``newest - 1`` may not know that it was replaced."""
    sent: tuple[tuple[Message, bool], ...] = ()
    """And whether it was delivered."""
    begun_by: int = 0
    """The number of the client's transaction that was begun last."""
    outcomes: tuple[tuple[int, bool], ...] = ()


class OneOfThem:
    """A coordinator, and the last record that it has read or written: the others are cleaned."""

    def __init__(self, epoch: int, record: LogRecord) -> None:
        ids = ProducerIdBlocks()
        ids.add_block(100 * epoch, 10)
        self.machine = TransactionMachine(
            producer_ids=ids,
            transaction_max_timeout_ms=1_000,
            transactional_id_expiration_ms=10**12,
        )
        self.machine.producers.coordinator_epoch = epoch
        self.epoch = epoch
        self.write(record)

    def write(self, record: LogRecord) -> None:
        self.last = (record.key, record.value)
        self.machine.ids.apply(record)

    @property
    def known(self) -> TransactionMetadata:
        metadata = self.machine.ids.metadata(ID)
        assert metadata is not None
        return metadata


class Version1Model:
    """See the module. ``first_epoch``: that of the id, before the client comes.

    ``story``: steps taken before.
    """

    def __init__(
        self, name: str, scope: Scope, *, first_epoch: int = 0, story: tuple[str, ...] = ()
    ) -> None:
        self.name, self.scope, self.first_epoch, self.story = name, scope, first_epoch, story

    def start(self) -> ExploredWorld:
        resting = TransactionMetadata(
            transactional_id=ID,
            producer_id=7,
            producer_epoch=self.first_epoch,
            transaction_timeout_ms=1_000,
            state=TransactionState.EMPTY,
            last_update_ms=0,
        )
        coordinator = OneOfThem(1, LogRecord(encode_key(ID), encode_value(resting)))
        init = InitProducerIdRequest(
            transactional_id=ID, transaction_timeout_ms=1_000, as_version_1=True
        )
        decided = coordinator.machine.producers.decide_init_producer_id(init, 0)
        (record,) = decided.records
        coordinator.write(record)
        pair = (decided.reply.producer_id, decided.reply.producer_epoch)
        world = ExploredWorld({1: coordinator}, Facts(left=self.scope, client=Client(pair=pair)))
        for line in self.story:
            dict(self.steps(world))[line](world)
        return world

    def key(self, world: ExploredWorld, frozen_part: Callable[[Any], Hashable]) -> Hashable:
        return (*world.keys(frozen_part), world.facts)

    def is_in_scope(self, world: ExploredWorld) -> bool:
        return True

    def check(self, world: ExploredWorld) -> None:
        """All checks are at the steps that could break something."""

    # --- what can happen -------------------------------------------------------------------------

    def steps(self, world: ExploredWorld) -> Iterator[Step]:
        facts = world.facts
        yield from self._clients_steps(facts)
        for number, (message, was_delivered) in enumerate(facts.sent):
            if was_delivered and not facts.left.copies:
                continue
            again = " again" if was_delivered else ""
            for epoch in {max(1, facts.newest - 1), facts.newest}:
                text = f"coordinator {epoch} gets {told(message)}{again}"
                yield text, partial(self._deliver, number, epoch)
        known = world.see(facts.newest).known
        if known.state in DECIDED:
            yield "every marker is written", self._complete
        if known.state is TransactionState.ONGOING and facts.left.timeouts:
            yield "the transaction times out", self._time_out
        if facts.left.replacements:
            yield f"coordinator {facts.newest + 1} takes over", self._replace

    def _clients_steps(self, facts: Facts) -> Iterator[Step]:
        client, left = facts.client, facts.left
        if left.reconnections and client.phase != "dead":
            is_given_up = client.waiting is not None or not client.is_connected
            for epoch in {max(1, facts.newest - 1), facts.newest}:
                if not is_given_up and epoch == client.place[0]:
                    continue
                text = f"the client connects anew, where coordinator {epoch} is known"
                yield text, partial(self._connect, epoch)
        if left.takeovers:
            yield "another process takes the id", self._take_over
        if client.waiting is not None or not client.is_connected or not left.requests:
            return
        if client.phase == "idle" and left.transactions:
            yield "the client begins, and enrols P", partial(self._send, "enrol", P)
        if client.phase == "open":
            for tp in {P, Q} - set(client.enrolled):
                yield f"the client enrols {tp.topic}", partial(self._send, "enrol", tp)
            if client.enrolled:
                yield "the client commits", partial(self._send, "commit", P)
        if client.phase in ("open", "abort"):
            yield "the client aborts", partial(self._send, "abort", P)
        if client.phase == "commit":
            yield "the client repeats its commit", partial(self._send, "commit", P)
        if client.phase == "init" or (client.phase in ("idle", "open") and left.recoveries):
            yield "the client asks for another pair", partial(self._send, "init", P)

    def _send(self, what: str, tp: TopicPartition, world: ExploredWorld) -> None:
        use(world, requests=1)
        client = world.facts.client
        if client.phase == "idle" and what == "enrol":
            use(world, transactions=1)
            client = replace(client, n=client.n + 1, enrolled=())
        if client.phase != "init" and what == "init":
            use(world, recoveries=1)
        epoch, number = client.place
        request = client.request + 1
        label = ConnectionLabel(
            coordinator_epoch=epoch, incarnation=1, number=number, request=request
        )
        message = Message(what=what, n=client.n, pair=client.pair, label=label, tp=tp)
        phase = "open" if what == "enrol" else what
        client = replace(client, phase=phase, request=request, waiting=message)
        sent = (*world.facts.sent, (message, False))
        world.facts = replace(world.facts, client=client, sent=sent)

    def _connect(self, epoch: int, world: ExploredWorld) -> None:
        use(world, reconnections=1)
        client = world.facts.client
        place = (epoch, client.place[1] + 1)
        client = replace(client, place=place, request=0, waiting=None, is_connected=True)
        world.facts = replace(world.facts, client=client)

    def _take_over(self, world: ExploredWorld) -> None:
        """A new process: whatever the old one was at is aborted."""
        use(world, takeovers=1)
        facts, coordinator = world.facts, world.own(world.facts.newest)
        request = InitProducerIdRequest(
            transactional_id=ID, transaction_timeout_ms=1_000, as_version_1=True
        )
        decided = coordinator.machine.producers.decide_init_producer_id(request, 0)
        self._write(decided, facts.begun_by, world)
        if decided.reply.error is ErrorCode.NONE:
            pair = (decided.reply.producer_id, decided.reply.producer_epoch)
            place = (facts.client.place[0], facts.client.place[1] + 1)
            client = Client(pair=pair, n=facts.client.n, place=place)
            world.facts = replace(world.facts, client=client)

    def _complete(self, world: ExploredWorld) -> None:
        machine = world.own(world.facts.newest).machine
        self._write(machine.upkeep.decide_complete(ID, 0), 0, world)

    def _time_out(self, world: ExploredWorld) -> None:
        use(world, timeouts=1)
        machine = world.own(world.facts.newest).machine
        decided = machine.upkeep.decide_timeout(ID, LATER_MS)
        self._write(decided, world.facts.begun_by, world)

    def _replace(self, world: ExploredWorld) -> None:
        use(world, replacements=1)
        newest = world.facts.newest
        world.put(newest + 1, OneOfThem(newest + 1, LogRecord(*world.see(newest).last)))
        world.facts = replace(world.facts, newest=newest + 1)

    # --- at a coordinator ------------------------------------------------------------------------

    def _deliver(self, number: int, epoch: int, world: ExploredWorld) -> None:
        """What neither changes anything nor answers leaves the world as it was."""
        facts, coordinator = world.facts, world.own(epoch)
        message, was_delivered = facts.sent[number]
        decided = _decide(coordinator.machine, message)
        if decided.records and epoch != facts.newest:
            coordinator.machine.ids.abandon(ID)
            return
        is_awaited = facts.client.waiting == message
        if not decided.records and not is_awaited:
            return
        if was_delivered:
            use(world, copies=1)
        sent = (*facts.sent[:number], (message, True), *facts.sent[number + 1 :])
        world.facts = replace(world.facts, sent=sent)
        self._write(decided, message.n, world)
        if is_awaited:
            self._answer(message, decided.reply, epoch, world)

    def _write(self, decided: Decision[Any], n: int, world: ExploredWorld) -> None:
        """Commit and apply the records, each of which must be the doing of transaction ``n``."""
        coordinator = world.own(world.facts.newest)
        for record in decided.records:
            before = coordinator.known
            coordinator.write(record)
            self._judge(before, coordinator.known, n, world)

    def _judge(
        self,
        before: TransactionMetadata,
        after: TransactionMetadata,
        n: int,
        world: ExploredWorld,
    ) -> None:
        facts = world.facts
        is_over = facts.client.phase == "idle" or facts.client.n != n
        is_over = is_over or any(number == n for number, _ in facts.outcomes)
        was_open = before.state is TransactionState.ONGOING
        if after.state is TransactionState.ONGOING and not was_open:
            if is_over:
                raise BrokenPromiseError(f"a message of {n} begins a transaction: {n} is over")
            world.facts = facts = replace(facts, begun_by=n)
        if after.state is TransactionState.ONGOING and after.partitions != before.partitions:
            _same(n, facts.begun_by, "enrols in")
        if after.state in DECIDED and before.state is not after.state:
            if was_open:
                _same(n, facts.begun_by, "ends")
            elif is_over:
                raise BrokenPromiseError(f"a message of {n} ends nothing, though {n} is over")
            outcome = (n, after.state is TransactionState.PREPARE_COMMIT)
            world.facts = replace(facts, outcomes=(*facts.outcomes, outcome))

    # --- at the client ---------------------------------------------------------------------------

    def _answer(self, message: Message, reply: Reply, epoch: int, world: ExploredWorld) -> None:
        client = replace(world.facts.client, waiting=None)
        if reply.error is ErrorCode.NOT_COORDINATOR:
            client = replace(client, is_connected=False)
        elif reply.error is ErrorCode.NONE:
            client = self._succeeded(client, message, reply, world)
            if message.what == "init":
                # What follows on this connection was sent after that coordinator's reply.
                known, number = client.place
                client = replace(client, place=(max(known, epoch), number))
        elif reply.error is not ErrorCode.CONCURRENT_TRANSACTIONS:
            client = replace(client, phase="dead")
        world.facts = replace(world.facts, client=client)

    def _succeeded(
        self, client: Client, message: Message, reply: Any, world: ExploredWorld
    ) -> Client:
        facts = world.facts
        outcomes = {is_commit for n, is_commit in facts.outcomes if n == message.n}
        if message.what == "enrol":
            known = world.see(facts.newest).known
            is_open = known.state is TransactionState.ONGOING and facts.begun_by == message.n
            if not outcomes and not (is_open and message.tp in known.partitions):
                raise BrokenPromiseError(f"{message.tp} is not enrolled in {message.n}")
            return replace(client, enrolled=(*client.enrolled, message.tp))
        if message.what == "commit" and outcomes != {True}:
            raise BrokenPromiseError(f"{message.n} is told as committed: {outcomes}")
        if message.what == "abort" and True in outcomes:
            raise BrokenPromiseError(f"{message.n} is told as aborted: {outcomes}")
        pair = client.pair
        if message.what == "init":
            pair = (reply.producer_id, reply.producer_epoch)
        return replace(client, phase="idle", enrolled=(), pair=pair)


def _same(n: int, begun_by: int, what: str) -> None:
    if n != begun_by:
        raise BrokenPromiseError(f"a message of {n} {what} {begun_by}")


def _decide(machine: TransactionMachine, message: Message) -> Decision[Any]:
    pair = {"producer_id": message.pair[0], "producer_epoch": message.pair[1]}
    if message.what == "enrol":
        return machine.producers.decide_add_partitions(
            AddPartitionsToTxnRequest(
                transactional_id=ID, **pair, partitions=(message.tp,), label=message.label
            ),
            0,
            COUNTS,
        )
    if message.what == "init":
        request = InitProducerIdRequest(
            transactional_id=ID, transaction_timeout_ms=1_000, **pair, as_version_1=True
        )
        return machine.producers.decide_init_producer_id(request, 0)
    end = EndTxnRequest(
        transactional_id=ID, committed=message.what == "commit", **pair, label=message.label
    )
    return machine.decide_end_txn(end, 0)


def told(message: Message) -> str:
    """A message in a story."""
    label = message.label
    place = f"{label.coordinator_epoch}.{label.number}.{label.request}"
    what = f"enrol {message.tp.topic}" if message.what == "enrol" else message.what
    return f"{what!r} of {message.n} ({place})"


def use(world: ExploredWorld, **counts: int) -> None:
    """So many less are left of what is named."""
    left = world.facts.left
    fewer = {name: getattr(left, name) - count for name, count in counts.items()}
    world.facts = replace(world.facts, left=replace(left, **fewer))


BEGUN = ("the client begins, and enrols P", "coordinator 1 gets 'enrol p' of 1 (1.1.1)")
COMMITTED = (
    *BEGUN,
    "the client commits",
    "coordinator 1 gets 'commit' of 1 (1.1.2)",
    "every marker is written",
)
BEGUN_ELSEWHERE = (
    *COMMITTED,
    "coordinator 2 takes over",
    "the client connects anew, where coordinator 2 is known",
    "the client begins, and enrols P",
    "coordinator 2 gets 'enrol p' of 2 (2.2.1)",
)
RECOVERING = Scope(replacements=0, recoveries=1)
MODELS = (
    Version1Model("version-1", Scope()),
    Version1Model("version-1-late", Scope(), story=COMMITTED),
    Version1Model("version-1-replaced", Scope(requests=7, reconnections=3), story=BEGUN_ELSEWHERE),
    Version1Model("version-1-recovery", replace(RECOVERING, timeouts=1)),
    Version1Model("version-1-told", Scope(recoveries=1, reconnections=1)),
    Version1Model("version-1-takeover", Scope(replacements=0, takeovers=1, timeouts=1)),
    Version1Model(
        "version-1-epochs",
        replace(RECOVERING, copies=1, reconnections=1, requests=7),
        first_epoch=32_765,
        story=COMMITTED,
    ),
)
