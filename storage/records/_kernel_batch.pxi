# Whole batches by their headers: shared by all code that walks batches. Part of _kernel.pyx.

cdef enum Damage:
    WHOLE = 0
    SHORT_HEADER = 1
    BAD_HEADER = 2
    SHORT_BATCH = 3

cdef struct Head:
    # ``next_offset`` is ``base_offset`` if the batch ends beyond all offsets.
    int64_t base_offset
    int64_t next_offset
    int64_t base_time
    int64_t max_time
    Py_ssize_t size
    int32_t leader_epoch
    int32_t last_delta
    int32_t record_count
    # The lower byte; no bit of the other is used.
    uint8_t attributes


cdef inline Damage get_head(const uint8_t *at, Py_ssize_t room, Head *head) noexcept nogil:
    """Read the header of a batch that has ``room`` bytes to lie in."""
    if room < HEADER_BYTES:
        return SHORT_HEADER
    head.size = <Py_ssize_t>LENGTH_END + <int32_t>big32(at + LENGTH_AT)
    head.base_offset = big64(at)
    head.leader_epoch = <int32_t>big32(at + LEADER_EPOCH_AT)
    head.attributes = at[ATTRIBUTES_AT + 1]
    head.last_delta = <int32_t>big32(at + LAST_OFFSET_DELTA_AT)
    head.next_offset = head.base_offset
    if head.last_delta >= 0 and head.base_offset < INT64_MAX - head.last_delta:
        head.next_offset = head.base_offset + head.last_delta + 1
    head.base_time = big64(at + BASE_TIMESTAMP_AT)
    head.max_time = big64(at + MAX_TIMESTAMP_AT)
    head.record_count = <int32_t>big32(at + RECORD_COUNT_AT)
    if at[MAGIC_AT] != MAGIC or head.size < HEADER_BYTES:
        return BAD_HEADER
    return SHORT_BATCH if head.size > room else WHOLE


cdef class BatchBytes:
    """Batches one after the other, and what computes the CRC of large ones."""

    cdef View view
    cdef object source, checksum

    def __cinit__(self, source, checksum):
        self.source, self.checksum = source, checksum
        self.view = View(source)

    cdef inline int matches(self, const uint8_t *at, Py_ssize_t size) except -1 nogil:
        """Whether the batch at ``at`` has the CRC of its header."""
        if HAS_CRC_INSTRUCTION or size <= TABLE_CRC_BYTES_MAX:
            return crc32c_of(at + CHECKED_AT, size - CHECKED_AT) == big32(at + CRC_AT)
        return self.matches_by_library(at, size)

    cdef int matches_by_library(self, const uint8_t *at, Py_ssize_t size) except -1 nogil:
        # Apart, because a function that may take the lock does so at its beginning.
        with gil:
            position = at - self.view.at
            crc = self.checksum(memoryview(self.source)[position + CHECKED_AT : position + size])
            return crc == big32(at + CRC_AT)
