"""Whatever becomes of the bytes of a log, a reader gets what is sound and is told of the rest.

What was written and what is read are compared batch by batch. Every offset is either delivered as
it was written or lies in a range that an error named; nothing is passed over in silence.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

from crash_disk import CrashDisk
from file_damage import Damage, DamagedKind, damage
from hypothesis import given
from hypothesis import strategies as st

from oncelog.storage.exceptions import CorruptDataError, CorruptRecordError
from oncelog.storage.log.partition import LogSettings, PartitionLog
from oncelog.storage.records.batch import iterate_batches, parse_header, seal
from oncelog.storage.records.compression import Codec

DIRECTORY = Path("/data/flights-0")
SETTINGS = LogSettings(segment_bytes=3_000, index_interval_bytes=300)
HARMS = [how for how in Damage if how is not Damage.OLDER]


def open_log(disk: CrashDisk) -> PartitionLog:
    return PartitionLog.open(filesystem=disk, directory=DIRECTORY, settings=SETTINGS, now_ms=0)


def write(random: Random) -> tuple[CrashDisk, dict[int, bytes]]:
    """A log that was closed cleanly, and its batches by base offset."""
    disk = CrashDisk(page_bytes=512)
    log = open_log(disk)
    written: dict[int, bytes] = {}
    for _ in range(random.randint(5, 60)):
        count = random.randint(1, 20)
        batch = seal(
            random.randbytes(random.choice([0, 7, 80, 400])),
            codec=Codec.NONE,
            record_count=count,
            base_timestamp_ms=1_000,
            max_timestamp_ms=1_000,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
            is_transactional=False,
            base_offset=log.log_end_offset,
            leader_epoch=3,
        )
        header = parse_header(batch)
        if log.needs_roll(len(batch), header.max_timestamp_ms, 0):
            log.roll([])
        log.append(batch, header)
        written[header.base_offset] = bytes(batch[21:])
    log.close([])
    return disk, written


def read(log: PartitionLog, offset: int, max_bytes: int) -> tuple[dict[int, bytes], set[int]]:
    """Batches by base offset, and the offsets that errors named, from ``offset`` on."""
    found: dict[int, bytes] = {}
    lost: set[int] = set()
    while offset < log.log_end_offset:
        try:
            part = log.fetch(offset, max_bytes=max_bytes, upper_offset=log.log_end_offset)
        except CorruptRecordError as error:
            named = range(error.offset, error.next_offset)
        else:
            named = range(0)
        if named:
            assert named.start == offset
            lost.update(named)
            offset = named.stop
            continue
        for at, header in iterate_batches(part.records):
            found[header.base_offset] = part.records[at + 21 : at + header.size_bytes]
        assert part.next_offset > offset
        offset = part.next_offset
    return found, lost


@given(
    st.integers(0, 2**32).map(Random),
    st.sampled_from(HARMS),
    st.booleans(),
    st.sampled_from([1, 500, 1 << 20]),
)
def test_every_offset_is_delivered_or_named_by_an_error(random, harm, is_sealed, max_bytes):
    disk, written = write(random)
    done = damage(disk, DIRECTORY, DamagedKind.LOG, harm, random, is_sealed=is_sealed)
    try:
        log = open_log(disk)
    except CorruptDataError:
        # What recovery refuses names the place too: other tests look at that.
        return
    starts = [0, *random.sample(sorted(written), min(3, len(written)))]
    for start in starts:
        found, lost = read(log, start, max_bytes)
        assert all(written[base] == data for base, data in found.items())
        missing = {base for base in written if base >= start and base not in found}
        assert missing <= lost
        delivered = {
            offset
            for base, data in found.items()
            for offset in range(max(base, start), base + 1 + int.from_bytes(data[2:6], "big"))
        }
        assert delivered | lost == set(range(start, log.log_end_offset))
        if done is None:
            assert not lost


@given(st.integers(0, 2**32).map(Random), st.sampled_from([1, 500, 1 << 20]))
def test_one_flipped_bit_costs_one_batch(random, max_bytes):
    disk, written = write(random)
    done = damage(disk, DIRECTORY, DamagedKind.LOG, Damage.FLIPPED, random, is_sealed=True)
    if done is None:
        return
    log = open_log(disk)
    found, lost = read(log, 0, max_bytes)
    assert len(written) - len(found) <= 1
    assert len(lost) <= 20


@given(st.integers(0, 2**32).map(Random), st.sampled_from([1, 500, 1 << 20]))
def test_whole_batches_that_are_gone_from_the_end_of_a_segment_are_named(random, max_bytes):
    disk, written = write(random)
    bases = sorted(int(path.stem) for path in disk.files() if path.suffix == ".log")
    if len(bases) == 1:
        return
    base = random.choice(bases[:-1])
    path = DIRECTORY / f"{base:020d}.log"
    places = list(iterate_batches(disk.read_whole(path)))
    position, header = random.choice(places)
    handle = disk.open(path, create=False)
    handle.truncate(position)
    handle.close()
    log = open_log(disk)
    found, lost = read(log, log.log_start_offset, max_bytes)
    gone = set(range(header.base_offset, min(b for b in bases if b > base)))
    assert lost == gone
    assert set(found) == {base for base in written if base not in gone}
