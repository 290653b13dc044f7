"""Every way to a CRC-32C gives the library's number, at every length and alignment."""

from __future__ import annotations

import random

import crc32c
import pytest

from oncelog.storage.records import compiled

BYTES = random.Random(1).randbytes(40_000)
LENGTHS = (*range(700), 1_535, 1_536, 1_537, 6_143, 6_144, 6_145, 20_011, 39_900)


@pytest.mark.parametrize("method", compiled.kernel.CRC_METHODS)
def test_each_method_gives_the_number_of_the_library(method: str) -> None:
    for length in LENGTHS:
        data = memoryview(BYTES)[length % 67 :][:length]
        assert compiled.kernel.crc32c_by(method, data) == crc32c.crc32c(data), length


def test_the_one_in_use_gives_the_number_of_the_library() -> None:
    for length in LENGTHS:
        data = memoryview(BYTES)[length % 67 :][:length]
        assert compiled.crc32c(data) == crc32c.crc32c(data), length
    assert compiled.crc32c(b"123456789") == 0xE3069283


def test_the_fastest_method_is_in_use_if_it_is_faster_than_the_library() -> None:
    by_kernel = compiled.crc32c is compiled.kernel.crc32c
    assert by_kernel == (len(compiled.kernel.CRC_METHODS) > 1)


def test_a_method_that_the_processor_does_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no CRC by 'guessing' here, but by .*tables"):
        compiled.kernel.crc32c_by("guessing", b"")
