"""Where the fields of record batch v2 lie, for Python and C alike.

======  ====  ==========================================================================
offset  size  field (big-endian)
======  ====  ==========================================================================
0       8     base_offset; set by the leader, a producer sends 0; outside the CRC
8       4     batch_length: the bytes that follow this field, at least 49
12      4     leader_epoch; set by the leader, a producer sends -1; outside the CRC
16      1     magic: 2
17      4     crc: CRC-32C of the bytes from 21 to the end
21      2     attributes: bits 0-2 codec, 3 LogAppendTime, 4 transactional, 5 control,
              6 base_timestamp holds a delete horizon, 7-15 zero
23      4     last_offset_delta: last_offset - base_offset; survives compaction
27      8     base_timestamp_ms: of the first record, not the smallest
35      8     max_timestamp_ms; the append time if LogAppendTime
43      8     producer_id, -1 if none
51      2     producer_epoch, -1 if none
53      4     base_sequence, -1 if none
57      4     record_count; may be 0 after compaction
61            records, compressed as one block if the codec is not NONE
======  ====  ==========================================================================

The kernel has the same names and numbers in ``_layout.pxi``, which ``tests/arch`` compares. Source:
KIP-98 with the layout that Kafka 0.11 shipped.
"""

from __future__ import annotations

import struct
from typing import Final

LENGTH_AT: Final = 8
LENGTH_END: Final = 12
LEADER_EPOCH_AT: Final = 12
MAGIC_AT: Final = 16
CRC_AT: Final = 17
CHECKED_AT: Final = 21
"""The CRC covers the bytes from here to the end."""
ATTRIBUTES_AT: Final = 21
LAST_OFFSET_DELTA_AT: Final = 23
BASE_TIMESTAMP_AT: Final = 27
MAX_TIMESTAMP_AT: Final = 35
PRODUCER_AT: Final = 43
RECORD_COUNT_AT: Final = 57
HEADER_BYTES: Final = 61
"""The size of a batch without records."""

RECORD_BYTES_MIN: Final = 7
"""The smallest record: no key, no value, no headers, every number in one byte."""

MARKER_RECORD_BYTES: Final = 17
"""The record of a transaction's marker, as ``control`` writes it."""

MAGIC: Final = 2

CODEC_MASK: Final = 0x07
LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
DELETE_HORIZON: Final = 0x40

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
"""All fields in their order."""

PLACE: Final = struct.Struct(">qi11xi8xq")
"""Base offset, batch length, last offset delta and maximum timestamp."""
