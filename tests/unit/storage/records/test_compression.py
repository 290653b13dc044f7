"""Codecs: what they write, what they accept, and how far they inflate."""

from __future__ import annotations

import gzip
import subprocess
import sys

import pyarrow as pa
import pytest

from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.records.compression import LEVELS, Codec, compress, decompress

DATA = b'{"carrier": "UA", "delay": -4}' * 5000
REAL = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("data", [b"", b"x", DATA])
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_compressed_bytes_come_back(codec: Codec, data: bytes, kind: type) -> None:
    compressed = compress(codec, kind(data))
    assert bytes(decompress(codec, kind(compressed), limit_bytes=len(DATA))) == data


@pytest.mark.parametrize("codec", REAL)
def test_repetitive_bytes_shrink(codec: Codec) -> None:
    assert len(compress(codec, DATA)) < len(DATA) // 5


@pytest.mark.parametrize("codec", LEVELS)
def test_the_levels_of_a_codec_are_those_that_it_takes(codec: Codec) -> None:
    words = " ".join(str(number * number) for number in range(20_000)).encode()
    low, high, default = LEVELS[codec]
    fast, thorough = (compress(codec, words, level=level) for level in (low, high))
    assert len(thorough) < len(fast)
    for compressed in (fast, thorough):
        assert decompress(codec, compressed, limit_bytes=len(words)) == words
    assert compress(codec, words, level=default) == compress(codec, words)
    name = codec.name.lower()
    assert low == pa.Codec.minimum_compression_level(name)
    assert high == pa.Codec.maximum_compression_level(name)


@pytest.mark.parametrize("codec", Codec)
def test_block_that_just_fits_the_limit_is_accepted(codec: Codec) -> None:
    assert bytes(decompress(codec, compress(codec, DATA), limit_bytes=len(DATA))) == DATA


@pytest.mark.parametrize("codec", Codec)
def test_block_one_byte_over_the_limit_is_corrupt(codec: Codec) -> None:
    with pytest.raises(CorruptDataError, match="exceed"):
        decompress(codec, compress(codec, DATA), limit_bytes=len(DATA) - 1)


@pytest.mark.parametrize("codec", REAL)
def test_small_block_that_inflates_enormously_is_corrupt(codec: Codec) -> None:
    bomb = compress(codec, bytes(32 * 1024 * 1024))
    with pytest.raises(CorruptDataError, match="exceed"):
        decompress(codec, bomb, limit_bytes=1024 * 1024)


@pytest.mark.parametrize("codec", REAL)
@pytest.mark.parametrize("garbage", [b"\xff" * 40, b"\x00" * 5])
def test_bytes_of_no_codec_are_corrupt(codec: Codec, garbage: bytes) -> None:
    with pytest.raises(CorruptDataError):
        decompress(codec, garbage, limit_bytes=1000)


@pytest.mark.parametrize("codec", REAL)
@pytest.mark.parametrize("cut", [1, 9])
def test_block_cut_short_is_corrupt(codec: Codec, cut: int) -> None:
    compressed = compress(codec, DATA)
    with pytest.raises(CorruptDataError):
        decompress(codec, compressed[:-cut], limit_bytes=len(DATA))


def test_gzip_members_are_joined() -> None:
    members = gzip.compress(b"one") + gzip.compress(b"two")
    assert decompress(Codec.GZIP, members, limit_bytes=6) == b"onetwo"


def test_gzip_members_share_one_limit() -> None:
    members = gzip.compress(b"one") + gzip.compress(b"two")
    with pytest.raises(CorruptDataError, match="exceed 5 bytes"):
        decompress(Codec.GZIP, members, limit_bytes=5)


def test_snappy_is_written_in_the_framing_of_java() -> None:
    # Header, then the size of the one block, then the block: its size 3, a literal of 3 bytes.
    assert compress(Codec.SNAPPY, b"abc").hex() == (
        "82534e4150505900" + "00000001" + "00000001" + "00000005" + "0308616263"
    )


def test_raw_snappy_is_read_too() -> None:
    assert decompress(Codec.SNAPPY, bytes.fromhex("0308616263"), limit_bytes=3) == b"abc"


@pytest.mark.parametrize("tail", ["0000", "00000000", "ffffffff", "00000006" + "0308616263"])
def test_snappy_block_of_impossible_size_is_corrupt(tail: str) -> None:
    framed = compress(Codec.SNAPPY, b"abc") + bytes.fromhex(tail)
    with pytest.raises(CorruptDataError, match="snappy block"):
        decompress(Codec.SNAPPY, framed, limit_bytes=100)


def test_moving_batches_never_loads_pyarrow() -> None:
    script = (
        "import sys, oncelog.storage.records.control, oncelog.storage.records.codec as codec\n"
        "from oncelog.storage.records.compression import Codec\n"
        "gzip = Codec.GZIP\n"
        "codec.decode_records(codec.encode_records([(None, b'v', 0, ())], codec=gzip))\n"
        "sys.exit('pyarrow' in sys.modules or 'numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
