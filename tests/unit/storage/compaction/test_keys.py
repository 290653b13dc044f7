from __future__ import annotations

from oncelog.storage.compaction.filter import KeyOffsets


def test_only_the_newest_record_of_a_key_is_latest():
    keys = KeyOffsets()
    keys.put(b"a", 1)
    keys.put(b"a", 5)
    assert not keys.is_latest(b"a", 1)
    assert keys.is_latest(b"a", 5)
    assert keys.is_latest(b"a", 9)
    assert keys.is_latest(b"unknown", 0)


def test_long_key_is_told_from_others_of_its_length_and_from_its_digest():
    keys = KeyOffsets()
    keys.put(b"k" * 100, 5)
    (digest,) = keys._offsets
    assert len(digest) == 16
    assert not keys.is_latest(b"k" * 100, 4)
    assert keys.is_latest(b"k" * 99 + b"l", 4)
    assert keys.is_latest(digest, 4)


def test_full_map_refuses_a_batch_but_an_empty_one_takes_any():
    keys = KeyOffsets(keys_max=3)
    assert keys.has_room_for(10)
    keys.put(b"a", 0)
    keys.put(b"b", 1)
    assert keys.has_room_for(1)
    assert not keys.has_room_for(2)
