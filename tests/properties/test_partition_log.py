"""Random histories of a log against a list: what was appended is what is read, always."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from transactional_logs import UnsyncedFileSystem

from oncelog.storage.log.partition import LogSettings, PartitionLog
from oncelog.storage.records.batch import iterate_batches, parse_header, seal
from oncelog.storage.records.compression import Codec

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 5), st.integers(0, 400)),
        st.tuples(st.just("sync")),
        st.tuples(st.just("close")),
        st.tuples(st.just("crash")),
        st.tuples(st.just("truncate"), st.floats(0, 1)),
    ),
    max_size=40,
)
SETTINGS = st.builds(
    LogSettings, segment_bytes=st.integers(100, 2_000), index_interval_bytes=st.integers(0, 600)
)


class Model:
    """A log on disk and the batches that it should hold: (base offset, next offset, bytes)."""

    def __init__(self, directory: Path, log_settings: LogSettings) -> None:
        self.directory = directory
        self.settings = log_settings
        self.batches: list[tuple[int, int, bytes]] = []
        self.log = self.open()

    def open(self) -> PartitionLog:
        return PartitionLog.open(
            filesystem=UnsyncedFileSystem(),
            directory=self.directory,
            settings=self.settings,
            now_ms=0,
        )

    def append(self, count: int, value_bytes: int) -> None:
        base_offset = self.log.log_end_offset
        batch = seal(
            b"v" * value_bytes,
            codec=Codec.NONE,
            record_count=count,
            base_timestamp_ms=base_offset,
            max_timestamp_ms=base_offset,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
            is_transactional=False,
            base_offset=base_offset,
            leader_epoch=0,
        )
        header = parse_header(batch)
        if self.log.needs_roll(len(batch), base_offset, 0):
            self.log.roll([])
        self.log.append(batch, header)
        self.batches.append((base_offset, header.next_offset, bytes(batch)))

    def sync(self) -> None:
        point = self.log.sync_point()
        point.run()
        self.log.mark_synced(point)

    def close(self) -> None:
        self.log.close([])
        self.log = self.open()
        assert self.log.was_clean

    def crash(self) -> None:
        self.log.close(None)
        self.log = self.open()
        assert not self.log.was_clean
        assert self.log.cut is None

    def truncate(self, share: float) -> None:
        offset = int(share * self.log.log_end_offset)
        self.log.truncate_to(offset)
        self.batches = [batch for batch in self.batches if batch[1] <= offset]

    def check(self, max_bytes: int) -> None:
        end = self.batches[-1][1] if self.batches else 0
        assert self.log.log_end_offset == end
        assert [bytes(view) for _, view in self.log.replay(0)] == [b[2] for b in self.batches]
        for upper in {end, end // 2}:
            readable = [batch for batch in self.batches if batch[1] <= upper]
            for offset in range(0, end, 3):
                expected = [batch for batch in readable if batch[1] > offset]
                part = self.log.fetch(offset, max_bytes=max_bytes, upper_offset=upper)
                got = list(iterate_batches(part.records))
                assert part.records == b"".join(batch[2] for batch in expected[: len(got)])
                assert bool(got) == bool(expected)
                assert len(part.records) <= max_bytes or len(got) == 1
                assert part.next_offset == (got[-1][1].next_offset if got else offset)


@given(steps=STEPS, log_settings=SETTINGS, max_bytes=st.integers(1, 1_500))
def test_any_history_leaves_the_log_that_a_list_would_be(
    steps: list[tuple[object, ...]], log_settings: LogSettings, max_bytes: int
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        model = Model(Path(directory) / "flights-0", log_settings)
        for name, *arguments in steps:
            getattr(model, str(name))(*arguments)
        model.check(max_bytes)
        assert model.log.failure is None
        model.log.close(None)


@given(
    sizes=st.lists(st.integers(0, 300), min_size=1, max_size=12),
    synced=st.integers(0, 12),
    cut=st.floats(0, 1),
)
def test_file_torn_anywhere_beyond_the_sync_keeps_every_whole_batch(
    sizes: list[int], synced: int, cut: float
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        model = Model(Path(directory) / "flights-0", LogSettings())
        for number, size in enumerate(sizes):
            if number == synced:
                model.sync()
            model.append(1, size)
        safe = sum(len(batch[2]) for batch in model.batches[: model.log.recovery_point])
        model.log.close(None)
        path = model.directory / f"{0:020d}.log"
        length = safe + int(cut * (path.stat().st_size - safe))
        path.write_bytes(path.read_bytes()[:length])
        model.log = model.open()
        ends = [sum(len(b[2]) for b in model.batches[: n + 1]) for n in range(len(model.batches))]
        assert model.log.log_end_offset == sum(end <= length for end in ends)
        model.batches = model.batches[: model.log.log_end_offset]
        model.check(1_000)
        model.log.close(None)
