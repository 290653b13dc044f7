# Bytes to records. Part of _kernel.pyx.

cdef enum Problem:
    FITS = 0
    LEAVES_BATCH = 1
    LEAVES_RECORD = 2
    ORDER = 3
    TIME = 4
    OFFSET = 5

cdef dict PROBLEMS = {
    LEAVES_BATCH: "records do not fill their batch",
    LEAVES_RECORD: "a field leaves its record, or is impossible",
    ORDER: "an offset delta is out of order or leaves its batch",
    TIME: "a timestamp exceeds 64 bits",
    OFFSET: "an offset exceeds 64 bits",
}

cdef struct Batch:
    const uint8_t *at
    const uint8_t *end
    int64_t base_offset
    int64_t base_time
    int64_t max_time
    int32_t last_delta
    int32_t count
    bint is_append_time

cdef struct Fields:
    # One record; a length of -1 is null. ``headers`` is where the first header begins.
    int64_t time
    int64_t offset
    const uint8_t *key
    const uint8_t *value
    const uint8_t *headers
    int64_t key_length
    int64_t value_length
    int64_t header_count
    const uint8_t *end

cdef struct HeaderTotals:
    int64_t count
    uint8_t any_high_bit


cdef inline const uint8_t *get_bytes(
    const uint8_t *at, const uint8_t *end, const uint8_t **start, int64_t *length
) noexcept nogil:
    """Step over a nullable byte string; NULL if it passes ``end``."""
    at = get_varint(at, end, 32, length)
    if at == NULL or length[0] < -1 or length[0] > end - at:
        return NULL
    start[0] = at
    return at + max(length[0], 0)


cdef inline Problem get_record(
    const Batch *batch, const uint8_t *at, int64_t least_delta, Fields *fields
) noexcept nogil:
    """Read the record at ``at``, all of it but the inside of its headers."""
    cdef int64_t size, delta
    at = get_varint(at, batch.end, 32, &size)
    if at == NULL or size < 0 or size > batch.end - at:
        return LEAVES_BATCH
    cdef const uint8_t *end = at + size
    fields.end = end
    if size == 0:
        return LEAVES_RECORD
    at = get_varint(at + 1, end, 64, &delta)
    if at == NULL:
        return LEAVES_RECORD
    fields.time = <int64_t>(<uint64_t>batch.base_time + <uint64_t>delta)
    if ((batch.base_time ^ fields.time) & (delta ^ fields.time)) < 0:
        return TIME
    if batch.is_append_time:
        fields.time = batch.max_time
    at = get_varint(at, end, 32, &delta)
    if at == NULL:
        return LEAVES_RECORD
    if delta < least_delta or delta > batch.last_delta:
        return ORDER
    fields.offset = <int64_t>(<uint64_t>batch.base_offset + <uint64_t>delta)
    if fields.offset < batch.base_offset:
        return OFFSET
    at = get_bytes(at, end, &fields.key, &fields.key_length)
    if at == NULL:
        return LEAVES_RECORD
    at = get_bytes(at, end, &fields.value, &fields.value_length)
    if at == NULL:
        return LEAVES_RECORD
    at = get_varint(at, end, 32, &fields.header_count)
    # A header takes two bytes at least, so no count makes a loop longer than its record.
    if at == NULL or fields.header_count < 0 or fields.header_count > (end - at) // 2:
        return LEAVES_RECORD
    fields.headers = at
    return FITS if fields.header_count or at == end else LEAVES_RECORD


cdef bint check_headers(const Fields *fields, HeaderTotals *totals) noexcept nogil:
    """Whether the headers fill the rest of their record."""
    cdef const uint8_t *at = fields.headers
    cdef const uint8_t *start = NULL
    cdef int64_t length, index, byte
    for _ in range(fields.header_count):
        at = get_bytes(at, fields.end, &start, &length)
        if at == NULL or length < 0:
            return False
        for byte in range(length):
            totals.any_high_bit |= start[byte] & 0x80
        at = get_bytes(at, fields.end, &start, &length)
        if at == NULL:
            return False
    totals.count += fields.header_count
    return at == fields.end


cdef inline Problem get_checked(
    const Batch *batch, const uint8_t *at, int64_t least_delta, Fields *fields,
    HeaderTotals *totals,
) noexcept nogil:
    """``get_record``, with the inside of its headers checked and counted."""
    cdef Problem problem = get_record(batch, at, least_delta, fields)
    if problem == FITS and fields.header_count and not check_headers(fields, totals):
        return LEAVES_RECORD
    return problem


cdef object corrupt(int64_t base_offset, object what):
    return CorruptDataError(f"batch at offset {base_offset}: {what}")


cdef int get_whole(View view, Py_ssize_t position, Head *head) except -1:
    """Read the header of the whole batch at ``position``."""
    cdef const uint8_t *at = view.at + position
    cdef Py_ssize_t room = view.size - position
    cdef Damage damage = get_head(at, room, head)
    if damage == SHORT_HEADER:
        raise CorruptDataError(f"batch header at byte {position} is cut off")
    if damage == BAD_HEADER and at[MAGIC_AT] != MAGIC:
        magic = <int8_t>at[MAGIC_AT]
        raise CorruptDataError(f"batch at byte {position} has magic {magic}, not {MAGIC}")
    if damage == BAD_HEADER:
        raise CorruptDataError(f"batch at byte {position} has length {head.size - LENGTH_END}")
    if damage == SHORT_BATCH:
        raise corrupt(
            head.base_offset,
            f"it is cut off or has a bad CRC: {room} of {head.size} bytes are left",
        )
    return 0


cdef class Batches:
    """The uncompressed records of many batches, held while they are read."""

    cdef list held
    cdef Memory memory
    cdef Batch *batches
    cdef Py_ssize_t count, record_count
    cdef int64_t size

    def __cinit__(self, buffers, checksum, open_compressed, int64_t block_limit, int64_t limit):
        cdef list sources = [BatchBytes(buffer, checksum) for buffer in buffers]
        cdef BatchBytes source
        cdef Batch *batch
        cdef Py_ssize_t position
        cdef Head head
        self.held = list(sources)
        for source in sources:
            position = 0
            while position < source.view.size:
                get_whole(source.view, position, &head)
                position += head.size
                self.count += 1
        self.memory = Memory(self.count, sizeof(Batch))
        self.batches = batch = <Batch *>self.memory.at
        for source in sources:
            position = 0
            while position < source.view.size:
                # Sizes are read again, since the bytes may not be ours alone.
                get_whole(source.view, position, &head)
                if batch == self.batches + self.count:
                    raise CorruptDataError("the buffer changes while it is read")
                self.open(batch, source, position, &head, open_compressed)
                if batch.end - batch.at > block_limit:
                    raise corrupt(batch.base_offset, f"records exceed {block_limit} bytes")
                if batch.count < 0 or batch.count > (batch.end - batch.at) // RECORD_BYTES_MIN:
                    raise corrupt(
                        batch.base_offset,
                        f"{batch.end - batch.at} bytes cannot hold {batch.count} records",
                    )
                self.record_count += batch.count
                self.size += batch.end - batch.at
                # Offsets into the bytes of a column are int32.
                if self.size > min(limit, INT32_MAX):
                    raise ValueError(f"batches decompress to more than {limit} bytes; pass fewer")
                position += head.size
                batch += 1
        self.count = batch - self.batches

    cdef int open(
        self, Batch *batch, BatchBytes source, Py_ssize_t position, const Head *head,
        object open_compressed,
    ) except -1:
        cdef const uint8_t *at = source.view.at + position
        cdef View block
        batch.base_offset, batch.last_delta = head.base_offset, head.last_delta
        batch.base_time, batch.max_time = head.base_time, head.max_time
        batch.is_append_time = (head.attributes & LOG_APPEND_TIME) != 0
        batch.count = head.record_count
        if head.attributes & CODEC_MASK:
            # Checks the CRC and decompresses within the limit.
            block = View(open_compressed(source.source, position))
            self.held.append(block)
            batch.at, batch.end = block.at, block.at + block.size
            return 0
        if not source.matches(at, head.size):
            raise corrupt(batch.base_offset, "it is cut off or has a bad CRC")
        batch.at, batch.end = at + HEADER_BYTES, at + head.size
        return 0


cdef class Output:
    """A bytes object of known size, written before it is shared."""

    cdef bytes data
    cdef uint8_t *at

    def __cinit__(self, Py_ssize_t size):
        self.data = PyBytes_FromStringAndSize(NULL, size)
        self.at = <uint8_t *>PyBytes_AsString(self.data)


cdef class CopiedColumn:
    """A column of nullable byte strings, copied while the records are still in the cache.

    ``capacity`` bytes are taken at once; what of them is not used stays with the column.
    """

    cdef Output offsets, validity
    cdef object data
    cdef int32_t *ends
    cdef uint8_t *bits
    cdef uint8_t *at
    cdef int64_t size, capacity
    cdef Py_ssize_t null_count
    cdef bint is_full

    def __cinit__(self, Py_ssize_t count, int64_t capacity):
        self.offsets = Output(4 * (count + 1))
        self.validity = Output((count + 7) // 8)
        self.data = PyByteArray_FromStringAndSize(NULL, capacity)
        self.at = <uint8_t *>PyByteArray_AsString(self.data)
        self.capacity = capacity
        self.bits = self.validity.at
        memset(self.bits, 0xFF, (count + 7) // 8)
        self.ends = <int32_t *>self.offsets.at
        self.ends[0] = 0

    cdef inline void add(
        self, Py_ssize_t index, const uint8_t *source, int64_t length
    ) noexcept nogil:
        if length < 0:
            self.bits[index >> 3] &= ~(1 << (index & 7))
            self.null_count += 1
        elif length > self.capacity - self.size:
            self.is_full = True
        else:
            copy(self.at + self.size, source, length)
            self.size += length
        self.ends[index + 1] = <int32_t>self.size

    cdef object taken(self):
        """(validity or None, offsets, data, null count)."""
        if self.is_full:
            raise CorruptDataError("the buffer changes while it is read")
        PyByteArray_Resize(self.data, self.size)
        return (
            self.validity.data if self.null_count else None,
            self.offsets.data,
            self.data,
            self.null_count,
        )


cdef class StringColumn:
    """A column of nullable byte strings in the making: first measured, then copied."""

    cdef Output offsets, validity, data
    cdef Memory starts
    cdef int32_t *ends
    cdef const uint8_t **sources
    cdef uint8_t *bits
    cdef int64_t size
    cdef Py_ssize_t count, null_count

    def __cinit__(self, Py_ssize_t count):
        self.count = count
        self.offsets = Output(4 * (count + 1))
        self.validity = Output((count + 7) // 8)
        self.starts = Memory(count, sizeof(uint8_t *))
        self.sources = <const uint8_t **>self.starts.at
        self.bits = self.validity.at
        memset(self.bits, 0xFF, (count + 7) // 8)
        self.ends = <int32_t *>self.offsets.at
        self.ends[0] = 0

    cdef inline void add(
        self, Py_ssize_t index, const uint8_t *source, int64_t length
    ) noexcept nogil:
        if length < 0:
            self.bits[index >> 3] &= ~(1 << (index & 7))
            self.null_count += 1
        else:
            self.size += length
        self.sources[index] = source
        self.ends[index + 1] = <int32_t>self.size

    cdef object copied(self):
        """(validity or None, offsets, data, null count)."""
        cdef Py_ssize_t index
        cdef uint8_t *at
        self.data = Output(self.size)
        at = self.data.at
        with nogil:
            for index in range(self.count):
                copy(
                    at + self.ends[index], self.sources[index],
                    self.ends[index + 1] - self.ends[index],
                )
        return (
            self.validity.data if self.null_count else None,
            self.offsets.data,
            self.data.data,
            self.null_count,
        )


def decode_columns(buffers, checksum, open_compressed, int64_t block_limit, int64_t limit):
    cdef Batches batches = Batches(buffers, checksum, open_compressed, block_limit, limit)
    cdef Py_ssize_t count = batches.record_count, row = 0, number, index
    cdef Output offsets = Output(8 * count), times = Output(8 * count), types = Output(4 * count)
    cdef Output header_ends = Output(4 * (count + 1))
    cdef int64_t *offset_at = <int64_t *>offsets.at
    cdef int64_t *time_at = <int64_t *>times.at
    cdef int32_t *type_at = <int32_t *>types.at
    cdef int32_t *header_at = <int32_t *>header_ends.at
    cdef StringColumn keys = StringColumn(count)
    # What is copied of a record lies in it alone, so all values fit into the size of all.
    cdef CopiedColumn values = CopiedColumn(count, batches.size)
    cdef HeaderTotals totals = HeaderTotals(0, 0)
    # Where the headers of records that have any begin and end; found again on the second walk.
    cdef Memory header_memory = Memory(count, sizeof(uint8_t *))
    cdef const uint8_t **header_starts = <const uint8_t **>header_memory.at
    cdef Batch *batch = NULL
    cdef const uint8_t *at
    cdef Fields fields
    cdef int64_t least_delta
    cdef Problem problem = FITS
    header_at[0] = 0
    with nogil:
        for number in range(batches.count):
            batch = batches.batches + number
            at = batch.at
            least_delta = 0
            for index in range(batch.count):
                problem = get_checked(batch, at, least_delta, &fields, &totals)
                if problem != FITS:
                    break
                header_starts[row] = fields.headers
                least_delta = fields.offset - batch.base_offset + 1
                offset_at[row] = fields.offset
                time_at[row] = fields.time
                type_at[row] = batch.is_append_time
                keys.add(row, fields.key, fields.key_length)
                values.add(row, fields.value, fields.value_length)
                header_at[row + 1] = <int32_t>totals.count
                at = fields.end
                row += 1
            if problem == FITS and at != batch.end:
                problem = LEAVES_BATCH
            if problem != FITS:
                break
    if problem != FITS:
        raise corrupt(batch.base_offset, PROBLEMS[problem])
    return (
        count, offsets.data, times.data, types.data, keys.copied(), values.taken(),
        header_ends.data, None if totals.count == 0 else copied_headers(
            batches, header_at, header_starts, totals.count
        ),
        totals.any_high_bit != 0,
    )


cdef object copied_headers(
    Batches batches, const int32_t *ends, const uint8_t **starts, Py_ssize_t count
):
    """(count, keys, values) of the headers, which ``check_headers`` has checked."""
    cdef StringColumn keys = StringColumn(count), values = StringColumn(count)
    cdef Py_ssize_t number, row = 0, record, index
    cdef Batch *batch
    cdef const uint8_t *at
    cdef const uint8_t *start = NULL
    cdef int64_t length = 0
    cdef bint has_changed = False
    with nogil:
        for number in range(batches.count):
            batch = batches.batches + number
            for record in range(batch.count):
                at = starts[row]
                for index in range(ends[row], ends[row + 1]):
                    at = get_bytes(at, batch.end, &start, &length)
                    keys.add(index, start, length)
                    if at != NULL:
                        at = get_bytes(at, batch.end, &start, &length)
                    values.add(index, start, length)
                    if at == NULL:
                        has_changed = True
                        break
                row += 1
                if has_changed:
                    break
            if has_changed:
                break
    if has_changed:
        raise CorruptDataError("the buffer changes while it is read")
    return count, keys.copied(), values.copied()
