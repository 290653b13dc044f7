"""What a power loss may leave of the end of a log, told from damage."""

from __future__ import annotations

import pytest

from oncelog.storage.recovery import TailDefect, inspect_batch
from oncelog.storage.torn_tail import SECTOR_BYTES, looks_torn


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


def test_records_that_are_zeros_do_not_look_lost_unless_a_sector_is():
    data = bytearray(2_000)
    data[:] = b"\x01" * 2_000
    data[8:12] = (1_988).to_bytes(4, "big")
    data[600:1_000] = bytes(400)
    assert not looks_torn(TailDefect.BAD_CRC, bytes(data), 0, 7)
    data[512:1_024] = bytes(512)
    assert looks_torn(TailDefect.BAD_CRC, bytes(data), 0, 7)
