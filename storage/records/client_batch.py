"""What a leader checks in a client's batch before it accepts it.

Size, CRC, the fields of the header, and of uncompressed records their structure: a batch that no
reader can decode would stop every reader for good, so it is refused. Records are walked by their
lengths only; nothing is copied. A leader does not open compressed records: a reader may still meet
some that cannot be decoded; its error then names the offset.
"""

from __future__ import annotations

from typing import Final

from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.model import NO_PRODUCER_ID
from oncelog.storage.records import compiled
from oncelog.storage.records.batch import BatchHeader, Buffer, crc_matches, parse_header
from oncelog.storage.records.compression import Codec
from oncelog.storage.records.layout import CODEC_MASK, HEADER_BYTES, RECORD_BYTES_MIN, TRANSACTIONAL

_CODEC_MAX: Final = int(max(Codec))
_CLIENT_ATTRIBUTES: Final = CODEC_MASK | TRANSACTIONAL


def check_client_batch(buffer: Buffer, *, message_max_bytes: int) -> BatchHeader | ErrorCode:
    """The header of the one batch a client sent, or why a leader must refuse all of ``buffer``.

    Returns ``CORRUPT_MESSAGE`` (retriable: the bytes were damaged on the way),
    ``MESSAGE_TOO_LARGE``, ``INVALID_TIMESTAMP`` or ``INVALID_RECORD``. What needs more than the
    bytes (role, sequences, tickets) is checked elsewhere.
    """
    if not buffer:
        return ErrorCode.INVALID_RECORD
    try:
        header = parse_header(buffer)
    except CorruptDataError:
        return ErrorCode.CORRUPT_MESSAGE
    size_bytes = header.size_bytes
    if size_bytes > len(buffer):
        return ErrorCode.CORRUPT_MESSAGE
    if size_bytes > message_max_bytes:
        return ErrorCode.MESSAGE_TOO_LARGE
    if not crc_matches(buffer, header):
        return ErrorCode.CORRUPT_MESSAGE
    if header.is_log_append_time:
        return ErrorCode.INVALID_TIMESTAMP
    is_alone = size_bytes == len(buffer)
    if not (is_alone and _has_client_shape(header) and _has_producer_fields(header)):
        return ErrorCode.INVALID_RECORD
    return header if _has_whole_records(buffer, header) else ErrorCode.INVALID_RECORD


def _has_client_shape(header: BatchHeader) -> bool:
    """Whether offsets, counts and attributes are what a client may send.

    A client's batch is dense, so a count that its bytes cannot hold would burn offsets. Under
    compression that shows only on decompression, which a leader does not do.
    """
    attributes, record_count = header.attributes, header.record_count
    codec = attributes & CODEC_MASK
    return (
        header.base_offset == 0
        and record_count > 0
        and record_count == header.last_offset_delta + 1
        and not attributes & ~_CLIENT_ATTRIBUTES
        and codec <= _CODEC_MAX
        and (
            codec != Codec.NONE
            or record_count * RECORD_BYTES_MIN <= header.size_bytes - HEADER_BYTES
        )
    )


def _has_producer_fields(header: BatchHeader) -> bool:
    """Whether producer id, epoch and sequence are all present, or there is no producer."""
    if header.producer_id == NO_PRODUCER_ID:
        return not header.is_transactional
    return header.producer_id >= 0 and header.producer_epoch >= 0 and header.base_sequence >= 0


def _has_whole_records(buffer: Buffer, header: BatchHeader) -> bool:
    """Whether every reader can decode the records, if they are not compressed."""
    if header.attributes & CODEC_MASK:
        return True
    return compiled.kernel.has_whole_records(buffer)
