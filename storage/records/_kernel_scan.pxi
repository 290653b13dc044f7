# Going over whole batches by their headers: checks, index entries, producers. Part of _kernel.pyx.

cdef enum Damage:
    WHOLE = 0
    SHORT_HEADER = 1
    BAD_HEADER = 2
    SHORT_BATCH = 3
    BAD_CRC = 4
    WRONG_OFFSET = 5

cdef enum:
    TRANSACTIONAL = 0x10
    CONTROL = 0x20
    EPOCH_PAIR_BYTES = 16

cdef struct Head:
    # ``next_offset`` is ``base_offset`` if the batch ends beyond all offsets.
    int64_t base_offset
    int64_t next_offset
    int64_t max_time
    int64_t producer_id
    Py_ssize_t size
    int32_t leader_epoch
    int32_t base_sequence
    int16_t producer_epoch
    uint8_t attributes


cdef inline void read_fields(const uint8_t *at, Head *head) noexcept nogil:
    """Read the 61 bytes of a header."""
    cdef int32_t delta = <int32_t>big32(at + 23)
    head.size = <Py_ssize_t>LENGTH_END + <int32_t>big32(at + 8)
    head.base_offset = big64(at)
    head.leader_epoch = <int32_t>big32(at + 12)
    head.attributes = at[22]
    head.next_offset = head.base_offset
    if delta >= 0 and head.base_offset < INT64_MAX - delta:
        head.next_offset = head.base_offset + delta + 1
    head.max_time = big64(at + 35)
    head.producer_id = big64(at + 43)
    head.producer_epoch = <int16_t>(<uint16_t>at[51] << 8 | at[52])
    head.base_sequence = <int32_t>big32(at + 53)


cdef inline Damage get_head(const uint8_t *at, Py_ssize_t room, Head *head) noexcept nogil:
    """Read the header of a batch that has ``room`` bytes to lie in."""
    if room < HEADER_BYTES:
        return SHORT_HEADER
    read_fields(at, head)
    if at[16] != MAGIC or head.size < HEADER_BYTES:
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
            return crc32c_of(at + CHECKED_AT, size - CHECKED_AT) == big32(at + 17)
        return self.matches_by_library(at, size)

    cdef int matches_by_library(self, const uint8_t *at, Py_ssize_t size) except -1 nogil:
        # Apart, because a function that may take the lock does so at its beginning.
        with gil:
            position = at - self.view.at
            crc = self.checksum(memoryview(self.source)[position + CHECKED_AT : position + size])
            return crc == big32(at + 17)


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


def find_damage(data, checksum, int64_t lowest_offset):
    cdef BatchBytes batches = BatchBytes(data, checksum)
    cdef const uint8_t *start = batches.view.at
    cdef const uint8_t *end = start + batches.view.size
    cdef const uint8_t *at = start
    cdef int64_t expected = lowest_offset
    cdef Damage damage = WHOLE
    cdef Head head
    with nogil:
        while at < end:
            damage = get_head(at, end - at, &head)
            if damage == WHOLE and not batches.matches(at, head.size):
                damage = BAD_CRC
            elif damage == WHOLE and not expected <= head.base_offset < head.next_offset:
                damage = WRONG_OFFSET
            if damage != WHOLE:
                break
            at += head.size
            expected = head.next_offset
    return at - start, expected, <int>damage


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
