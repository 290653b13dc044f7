# What a leader checks of a batch that a client sent. Part of _kernel.pyx.

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


def has_whole_records(data):
    """For who has checked all but the records of the one batch in ``data``."""
    cdef View view = View(data)
    if view.size < HEADER_BYTES:
        return False
    return has_whole(view.at, view.size, <int32_t>big32(view.at + 57))
