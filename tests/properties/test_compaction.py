"""Random transactional histories: compaction takes what is superseded or aborted, nothing else."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st
from transactional_logs import TransactionalLog

from oncelog.storage.log.partition import LogSettings
from oncelog.storage.records.codec import Record
from oncelog.storage.records.compression import Codec

RETENTION_MS = 100
DAY_MS = 86_400_000
TRANSACTIONAL = (1, 2)
COORDINATED = 3
IDEMPOTENT = 4
KEYS = st.sampled_from([b"a", b"b", b"c", b"a key that is longer than its digest", None])
RECORDS = st.lists(st.tuples(KEYS, st.sampled_from([b"v", b"", None])), min_size=1, max_size=4)
CODECS = st.sampled_from([Codec.NONE, Codec.NONE, Codec.GZIP])
PRODUCERS = st.sampled_from([1, 2, COORDINATED])
RAISES = st.sampled_from([False, True, True])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.sampled_from([-1, 1, 1, 2, 2, 3, 4]), RECORDS, CODECS),
        st.tuples(st.just("end"), PRODUCERS, st.booleans(), RAISES),
        st.tuples(
            st.just("transaction"),
            PRODUCERS,
            st.lists(RECORDS, min_size=1, max_size=3),
            st.booleans(),
            RAISES,
        ),
        st.tuples(st.just("roll")),
        st.tuples(st.just("clean"), st.sampled_from([1, 2, 1_000])),
        st.tuples(st.just("reopen"), st.booleans()),
        st.tuples(st.just("wait"), st.sampled_from([1, 60, 150])),
        st.tuples(st.just("expire")),
    ),
    min_size=3,
    max_size=30,
)


class History:
    """The log, and a list of all records ever sent with what became of them."""

    def __init__(self, directory: Path, segment_bytes: int) -> None:
        self.log = TransactionalLog(
            directory, LogSettings(segment_bytes=segment_bytes, index_interval_bytes=200)
        )
        self.decided: list[Record] = []
        self.undecided: dict[int, list[Record]] = {}
        self.reduced_to = 0
        self.has_expired = False
        self.forgotten: set[int] = set()
        """They may be back after a reload from an old snapshot, without their last batch."""
        self.deletable_from_ms: dict[int, int] = {}

    def run(self, step: tuple) -> None:
        getattr(self, step[0])(*step[1:])

    def send(self, producer_id: int, sent: list, codec: Codec) -> None:
        self.forgotten.discard(producer_id)
        in_transaction = producer_id in (*TRANSACTIONAL, COORDINATED)
        base_offset = self.log.send(
            sent,
            producer_id=producer_id,
            is_transactional=in_transaction,
            has_sequence=producer_id != COORDINATED,
            codec=codec,
        )
        records = [
            Record(base_offset + place, self.log.now_ms + place, key, value)
            for place, (key, value) in enumerate(sent)
        ]
        if in_transaction:
            self.undecided.setdefault(producer_id, []).extend(records)
        else:
            self.decided += records

    def transaction(
        self, producer_id: int, batches: list, committed: bool, raises_epoch: bool
    ) -> None:
        for records in batches:
            self.send(producer_id, records, Codec.NONE)
        self.end(producer_id, committed, raises_epoch)

    def end(self, producer_id: int, committed: bool, raises_epoch: bool) -> None:
        if not self.log.machine.producers.entries.get(producer_id):
            return
        self.log.end(producer_id, committed=committed, raises_epoch=raises_epoch)
        records = self.undecided.pop(producer_id, [])
        if committed:
            self.decided = sorted([*self.decided, *records], key=lambda record: record.offset)

    def roll(self) -> None:
        self.log.roll()

    def wait(self, time_ms: int) -> None:
        self.log.now_ms += time_ms

    def reopen(self, is_clean: bool) -> None:
        self.log.sync()
        before = self.log.state(self.log.machine)
        self.log.reopen(is_clean=is_clean)
        assert self.has_expired or self.log.state(self.log.machine, before) == before

    def expire(self) -> None:
        self.has_expired = True
        self.log.machine.expire(self.log.now_ms)
        self.log.machine.expire(self.log.now_ms + DAY_MS)
        for producer_id, producer in self.log.producers.items():
            if producer_id not in self.log.machine.producers.entries:
                self.forgotten.add(producer_id)
                # Whoever is forgotten comes back as a new incarnation.
                producer.epoch, producer.sequence = producer.epoch + 1, 0

    def clean(self, keys_max: int) -> None:
        log = self.log
        log.sync()
        stable, live = log.machine.last_stable_offset, log.state(log.machine)
        # Of a producer that was forgotten once the log knows more than the machine.
        state = log.state(log.replayed(), live.keys() - self.forgotten)
        untouched, before = log.raw(stable), log.committed()
        result = log.clean(keys_max=keys_max, delete_retention_ms=RETENTION_MS)
        assert result.is_complete
        assert self.reduced_to <= result.first_dirty_offset <= stable
        self.reduced_to = result.first_dirty_offset
        assert log.raw(stable) == untouched
        self.check_records(before)
        assert self.has_expired or state == live
        replayed = log.replayed()
        assert log.state(replayed, state) == state
        assert replayed.last_stable_offset == stable
        assert replayed.log_end_offset == log.machine.log_end_offset

    def check_end(self) -> None:
        """Decide what is open, then compact until tombstones and markers have gone."""
        for producer_id in list(self.undecided):
            self.end(producer_id, False, True)
        for _ in range(2):
            self.roll()
            self.clean(1_000)
            self.wait(2 * RETENTION_MS)
        self.clean(1_000)
        self.reopen(is_clean=False)

    def check_records(self, before: list[Record]) -> None:
        found = self.log.committed()
        assert [record for record in before if record in found] == found
        decided = [
            record for record in self.decided if record.offset < self.log.machine.last_stable_offset
        ]
        latest = {
            record.key: record.offset
            for record in decided
            if record.offset < self.reduced_to and record.key is not None
        }
        expected = [
            record
            for record in decided
            if record.offset >= self.reduced_to or latest.get(record.key, 0) <= record.offset
        ]
        gone = [record for record in expected if record not in found]
        for record in gone:
            assert record.value is None
            assert self.deletable_from_ms[record.offset] <= self.log.now_ms
        assert [record for record in expected if record not in gone] == found
        for record in expected:
            if record.value is None and record.offset < self.reduced_to:
                self.deletable_from_ms.setdefault(record.offset, self.log.now_ms + RETENTION_MS)


SEGMENT_BYTES = st.sampled_from([200, 500, 1_500])


RECORD = [(b"a", b"v")]
BACK_FROM_A_SNAPSHOT = [
    ("transaction", 1, [RECORD] * 3, False, False),
    ("send", -1, RECORD, Codec.NONE),
    ("expire",),
    ("clean", 1),
    ("send", -1, RECORD, Codec.NONE),
    ("reopen", False),
]
"""Producer 1 is forgotten, loses its last batch, and is known again after a reload."""


@example(steps=BACK_FROM_A_SNAPSHOT, segment_bytes=200)
@given(steps=STEPS, segment_bytes=SEGMENT_BYTES)
def test_readers_and_producers_see_the_same_log_after_each_pass(steps, segment_bytes):
    check_history(steps, segment_bytes)


def check_history(steps: list[tuple], segment_bytes: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        history = History(Path(directory) / "flights-0", segment_bytes)
        for step in steps:
            history.run(step)
        history.check_end()
        history.log.log.close(None)
