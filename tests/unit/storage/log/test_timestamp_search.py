from __future__ import annotations

import pytest

from oncelog.storage.records.batch import parse_header, stamp_log_append_time
from oncelog.storage.records.codec import encode_records


@pytest.fixture
def put():
    def put_batch(log, *times: int, append_time: int | None = None) -> None:
        batch = encode_records([(None, b"v", time, ()) for time in times])
        if append_time is not None:
            stamp_log_append_time(batch, append_time)
        batch[:8] = log.log_end_offset.to_bytes(8, "big")
        header = parse_header(batch)
        if log.needs_roll(len(batch), header.max_timestamp_ms, 0):
            log.roll([])
        log.append(batch, header)

    return put_batch


def test_times_out_of_order_give_the_first_record_in_offset_order(open_log, put):
    log = open_log(index_interval_bytes=1)
    put(log, 500, 100)
    put(log, 50, 300)
    put(log, 900, 200)
    assert log.offset_for_timestamp(250, 6) == (0, 500)
    assert log.offset_for_timestamp(501, 6) == (4, 900)
    assert log.max_timestamp() == (4, 900)


def test_append_time_holds_for_every_record(open_log, put):
    log = open_log()
    put(log, 1, 2, 3, append_time=700)
    assert log.offset_for_timestamp(600, 3) == (0, 700)
    assert log.offset_for_timestamp(701, 3) is None


def test_largest_timestamp_may_be_in_an_older_segment(open_log, put):
    log = open_log(segment_bytes=100)
    put(log, 900)
    put(log, 100)
    put(log, 200)
    assert log.segment_count == 3
    assert log.max_timestamp() == (0, 900)
    log.close([])
    assert open_log(segment_bytes=100).max_timestamp() == (0, 900)


def test_record_below_the_log_start_is_not_found(open_log, put):
    log = open_log()
    put(log, 100, 200, 300)
    put(log, 400)
    log.log_start_offset = 2
    assert log.offset_for_timestamp(50, 4) == (2, 300)
    log.log_start_offset = 3
    assert log.offset_for_timestamp(50, 4) == (3, 400)
