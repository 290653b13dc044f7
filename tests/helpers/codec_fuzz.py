"""Hostile batches against the record codec, in a process with little memory.

``python codec_fuzz.py SEED ROUNDS [MEMORY_MIB]`` exits with 0 if only errors of the promised types
were ever raised, and rows, columns and the oracle agreed on every batch. Without the memory limit
it also runs under AddressSanitizer: inputs are exact allocations, so reading one byte too many is
detected.
"""

from __future__ import annotations

import ctypes
import random
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import crc32c
import pyarrow as pa
from record_oracle import decode_rows as decode_by_oracle

from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.records import compiled
from oncelog.storage.records.batch import parse_header, seal
from oncelog.storage.records.block import open_block
from oncelog.storage.records.codec import Record, decode_columns, decode_records, encode_records
from oncelog.storage.records.compression import Codec, compress
from oncelog.storage.records.layout import HEADER_BYTES
from oncelog.storage.records.varint import encode_varlong

MIB = 1 << 20
BOMB_BYTES = 200 * MIB
PIECES = [
    *(encode_varlong(number) for number in (0, -1, -2, 1, 63, 64, 2**31 - 1, -(2**31), 2**63 - 1)),
    *(bytes.fromhex(text) for text in ("ff" * 5, "ff" * 10, "80" * 9 + "01", "ffffffffff01")),
    *(bytes.fromhex(text) for text in ("c0af", "eda080", "f4908080", "fe", "e28000", "00")),
]
"""Numbers at their edges, numbers without end, and what looks like UTF-8."""


def exact(data: bytes) -> memoryview:
    """``data`` in an allocation of just its size."""
    return memoryview((ctypes.c_char * len(data)).from_buffer_copy(data)).cast("B")


def make_records(chance: random.Random) -> list[Any]:
    def text(size_max: int) -> bytes | None:
        return None if chance.random() < 0.2 else chance.randbytes(chance.randrange(size_max))

    return [
        (
            text(20),
            text(chance.choice([2, 40, 300])),
            chance.choice([0, 1_700_000_000_000, -(2**62), 2**61]) + chance.randrange(1000),
            [("ä" * chance.randrange(4), text(9)) for _ in range(chance.choice([0, 0, 0, 1, 3]))],
        )
        for _ in range(chance.choice([1, 2, 5, 140]))
    ]


def damaged(block: bytearray, chance: random.Random) -> bytearray:
    for _ in range(chance.choice([0, 1, 1, 2, 8])):
        at = chance.randrange(len(block) + 1)
        piece = chance.choice(PIECES)
        action = chance.randrange(5)
        if action == 0:
            block[at:at] = piece
        elif action == 1:
            block[at : at + len(piece)] = piece
        elif action == 2:
            del block[at : at + chance.randrange(1, 9)]
        elif action == 3:
            del block[at:]
        elif at < len(block):
            block[at] = chance.randrange(256)
    return block


def hostile(chance: random.Random) -> bytes:
    """A batch with damaged records, or wrong fields, or both, that mostly has a right CRC."""
    good = encode_records(make_records(chance))
    header = parse_header(good)
    block = damaged(bytearray(good[HEADER_BYTES:]), chance)
    count = header.record_count
    edges = [0, -1, 1, count + 1, 2**31 - 1, -(2**31), len(block) // 7]
    codec = chance.choice([Codec.NONE] * 6 + list(Codec))
    stored = bytes(block)
    if chance.random() < 0.9:
        stored = bytes(compress(codec, stored))
    last_delta = chance.choice([count - 1] * 5 + edges)
    batch = seal(
        stored,
        codec=codec,
        record_count=chance.choice([count] * 8 + edges),
        base_timestamp_ms=chance.choice([header.base_timestamp_ms] * 4 + [2**63 - 1, -(2**63)]),
        max_timestamp_ms=header.max_timestamp_ms,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        is_transactional=False,
        base_offset=chance.choice([0, 10**12, 2**63 - 1, -(2**63)]),
        last_offset_delta=last_delta,
    )
    if chance.random() < 0.05:
        batch[chance.randrange(len(batch))] ^= 1 << chance.randrange(8)
    if chance.random() < 0.02:
        del batch[chance.randrange(1, len(batch)) :]
    return bytes(batch)


def outcome(decode: Callable[[], Any]) -> Any:
    """What comes out; None for damage. Every other error ends this process."""
    try:
        return decode()
    except CorruptDataError:
        return None


def rows_of(columns: pa.RecordBatch) -> list[Any]:
    return [
        (
            row["offset"],
            row["timestamp_ms"],
            row["key"],
            row["value"],
            tuple((header["key"], header["value"]) for header in row["headers"]),
        )
        for row in columns.to_pylist()
    ]


def rows_by_oracle(batch: bytes) -> list[Any]:
    header = parse_header(batch)
    return decode_by_oracle(bytes(open_block(batch, header)), header)


def check_batch(batch: bytes) -> bool:
    """Whether the batch is sound; rows, columns and the oracle must agree."""
    rows = outcome(lambda: decode_records(exact(batch)))
    if rows != outcome(lambda: rows_by_oracle(batch)):
        raise AssertionError(f"{batch.hex()}: the oracle differs from {rows}")
    columns = outcome(lambda: decode_columns([exact(batch)]))
    if columns is not None:
        columns.validate(full=True)
        columns = rows_of(columns)
    # Rows ignore what follows their batch, which columns take for another one.
    agree = columns == rows or (columns is None and rows is not None and has_more(batch))
    if not agree:
        raise AssertionError(f"{batch.hex()}: rows {rows}, columns {columns}")
    return rows is not None


def has_more(batch: bytes) -> bool:
    return parse_header(batch).size_bytes < len(batch)


def check_bombs() -> None:
    """Little bytes that become many must be refused, or fail for want of memory, and no worse."""
    zeros = bytes(BOMB_BYTES)
    for codec in (Codec.GZIP, Codec.LZ4, Codec.ZSTD):
        bomb = seal_plain(compress(codec, zeros), codec, 1)
        assert outcome(lambda bomb=bomb: decode_records(bomb)) is None
        assert outcome(lambda bomb=bomb: decode_columns([bomb])) is None
    del zeros
    # As many records as may be: memory for each is asked for before the second is found wrong.
    record = bytes.fromhex("0c000000010100")
    count = 100 * MIB // len(record)
    bomb = seal_plain(compress(Codec.ZSTD, record * count), Codec.ZSTD, count)
    for decode in (lambda: decode_records(bomb), lambda: decode_columns([bomb])):
        try:
            assert outcome(decode) is None
        except MemoryError:
            continue


def seal_plain(stored: Any, codec: Codec, count: int) -> bytes:
    return bytes(
        seal(
            stored,
            codec=codec,
            record_count=count,
            base_timestamp_ms=0,
            max_timestamp_ms=0,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
            is_transactional=False,
        )
    )


def check_columns(kernel: Any, chance: random.Random) -> None:
    """Columns that contradict themselves, straight into the kernel."""

    def strings(count: int) -> Any:
        first = chance.choice([0, 0, 1, 7, -1, 2**40])
        ends = [0]
        for _ in range(count + max(0, min(first, 9)) + chance.choice([0, 0, -1])):
            ends.append(
                ends[-1] + chance.choice([0, 1, 17, 40, -1 if chance.random() < 0.02 else 3])
            )
        size = max(0, ends[-1] - (chance.random() < 0.1))
        if chance.random() < 0.1:
            ends[chance.randrange(len(ends))] = chance.choice([-1, 2**31 - 1, -(2**31), 5])
        offsets = b"".join(end.to_bytes(4, "little", signed=True) for end in ends)
        bits = exact(chance.randbytes((count + 7) // 8 + chance.choice([1, 1, 0])))
        return first, chance.choice([None, bits]), exact(offsets), exact(chance.randbytes(size))

    count = chance.choice([1, 2, 9, 100, 0, -1])
    used = max(count, 0)
    lists = strings(used)
    headers = (*lists[:3], strings(200), strings(200)) if chance.random() < 0.3 else None
    times = exact(b"".join(chance.randbytes(6) + b"\0\0" for _ in range(used)))
    try:
        batch, _, _ = kernel.encode_columns(
            count,
            chance.choice([None, strings(used)]),
            strings(used),
            chance.choice([times, 5, times[: max(0, 8 * used - 1)], -(2**63)]),
            headers,
            HEADER_BYTES,
            chance.choice([2**27, 50, 0]),
        )
    except ValueError:
        return
    block = memoryview(batch)[HEADER_BYTES:]
    rows = kernel.Rows(block, count, 0, count, 0, 0, False, Record, (), chance.randrange(count + 2))
    left = rows.left
    assert len(rows.take(chance.randrange(left + 2)) + rows.take(left)) == left <= count


def run_of_batches(chance: random.Random) -> bytes:
    """Batches one after the other, mostly sound, some damaged, hostile or cut off."""
    parts, offset = [], chance.choice([0, 0, 7, 2**31 - 300, 2**62])
    for _ in range(chance.choice([0, 1, 2, 5, 40])):
        delta = chance.choice([0, 0, 1, 9, 2**31 - 1 if chance.random() < 0.05 else 3])
        is_control = chance.random() < 0.1
        batch = seal(
            chance.randbytes(chance.choice([0, 1, 7, 8, 100, 300, 512, 1300, 7000])),
            codec=Codec.NONE,
            record_count=1,
            base_timestamp_ms=0,
            max_timestamp_ms=chance.choice([-1, 0, 5, chance.randrange(10**6), 2**63 - 1]),
            producer_id=-1 if chance.random() < 0.3 else chance.choice([0, 1, 2, 2**63 - 1]),
            producer_epoch=chance.choice([0, 0, 1, 32767]),
            base_sequence=-1 if is_control else chance.choice([0, 5, 2**31 - 1, -1]),
            is_transactional=chance.random() < 0.2,
            is_control=is_control,
            base_offset=min(offset, 2**63 - 1),
            leader_epoch=chance.choice([0] * 8 + [1, 2**31 - 1, -1]),
            last_offset_delta=delta,
        )
        offset += delta + 1 + chance.choice([0] * 9 + [4])
        if chance.random() < 0.1:
            batch[chance.randrange(len(batch))] ^= 1 << chance.randrange(8)
        if chance.random() < 0.03:
            batch[:61] = chance.randbytes(61)
        parts.append(bytes(batch))
    whole = b"".join(parts)
    return whole[: chance.randrange(len(whole) + 1)] if chance.random() < 0.2 else whole


def check_scan(kernel: Any, chance: random.Random) -> bool:
    """Batches into the loops that go over them; whether all were sound."""
    data = exact(run_of_batches(chance))
    numbers = [0, 0, 0, 7, -1, 2**62, 2**63 - 1]
    epochs = exact(
        b"".join(
            chance.choice([0, 0, 1, -1, 2**62]).to_bytes(8, "little", signed=True)
            for _ in range(chance.choice([0, 0, 1, 2, 4, 7]))
        )
    )
    lowest = chance.choice(numbers)
    at, expected = kernel.skip_sound(data, crc32c.crc32c, lowest)
    assert 0 <= at <= len(data)
    assert expected >= lowest
    try:
        taken, after, _, columns, _ = kernel.scan_batches(
            data,
            crc32c.crc32c,
            chance.choice([0, 0, 61, 2**32 - 200, 2**62, -1]),
            chance.choice(numbers),
            chance.choice(numbers),
            chance.choice(numbers),
            epochs,
            chance.choice([-1, 0, 2**31]),
            chance.choice([0, 1, 60, 61, 300, 4096, 2**62, -1, -(2**63)]),
            (chance.choice(numbers), -1, -1, chance.choice(numbers)),
        )
        assert 0 <= taken <= len(data)
        assert after >= -1
        assert len(columns[0]) == len(columns[1])
        assert 2 * len(columns[3]) == len(columns[2])
    except ValueError:
        pass
    end, _, _, places = kernel.state_batches(
        data,
        crc32c.crc32c,
        chance.random() < 0.5,
        chance.choice(numbers),
        epochs,
        chance.choice([-1, 0, 2**31]),
        chance.choice([5, 1, 0, -1]),
        chance.choice(numbers),
        chance.choice(numbers),
        chance.choice(numbers),
    )
    assert places == sorted(set(places))
    assert all(0 <= place < end for place in places)
    assert end <= len(data)
    return at == len(data)


def check_crcs(kernel: Any, chance: random.Random) -> None:
    """Every way to a CRC, over bytes that end and begin with their allocation."""
    data = exact(chance.randbytes(chance.choice([chance.randrange(1, 700), 6_200, 20_000])))
    for method in kernel.CRC_METHODS:
        assert kernel.crc32c_by(method, data) == crc32c.crc32c(data), (method, len(data))


def limit_memory(more_mib: int) -> None:
    """Allow this process so much more than it has now."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = pages * resource.getpagesize() + more_mib * MIB
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def main(seed: int, rounds: int, memory_mib: int = 0) -> None:
    chance, kernel = random.Random(seed), compiled.kernel
    if memory_mib:
        limit_memory(memory_mib)
        check_bombs()
    sound = sum(check_batch(hostile(chance)) for _ in range(rounds))
    for _ in range(rounds):
        check_columns(kernel, chance)
        check_crcs(kernel, chance)
    whole = sum(check_scan(kernel, chance) for _ in range(rounds))
    assert rounds < 200 or rounds // 20 < whole < rounds * 19 // 20, whole
    # A fuzzer that only ever makes garbage, or never any, tests little.
    assert rounds < 200 or rounds // 20 < sound < rounds * 19 // 20, sound
    sys.stdout.write(f"{sound} of {rounds} sound\n")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
