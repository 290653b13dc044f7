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
        return INVALID_RECORD if attributes & TRANSACTIONAL else NO_FAULT
    if head.producer_id < 0 or head.producer_epoch < 0 or head.base_sequence < 0:
        return INVALID_RECORD
    return NO_FAULT


def client_fault(data, int64_t message_max_bytes):
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    cdef int fault = find_client_fault(<const uint8_t *>view.buf, view.len, message_max_bytes)
    PyBuffer_Release(&view)
    return fault
