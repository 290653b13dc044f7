# What a leader checks of a batch that a client sent. Part of _kernel.pyx.

cdef enum ClientFault:
    # The numbers of ``ErrorCode``.
    NO_FAULT = 0
    CORRUPT_MESSAGE = 2
    MESSAGE_TOO_LARGE = 10
    INVALID_TIMESTAMP = 32
    INVALID_RECORD = 87

cdef enum:
    CODEC_MAX = 4


cdef bint has_whole(const uint8_t *at, Py_ssize_t size, int32_t count) noexcept nogil:
    """Whether ``count`` records with the offset deltas from 0 on fill the batch at ``at``."""
    cdef Batch batch
    cdef Fields fields
    cdef HeaderTotals totals = HeaderTotals(0, 0, 0, 0)
    cdef int32_t index
    batch.at, batch.end = at + HEADER_BYTES, at + size
    batch.base_offset, batch.last_delta, batch.count = 0, count - 1, count
    batch.base_time, batch.max_time, batch.is_append_time = big64(at + 27), 0, False
    for index in range(count):
        if get_record(&batch, batch.at, index, &fields) != FITS or fields.offset != index:
            return False
        if fields.header_count and not check_headers(&fields, &totals):
            return False
        batch.at = fields.end
    return batch.at == batch.end


cdef ClientFault find_client_fault(
    const uint8_t *at, Py_ssize_t room, int64_t size_max
) noexcept nogil:
    cdef Head head
    cdef uint16_t attributes
    cdef int64_t record_count
    if room == 0:
        return INVALID_RECORD
    if get_head(at, room, &head) != WHOLE:
        return CORRUPT_MESSAGE
    if head.size > size_max:
        return MESSAGE_TOO_LARGE
    if crc32c_of(at + CHECKED_AT, head.size - CHECKED_AT) != big32(at + 17):
        return CORRUPT_MESSAGE
    attributes = <uint16_t>(<uint16_t>at[21] << 8 | at[22])
    if attributes & LOG_APPEND_TIME:
        return INVALID_TIMESTAMP
    record_count = <int32_t>big32(at + 57)
    if (
        head.size != room
        or head.base_offset != 0
        or record_count <= 0
        or record_count != <int64_t><int32_t>big32(at + 23) + 1
        or attributes & ~(CODEC_MASK | TRANSACTIONAL)
        or attributes & CODEC_MASK > CODEC_MAX
    ):
        return INVALID_RECORD
    if not attributes & CODEC_MASK and record_count * RECORD_BYTES_MIN > head.size - HEADER_BYTES:
        return INVALID_RECORD
    if head.producer_id == -1:
        if attributes & TRANSACTIONAL:
            return INVALID_RECORD
    elif head.producer_id < 0 or head.producer_epoch < 0 or head.base_sequence < 0:
        return INVALID_RECORD
    if not attributes & CODEC_MASK and not has_whole(at, head.size, <int32_t>record_count):
        return INVALID_RECORD
    return NO_FAULT


def client_fault(data, int64_t message_max_bytes):
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    cdef int fault = find_client_fault(<const uint8_t *>view.buf, view.len, message_max_bytes)
    PyBuffer_Release(&view)
    return fault


def has_whole_records(data):
    """For who has checked all but the records of the one batch in ``data``."""
    cdef View view = View(data)
    if view.size < HEADER_BYTES:
        return False
    return has_whole(view.at, view.size, <int32_t>big32(view.at + 57))
