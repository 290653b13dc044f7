"""What a power loss may leave of the end of a log, told from damage."""

from __future__ import annotations

import pytest
from crc32c import crc32c

from oncelog.storage.log.recovery import SECTOR_BYTES, looks_torn
from oncelog.storage.segments.inspection import TailDefect, inspect_batch


@pytest.fixture
def batch(make_batch) -> bytes:
    return bytes(make_batch(7, size_bytes=1_500))


def found(data: bytes, position: int = 0) -> tuple[TailDefect, bool]:
    """The defect of the batch at the beginning of ``data``, and whether it looks torn."""
    length = int.from_bytes(data[8:12], "big", signed=True)
    frame = data[: max(61, 12 + length)]
    defect = inspect_batch(frame, 7, leader_epochs=((0, 0),))
    assert isinstance(defect, TailDefect)
    return defect, looks_torn(defect, data, position, 7)


def resealed(batch: bytearray, records: bytes) -> bytes:
    """``batch`` with other records, of the same length."""
    batch[61:] = records
    batch[17:21] = crc32c(bytes(batch[21:])).to_bytes(4, "big")
    return bytes(batch)


@pytest.mark.parametrize("size", [1, 60, 61, 512, 1_499])
def test_batch_that_its_file_ends_in_is_torn(batch, size):
    assert found(batch[:size])[1]


@pytest.mark.parametrize("sector", range(3))
@pytest.mark.parametrize("position", [0, 100, 8 * 512 + 300, 450, 500])
def test_batch_with_a_lost_sector_is_torn(batch, position, sector):
    data = bytearray(bytes(position) + batch)
    begin = max(position, (position // SECTOR_BYTES + sector) * SECTOR_BYTES)
    end = (position // SECTOR_BYTES + sector + 1) * SECTOR_BYTES
    data[begin:end] = bytes(len(data[begin:end]))
    assert found(bytes(data[position:]), position)[1]


@pytest.mark.parametrize("follows", [False, True])
def test_batch_with_any_flipped_bit_is_not_torn(batch, make_batch, follows):
    """Also in its length, which no CRC covers, and which may then reach beyond the file."""
    after = bytes(make_batch(8)) if follows else b""
    for byte in [*range(61), *range(61, 1_500, 97)]:
        for bit in range(8):
            data = bytearray(batch + after)
            data[byte] ^= 1 << bit
            defect, is_torn = found(bytes(data), 4_096)
            assert not is_torn, (byte, bit, defect)


@pytest.mark.parametrize("torn_after", [None, 700, 61])
@pytest.mark.parametrize("position", [0, 100, 4_096 + 504, 4_096 + 509])
def test_batch_of_zeros_with_any_flipped_bit_is_not_torn(make_batch, position, torn_after):
    """Its sectors may all be zeros, and what follows may be torn: one bit explains all of it."""
    batch = resealed(make_batch(7, size_bytes=3_000), bytes(2_939))
    after = b"" if torn_after is None else bytes(make_batch(8, size_bytes=1_500))[:torn_after]
    for byte in [*range(61), 62, 1_023, 1_024, 1_500, 2_998, 2_999]:
        for bit in range(8):
            data = bytearray(batch + after)
            data[byte] ^= 1 << bit
            defect, is_torn = found(bytes(data), position)
            assert not is_torn, (byte, bit, defect)


def test_one_bit_is_found_wherever_it_is_in_a_large_batch(make_batch):
    size = 1 << 20
    batch = bytearray(resealed(make_batch(7, size_bytes=size), bytes(size - 61)))
    for byte in (21, 61, size // 2, size - 513, size - 1):
        for bit in (0, 7):
            batch[byte] ^= 1 << bit
            assert found(bytes(batch)) == (TailDefect.BAD_CRC, False)
            batch[byte] ^= 1 << bit


def test_two_bits_in_a_batch_with_a_sector_of_zeros_look_torn(make_batch):
    batch = bytearray(resealed(make_batch(7, size_bytes=2_000), b"x" * 451 + bytes(1_488)))
    batch[70] ^= 3
    assert found(bytes(batch)) == (TailDefect.BAD_CRC, True)


@pytest.mark.parametrize("size_bytes", range(1_086, 1_156))
def test_bits_count_from_the_first_under_the_crc_to_the_last(make_batch, size_bytes):
    """A CRC that is wrong as by a bit before them is wrong for another reason."""
    batch = bytearray(resealed(make_batch(7, size_bytes=size_bytes), bytes(size_bytes - 61)))
    checked = size_bytes - 21
    stored = int.from_bytes(batch[17:21], "big")
    for byte, value, is_torn in ((0, 0x80, True), (1, 0x01, False), (checked, 0x80, False)):
        bit = bytearray(1 + checked)
        bit[byte] = value
        syndrome = crc32c(bytes(bit)) ^ crc32c(bytes(1 + checked))
        batch[17:21] = (stored ^ syndrome).to_bytes(4, "big")
        assert found(bytes(batch)) == (TailDefect.BAD_CRC, is_torn)


def test_base_offset_with_its_first_bytes_in_a_lost_sector_is_torn(make_batch):
    """Only if these were not zeros anyway; no CRC covers them."""
    for offset, is_torn in ((7, False), (300, True), (1 << 40, True)):
        data = bytearray(make_batch(offset, size_bytes=1_500))
        data[0:7] = bytes(7)
        data[7] ^= 0 if is_torn else 1
        defect = inspect_batch(bytes(data), offset)
        assert defect is TailDefect.WRONG_OFFSET
        assert looks_torn(defect, bytes(data), 505, offset) is is_torn
        assert not looks_torn(defect, bytes(data), 512, offset)


def test_records_that_are_zeros_do_not_look_lost_unless_a_sector_is():
    data = bytearray(2_000)
    data[:] = b"\x01" * 2_000
    data[8:12] = (1_988).to_bytes(4, "big")
    data[16] = 2
    data[600:1_000] = bytes(400)
    assert not looks_torn(TailDefect.BAD_CRC, bytes(data), 0, 7)
    data[512:1_024] = bytes(512)
    assert looks_torn(TailDefect.BAD_CRC, bytes(data), 0, 7)


def test_what_the_disk_does_not_give_back_is_no_torn_tail():
    assert not looks_torn(TailDefect.UNREADABLE, bytes(512), 0, 7)
