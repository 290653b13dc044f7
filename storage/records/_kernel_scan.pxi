# Going over whole batches by their headers: checks and index entries. Part of _kernel.pyx.

cdef enum:
    EPOCH_PAIR_BYTES = 16


cdef class KnownEpochs:
    """(leader epoch, start offset) pairs, and which of them a rising offset has reached."""

    cdef View pairs
    cdef Py_ssize_t reached, count

    def __cinit__(self, pairs):
        self.pairs = View(pairs)
        self.reached, self.count = -1, self.pairs.size // EPOCH_PAIR_BYTES

    cdef inline bint allow(self, int64_t base_offset, int32_t leader_epoch) noexcept nogil:
        """Whether the epoch is the known one there, or none is known. Offsets must not fall."""
        cdef const uint8_t *at = self.pairs.at
        while self.reached + 1 < self.count and load64(at, 2 * self.reached + 3) <= base_offset:
            self.reached += 1
        return self.reached < 0 or load64(at, 2 * self.reached) == leader_epoch


def skip_sound(data, checksum, int64_t lowest_offset):
    cdef BatchBytes batches = BatchBytes(data, checksum)
    cdef const uint8_t *start = batches.view.at
    cdef const uint8_t *end = start + batches.view.size
    cdef const uint8_t *at = start
    cdef int64_t expected = lowest_offset
    cdef Head head
    with nogil:
        while at < end:
            if (
                get_head(at, end - at, &head) != WHOLE
                or not expected <= head.base_offset < head.next_offset
                or not batches.matches(at, head.size)
            ):
                break
            at += head.size
            expected = head.next_offset
    return at - start, expected


cdef class IndexEntries:
    """Entries of a segment's two indexes in the making, in the bytes that an ``array`` takes."""

    cdef Memory memory
    cdef Py_ssize_t count, time_count, capacity
    cdef int64_t *times
    cdef uint32_t *offsets
    cdef uint32_t *positions
    cdef uint32_t *time_offsets

    def __cinit__(self, Py_ssize_t capacity):
        self.memory = Memory(capacity, 8 + 3 * 4)
        self.capacity = capacity
        self.times = <int64_t *>self.memory.at
        self.offsets = <uint32_t *>(self.times + capacity)
        self.positions = self.offsets + capacity
        self.time_offsets = self.positions + capacity

    cdef tuple packed(self):
        return (
            PyBytes_FromStringAndSize(<char *>self.offsets, 4 * self.count),
            PyBytes_FromStringAndSize(<char *>self.positions, 4 * self.count),
            PyBytes_FromStringAndSize(<char *>self.times, 8 * self.time_count),
            PyBytes_FromStringAndSize(<char *>self.time_offsets, 4 * self.time_count),
        )


def scan_batches(data, checksum, int64_t position, int64_t segment_base, int64_t expected,
                 int64_t gaps_end, known_epochs, int64_t last_epoch, int64_t interval, counted):
    cdef BatchBytes batches = BatchBytes(data, checksum)
    cdef KnownEpochs known = KnownEpochs(known_epochs)
    cdef list new_epochs = []
    cdef const uint8_t *start = batches.view.at
    cdef const uint8_t *end = start + batches.view.size
    cdef const uint8_t *at = start
    cdef int64_t since_index = counted[0], max_time = counted[1], max_offset = counted[2]
    cdef int64_t entered_time = counted[3]
    # The batches of two entries begin further apart than the interval, and than a header.
    cdef Py_ssize_t apart = max(interval, HEADER_BYTES - 1) + 1
    cdef IndexEntries entries = IndexEntries(batches.view.size // apart + 2)
    cdef Head head
    if position < 0 or segment_base < 0:
        raise ValueError(f"position {position} or base offset {segment_base} is negative")
    with nogil:
        while at < end:
            if get_head(at, end - at, &head) != WHOLE or head.base_offset < expected:
                break
            if head.base_offset > expected and expected >= gaps_end:
                break
            if (
                head.next_offset <= head.base_offset
                or head.base_offset < segment_base
                or head.next_offset - 1 - segment_base > INT32_MAX
                or position + (at - start) > UINT32_MAX
                or not batches.matches(at, head.size)
                or not known.allow(head.base_offset, head.leader_epoch)
            ):
                break
            if head.leader_epoch > last_epoch:
                last_epoch = head.leader_epoch
                with gil:
                    new_epochs.append((head.leader_epoch, head.base_offset))
            expected = head.next_offset
            if head.max_time > max_time:
                max_time, max_offset = head.max_time, expected - 1
            if since_index > interval:
                if entries.count == entries.capacity:
                    break
                entries.offsets[entries.count] = <uint32_t>(expected - 1 - segment_base)
                entries.positions[entries.count] = <uint32_t>(position + (at - start))
                entries.count += 1
                if max_time >= 0 and max_time > entered_time:
                    entered_time = max_time
                    entries.times[entries.time_count] = max_time
                    entries.time_offsets[entries.time_count] = <uint32_t>(max_offset - segment_base)
                    entries.time_count += 1
                since_index = 0
            since_index += head.size
            at += head.size
    return at - start, expected, (since_index, max_time, max_offset), entries.packed(), new_epochs


cdef bint has_whole(const uint8_t *at, Py_ssize_t size, const Head *head) noexcept nogil:
    """Whether its records, with the offset deltas from 0 on, fill the batch at ``at``."""
    cdef Batch batch
    cdef Fields fields
    cdef HeaderTotals totals = HeaderTotals(0, 0, 0, 0)
    cdef int32_t index
    batch.at, batch.end = at + HEADER_BYTES, at + size
    batch.base_offset, batch.last_delta, batch.count = 0, head.record_count - 1, head.record_count
    batch.base_time, batch.max_time, batch.is_append_time = head.base_time, 0, False
    for index in range(head.record_count):
        if get_record(&batch, batch.at, index, &fields) != FITS or fields.offset != index:
            return False
        if fields.header_count and not check_headers(&fields, &totals):
            return False
        batch.at = fields.end
    return batch.at == batch.end


def has_whole_records(data):
    """For who has checked all but the records of the one batch in ``data``."""
    cdef View view = View(data)
    cdef Head head
    return get_head(view.at, view.size, &head) == WHOLE and has_whole(view.at, view.size, &head)
