"""Random commands: reload equals live, decisions change nothing, epochs are given once."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from msgspec import structs

from oncelog.actors.protocol.effects import Decision, LogRecord
from oncelog.actors.protocol.messages.transaction import (
    AddPartitionsToTxnRequest,
    BeginRunRequest,
    ConnectionLabel,
    DriverProcess,
    EndPreparedTxnRequest,
    EndTxnRequest,
    EnlistRequest,
    InitProducerIdRequest,
    PrepareTxnRequest,
    Run,
    Winner,
)
from oncelog.actors.protocol.transaction.commit_versions import version_in, version_token
from oncelog.actors.protocol.transaction.members import HeldRecords, RunMember
from oncelog.actors.protocol.transaction.producer_ids import ProducerIdBlocks
from oncelog.actors.protocol.transaction.told import ToldPair
from oncelog.actors.protocol.transaction.transaction_machine import TransactionMachine
from oncelog.actors.protocol.transaction.transaction_records import (
    decode_member_key,
    encode_key,
    encode_value,
)
from oncelog.actors.protocol.transaction.transaction_state import (
    AT_REST,
    TransactionMetadata,
    TransactionState,
    newest_run_number,
)
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import TopicPartition

IDS = ("loader", "mover")
TOKENS = st.sampled_from([None, b"", b"one", version_token("a", 1), version_token("a", 2)])
RUNS = st.integers(0, 3)
"""Which of the runs that began, counted from the newest."""

DRIVER = DriverProcess(machine="here", process_id=7, start_ticks=8)
PARTITIONS = st.lists(
    st.builds(TopicPartition, st.just("flights"), st.integers(0, 3)), max_size=3
).map(tuple)
FATES = ["kept", "kept", "lost"]
PREPARED = {TransactionState.PREPARE_COMMIT: True, TransactionState.PREPARE_ABORT: False}


class CoordinatorRules(RuleBasedStateMachine):
    """Commands with epochs that were really given, or that nobody has."""

    def __init__(self) -> None:
        super().__init__()
        self.producer_ids = ProducerIdBlocks()
        self.producer_ids.add_block(100, 100_000)
        self.machine = self.new_machine()
        self.log: list[LogRecord] = []
        self.now_ms = 1_000_000
        self.given: list[tuple[int, int]] = [(7, 0), (100, 0)]
        self.given_to_members: set[tuple[int, int]] = set()
        self.runs = [Run(number=1, id="a stranger")]
        self.told = {(name, -1 - age): (7, 0) for name in IDS for age in range(3)}
        """The last pairs that clients of version 1 were told."""
        self.labels = 0
        self.is_ended = False
        """Whether the command under way is an end, by an owner or an operator."""

    def new_machine(self) -> TransactionMachine:
        return TransactionMachine(
            producer_ids=self.producer_ids,
            transaction_max_timeout_ms=900_000,
            transactional_id_expiration_ms=1_000_000,
            is_two_phase_allowed=True,
        )

    def states(self, machine: TransactionMachine) -> dict[str, TransactionMetadata | None]:
        return {name: machine.ids.metadata(name) for name in IDS}

    def settle(self, decision: Decision[Any], fate: str) -> Any:
        """Check that deciding changed nothing; then commit, lose or half-lose the records."""
        if fate == "lost" and decision.records:
            for name in IDS:
                self.machine.ids.abandon(name)
            return None
        for record in decision.records:
            self.log.append(record)
            self.machine.ids.apply(record)
        return decision.reply

    def decide(self, fate: str, decide: Any) -> Any:
        before = self.states(self.machine)
        decision = decide()
        assert self.states(self.machine) == before
        reply = self.settle(decision, fate)
        self.check_moves(before)
        self.is_ended = False
        return reply

    def check_moves(self, before: dict[str, TransactionMetadata | None]) -> None:
        """A verdict never changes, and neither an epoch nor a version ever goes back."""
        for name, old in before.items():
            new = self.machine.ids.metadata(name)
            if old is None or new is None:
                continue
            committed = version_in(old.commit_token or b"")
            if committed is not None:
                version = version_in(new.commit_token or b"")
                assert version is not None
                assert version.version >= committed.version
            if new.producer_id == old.producer_id:
                assert new.producer_epoch >= old.producer_epoch
            if old.state is TransactionState.PREPARED and not self.is_ended:
                assert new.state is TransactionState.PREPARED
                assert new.prepared_txn == old.prepared_txn
                assert new.partitions == old.partitions
            if old.state in PREPARED:
                complete = (
                    TransactionState.COMPLETE_COMMIT
                    if PREPARED[old.state]
                    else TransactionState.COMPLETE_ABORT
                )
                assert new.state in {old.state, complete}
            for producer_id, member in old.members.items():
                if producer_id in new.members:
                    assert new.members[producer_id].producer_epoch >= member.producer_epoch

    @initialize(name=st.sampled_from(IDS), epoch=st.sampled_from([0, 32_763]))
    def install(self, name: str, epoch: int) -> None:
        metadata = TransactionMetadata(
            transactional_id=name,
            producer_id=7,
            producer_epoch=epoch,
            transaction_timeout_ms=60_000,
            state=TransactionState.EMPTY,
            last_update_ms=self.now_ms,
        )
        record = LogRecord(encode_key(name), encode_value(metadata))
        self.log.append(record)
        self.machine.ids.apply(record)
        self.given.append((7, epoch))

    @rule(
        name=st.sampled_from(IDS),
        owner=st.none() | st.integers(0, 5),
        keep_prepared=st.booleans(),
        fate=st.sampled_from(["kept", "kept", "lost"]),
    )
    def init(self, name: str, owner: int | None, keep_prepared: bool, fate: str) -> None:
        producer_id, epoch = (-1, -1) if owner is None else self.given[-1 - owner % len(self.given)]
        request = InitProducerIdRequest(
            transactional_id=name,
            producer_id=producer_id,
            producer_epoch=epoch,
            keep_prepared=keep_prepared,
        )
        reply = self.decide(
            fate, lambda: self.machine.producers.decide_init_producer_id(request, self.now_ms)
        )
        if reply is not None and reply.error is ErrorCode.NONE:
            self.given.append((reply.producer_id, reply.producer_epoch))

    @rule(
        name=st.sampled_from(IDS),
        run_id=st.sampled_from("abc"),
        behind=st.sampled_from([0, 0, 0, 1]),
        token=TOKENS,
        driver=st.sampled_from([None, DRIVER]),
        fate=st.sampled_from(["kept", "kept", "lost"]),
    )
    def begin_run(
        self,
        name: str,
        run_id: str,
        behind: int,
        token: bytes | None,
        driver: DriverProcess | None,
        fate: str,
    ) -> None:
        """Begin a run, or one that began before again, or after one that is not the newest."""
        before = self.machine.ids.metadata(name)
        newest = newest_run_number(before)
        request = BeginRunRequest(
            transactional_id=name,
            run_id=run_id,
            after=max(newest - behind, 0),
            token=token or b"",
            driver=driver,
        )
        reply = self.decide(fate, lambda: self.machine.runs.decide_begin_run(request, self.now_ms))
        if reply is None or reply.error is not ErrorCode.NONE:
            return
        self.runs.append(Run(number=reply.number, id=run_id))
        is_repeated = before is not None and before.run is not None and before.run.id == run_id
        assert reply.number == newest + (not is_repeated)
        if is_repeated:
            assert self.machine.ids.metadata(name) == before

    @rule(name=st.sampled_from(IDS), fate=st.sampled_from(["kept", "lost"]))
    def driver_goes(self, name: str, fate: str) -> None:
        before = self.machine.ids.metadata(name)
        self.decide(fate, lambda: self.machine.runs.decide_driver_gone(name, DRIVER, self.now_ms))
        if before is None or before.driver is None or before.state is not TransactionState.ONGOING:
            assert self.machine.ids.metadata(name) == before

    @rule(
        name=st.sampled_from(IDS),
        run=RUNS,
        token=TOKENS,
        fate=st.sampled_from(["kept", "kept", "lost"]),
    )
    def enlist(self, name: str, run: int, token: bytes | None, fate: str) -> None:
        named = self.runs[-1 - run % len(self.runs)]
        request = EnlistRequest(transactional_id=name, run=named, token=token or b"")
        before = self.machine.ids.metadata(name)
        reply = self.decide(fate, lambda: self.machine.runs.decide_enlist(request, self.now_ms))
        if reply is not None and reply.error is ErrorCode.NONE:
            assert before is not None
            assert before.run == named
        if reply is not None and reply.error is ErrorCode.NONE:
            member = (reply.producer_id, reply.producer_epoch)
            assert member not in self.given_to_members
            self.given_to_members.add(member)
            self.given.append(member)

    @rule(
        name=st.sampled_from(IDS),
        owner=st.integers(0, 7),
        partitions=PARTITIONS,
        fate=st.sampled_from(["kept", "kept", "lost"]),
    )
    def add(self, name: str, owner: int, partitions: tuple[TopicPartition, ...], fate: str) -> None:
        producer_id, epoch = self.given[-1 - owner % len(self.given)]
        request = AddPartitionsToTxnRequest(
            transactional_id=name,
            producer_id=producer_id,
            producer_epoch=epoch,
            partitions=partitions,
        )
        self.decide(
            fate,
            lambda: self.machine.producers.decide_add_partitions(
                request, self.now_ms, {"flights": 4}
            ),
        )

    @rule(
        name=st.sampled_from(IDS),
        owner=st.none() | st.integers(0, 2),
        fate=st.sampled_from(FATES),
    )
    def init_as_version_1(self, name: str, owner: int | None, fate: str) -> None:
        pair = (-1, -1) if owner is None else self.told[name, -1 - owner]
        request = InitProducerIdRequest(
            transactional_id=name,
            producer_id=pair[0],
            producer_epoch=pair[1],
            as_version_1=True,
        )
        reply = self.decide(
            fate, lambda: self.machine.producers.decide_init_producer_id(request, self.now_ms)
        )
        if reply is not None and reply.error is ErrorCode.NONE:
            given = (reply.producer_id, reply.producer_epoch)
            self.given.append(given)
            self.told[name, -3], self.told[name, -2] = self.told[name, -2], self.told[name, -1]
            self.told[name, -1] = given

    @rule(
        name=st.sampled_from(IDS),
        owner=st.sampled_from([0, 0, 0, 1]),
        behind=st.sampled_from([0, 0, 0, 1]),
        committed=st.none() | st.booleans(),
        partitions=PARTITIONS,
        fate=st.sampled_from(FATES),
    )
    def ask_as_version_1(
        self,
        name: str,
        owner: int,
        behind: int,
        committed: bool | None,
        partitions: tuple[TopicPartition, ...],
        fate: str,
    ) -> None:
        """Enrol partitions or end; what is ``behind`` has a label that was used before."""
        self.labels += not behind
        pair = self.told[name, -1 - owner]
        label = ConnectionLabel(
            coordinator_epoch=-1, incarnation=0, number=max(self.labels - behind, 0)
        )
        fields = {"transactional_id": name, "producer_id": pair[0], "producer_epoch": pair[1]}
        before = self.machine.ids.metadata(name)
        if committed is None:
            add = AddPartitionsToTxnRequest(**fields, partitions=partitions, label=label)
            reply = self.decide(
                fate,
                lambda: self.machine.producers.decide_add_partitions(
                    add, self.now_ms, {"flights": 4}
                ),
            )
        else:
            end = EndTxnRequest(**fields, committed=committed, label=label)
            reply = self.decide(fate, lambda: self.machine.decide_end_txn(end, self.now_ms))
        if reply is not None and reply.error is ErrorCode.NONE:
            after = self.machine.ids.metadata(name)
            assert before is not None
            assert after is not None
            assert after.told is not None
            assert before.told is not None
            assert (after.told.pair, before.told.pair) == (pair, pair)
            assert after.told.label == label

    @rule(name=st.sampled_from(IDS), owner=st.integers(0, 3), fate=st.sampled_from(FATES))
    def prepare(self, name: str, owner: int, fate: str) -> None:
        producer_id, epoch = self.given[-1 - owner % len(self.given)]
        request = PrepareTxnRequest(
            transactional_id=name, producer_id=producer_id, producer_epoch=epoch
        )
        self.decide(fate, lambda: self.machine.producers.decide_prepare(request, self.now_ms))

    @rule(
        name=st.sampled_from(IDS),
        committed=st.booleans(),
        behind=st.sampled_from([0, 0, 1]),
        fate=st.sampled_from(FATES),
    )
    def operator_ends(self, name: str, committed: bool, behind: int, fate: str) -> None:
        metadata = self.machine.ids.metadata(name)
        if metadata is None:
            return
        self.is_ended = True
        request = EndPreparedTxnRequest(
            transactional_id=name,
            committed=committed,
            producer_id=metadata.producer_id,
            producer_epoch=metadata.producer_epoch - behind,
        )
        self.decide(fate, lambda: self.machine.operations.decide_end_prepared(request, self.now_ms))

    @rule(
        name=st.sampled_from(IDS),
        owner=st.integers(0, 5),
        committed=st.booleans(),
        token=TOKENS,
        fate=st.sampled_from(["kept", "kept", "lost"]),
    )
    def end(self, name: str, owner: int, committed: bool, token: bytes | None, fate: str) -> None:
        producer_id, epoch = self.given[-1 - owner % len(self.given)]
        request = EndTxnRequest(
            transactional_id=name,
            committed=committed,
            producer_id=producer_id,
            producer_epoch=epoch,
            token=token,
        )
        self.is_ended = True
        reply = self.decide(fate, lambda: self.machine.decide_end_txn(request, self.now_ms))
        if reply is not None and reply.error is ErrorCode.NONE:
            self.given.append((reply.producer_id, reply.producer_epoch))

    @rule(
        name=st.sampled_from(IDS),
        run=RUNS,
        committed=st.booleans(),
        token=TOKENS,
        is_honest=st.booleans(),
        fate=st.sampled_from(["kept", "kept", "lost"]),
    )
    def end_run(
        self,
        name: str,
        run: int,
        committed: bool,
        token: bytes | None,
        is_honest: bool,
        fate: str,
    ) -> None:
        metadata = self.machine.ids.metadata(name)
        members = sorted(metadata.members) if metadata is not None else []
        winners = tuple(
            Winner(producer_id=number, record_count=0 if is_honest else 3) for number in members[:2]
        )
        request = EndTxnRequest(
            transactional_id=name,
            committed=committed,
            token=token,
            run=self.runs[-1 - run % len(self.runs)],
            winners=winners,
        )
        held = HeldRecords(answered=frozenset(self.machine.runs.winner_partitions(request)))
        self.decide(fate, lambda: self.machine.decide_end_txn(request, self.now_ms, held))

    @rule(name=st.sampled_from(IDS), fate=st.sampled_from(["kept", "kept", "lost"]))
    def complete(self, name: str, fate: str) -> None:
        self.decide(fate, lambda: self.machine.upkeep.decide_complete(name, self.now_ms))

    @rule(passed_ms=st.sampled_from([1, 70_000, 1_000_001]), name=st.sampled_from(IDS))
    def time_passes(self, passed_ms: int, name: str) -> None:
        self.now_ms += passed_ms
        self.decide("kept", lambda: self.machine.upkeep.decide_timeout(name, self.now_ms))
        self.decide("kept", lambda: self.machine.upkeep.decide_expire(name, self.now_ms))

    @rule()
    def fail_over(self) -> None:
        self.machine = self.reload()

    def reload(self) -> TransactionMachine:
        machine = self.new_machine()
        for record in self.log:
            machine.ids.apply(record)
        return machine

    @invariant()
    def reload_equals_live(self) -> None:
        assert self.states(self.reload()) == self.states(self.machine)

    @invariant()
    def the_last_record_is_enough(self) -> None:
        """Compaction keeps the last record of each key, in order, of any part it has reached."""
        for clean_count in (len(self.log), len(self.log) // 2):
            clean, dirty = self.log[:clean_count], self.log[clean_count:]
            last = {record.key: number for number, record in enumerate(clean)}
            kept = [clean[number] for number in sorted(last.values())]
            machine = self.new_machine()
            for record in (*kept, *dirty):
                machine.ids.apply(record)
            assert self.states(machine) == self.states(self.machine)

    @invariant()
    def what_is_at_rest_keeps_no_member_records(self) -> None:
        last = {record.key: record.value for record in self.log}
        for key, value in last.items():
            member = decode_member_key(key or b"")
            if member is not None and value is not None:
                metadata = self.machine.ids.metadata(member.transactional_id)
                assert metadata is not None
                assert metadata.state not in AT_REST

    @invariant()
    def only_a_run_has_members_at_work(self) -> None:
        for metadata in self.states(self.machine).values():
            if metadata is not None and metadata.all_partitions != metadata.partitions:
                assert metadata.is_run_current
                assert not metadata.partitions

    @invariant()
    def whoever_prepares_or_runs_is_not_of_version_1(self) -> None:
        for metadata in self.states(self.machine).values():
            if metadata is not None and metadata.told is not None:
                assert metadata.prepared_txn is None
                assert not metadata.is_run_current
                assert not metadata.is_run_waiting
                assert metadata.told.producer_epoch < 32_767

    @invariant()
    def a_client_never_holds_the_fencing_epoch(self) -> None:
        assert all(epoch < 32_767 for _, epoch in self.given)


CoordinatorRules.TestCase.settings = settings(stateful_step_count=30)
TestCoordinator = CoordinatorRules.TestCase


def test_reload_loses_no_field_of_the_metadata() -> None:
    names = {field.name for field in structs.fields(TransactionMetadata)}
    metadata = TransactionMetadata(
        transactional_id="loader",
        producer_id=1,
        producer_epoch=2,
        transaction_timeout_ms=3,
        state=TransactionState.PREPARE_COMMIT,
        last_update_ms=4,
        start_ms=5,
        members={
            10: RunMember(producer_id=10, partitions=frozenset({TopicPartition("flights", 1)}))
        },
        previous_producer_id=6,
        next_producer_id=7,
        last_producer_epoch=8,
        commit_token=b"t",
        run=Run(number=9, id="r"),
        is_run_current=True,
        driver=DRIVER,
        told=ToldPair(producer_id=10, producer_epoch=11, aborts=12),
    )
    machine = TransactionMachine(
        producer_ids=ProducerIdBlocks(),
        transaction_max_timeout_ms=1,
        transactional_id_expiration_ms=1,
    )
    machine.ids.apply(LogRecord(encode_key("loader"), encode_value(metadata)))
    found = machine.ids.metadata("loader")
    assert {name for name in names if getattr(found, name) != getattr(metadata, name)} == set()
