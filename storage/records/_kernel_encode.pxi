# Records to bytes. Part of _kernel.pyx.

cdef struct Entries:
    # A column of nullable byte strings as Arrow lays it out; no validity means no nulls.
    const uint8_t *validity
    const uint8_t *offsets
    const uint8_t *data
    Py_ssize_t first


cdef inline int32_t entry(
    const Entries *column, Py_ssize_t index, const uint8_t **start
) noexcept nogil:
    """Where an entry starts, and its length; -1 if it is null, whatever its offsets say."""
    cdef int32_t begin
    index += column.first
    if column.validity != NULL and not has_bit(column.validity, index):
        return -1
    begin = load32(column.offsets, index)
    start[0] = column.data + begin
    return load32(column.offsets, index + 1) - begin


cdef class Column:
    """A checked column: its parts are large enough, its offsets rise and stay in its data."""

    cdef View validity, offsets, data
    cdef Entries entries
    cdef Py_ssize_t count
    cdef int32_t longest
    cdef int64_t total

    def __cinit__(self, parts, Py_ssize_t count, bint is_list=False):
        cdef Py_ssize_t first = parts[0]
        self.validity, self.offsets, self.data = View(parts[1]), View(parts[2]), View(parts[3])
        self.count = count
        self.entries = Entries(self.validity.at, self.offsets.at, self.data.at, first)
        if first < 0 or count < 0 or first > (1 << 40) or count > (1 << 40):
            raise ValueError("a column of impossible size")
        if self.offsets.size < 4 * (first + count + 1) or (
            self.validity.at != NULL and self.validity.size < (first + count + 7) // 8
        ):
            raise ValueError("a column is shorter than it says")
        cdef const uint8_t *at = self.offsets.at
        cdef int32_t begin, end, lowest = 0
        cdef Py_ssize_t index
        with nogil:
            begin = load32(at, first)
            self.total = -<int64_t>begin
            lowest = begin
            for index in range(first + 1, first + count + 1):
                end = load32(at, index)
                # A difference of two offsets of at least 0 is an int32, and so is their minimum.
                lowest = min(lowest, end, <int32_t>(<uint32_t>end - <uint32_t>begin))
                self.longest = max(self.longest, <int32_t>(<uint32_t>end - <uint32_t>begin))
                begin = end
            self.total += begin
        if lowest < 0 or (not is_list and begin > self.data.size):
            raise ValueError("a column's offsets leave its data")


cdef struct Writer:
    uint8_t *at
    uint8_t *limit


cdef inline bint write_record(
    Writer *writer, int64_t timestamp_delta, int64_t offset_delta,
    const uint8_t *key, Py_ssize_t key_length, const uint8_t *value, Py_ssize_t value_length,
    Py_ssize_t headers_size,
) noexcept nogil:
    """All of a record but its headers; false if they do not fit before the limit."""
    cdef uint64_t time = zigzag(timestamp_delta), offset = zigzag(offset_delta)
    cdef uint64_t key_number = zigzag(key_length), value_number = zigzag(value_length)
    cdef Py_ssize_t size = (
        1 + varint_size(time) + varint_size(offset) + varint_size(key_number)
        + varint_size(value_number) + max(key_length, 0) + max(value_length, 0) + headers_size
    )
    cdef uint8_t *at = writer.at
    if size > writer.limit - at - VARINT_BYTES_MAX:
        return False
    at = put_varint(at, zigzag(size))
    at[0] = 0
    at = put_varint(put_varint(put_varint(at + 1, time), offset), key_number)
    if key_length > 0:
        copy(at, key, key_length)
        at += key_length
    at = put_varint(at, value_number)
    if value_length > 0:
        copy(at, value, value_length)
        at += value_length
    writer.at = at
    return True


cdef Py_ssize_t headers_size(
    const uint8_t *lists, Py_ssize_t row, const Entries *keys, const Entries *values
) noexcept nogil:
    """The size of a row's headers and their count; -1 if a key is null."""
    cdef Py_ssize_t index, end = load32(lists, row + 1)
    cdef Py_ssize_t size = varint_size(zigzag(end - load32(lists, row)))
    cdef int32_t length
    cdef const uint8_t *start = NULL
    for index in range(load32(lists, row), end):
        length = entry(keys, index, &start)
        if length < 0:
            return -1
        size += varint_size(zigzag(length)) + length
        length = entry(values, index, &start)
        size += varint_size(zigzag(length)) + max(length, 0)
    return size


cdef uint8_t *put_headers(
    uint8_t *to, const uint8_t *lists, Py_ssize_t row, const Entries *keys, const Entries *values
) noexcept nogil:
    """Write what ``headers_size`` has measured."""
    cdef Py_ssize_t index, end = load32(lists, row + 1)
    cdef int32_t length
    cdef const uint8_t *start = NULL
    to = put_varint(to, zigzag(end - load32(lists, row)))
    for index in range(load32(lists, row), end):
        length = entry(keys, index, &start)
        to = put_varint(to, zigzag(length))
        copy(to, start, length)
        to += length
        length = entry(values, index, &start)
        to = put_varint(to, zigzag(length))
        if length > 0:
            copy(to, start, length)
            to += length
    return to


cdef inline bint is_apart(int64_t time, int64_t base) noexcept nogil:
    """Whether ``time - base`` does not fit an int64."""
    cdef int64_t delta = <int64_t>(<uint64_t>time - <uint64_t>base)
    return ((time ^ base) & (time ^ delta)) < 0


cdef object new_batch(Py_ssize_t head_room, Py_ssize_t capacity, Writer *writer):
    """A bytearray whose head room is zero, and a writer for what follows it."""
    cdef object batch = PyByteArray_FromStringAndSize(NULL, head_room + capacity)
    writer.at = <uint8_t *>PyByteArray_AsString(batch)
    memset(writer.at, 0, head_room)
    writer.at += head_room
    writer.limit = writer.at + capacity
    return batch


cdef object too_large(Py_ssize_t limit):
    return ValueError(f"records exceed {limit} bytes")


def encode_columns(Py_ssize_t count, keys, values, timestamps, headers, Py_ssize_t head_room,
                   Py_ssize_t limit):
    # One thing: sizes, then bytes, of the same columns; what one has checked the other relies on.
    cdef Column value_column = Column(values, count)
    cdef Column key_column = None if keys is None else Column(keys, count)
    cdef View times = None if isinstance(timestamps, int) else View(timestamps)
    cdef Column lists = None, header_keys = None, header_values = None
    cdef int64_t base = timestamps if times is None else 0, low = base, high = base, time = base
    cdef Py_ssize_t index, end, capacity, size = 1
    cdef const uint8_t *rows = NULL
    cdef const Entries *key_entries = NULL
    cdef Writer writer
    if count < 1 or head_room < 0:
        raise ValueError("a batch holds at least one record")
    capacity = value_column.total
    if key_column is not None:
        key_entries = &key_column.entries
        capacity += key_column.total
    if headers is not None:
        lists = Column((headers[0], headers[1], headers[2], None), count, True)
        rows = lists.offsets.at + 4 * lists.entries.first
        end = load32(rows, count)
        header_keys, header_values = Column(headers[3], end), Column(headers[4], end)
        capacity += header_keys.total + header_values.total + 10 * lists.total + 4 * count
    if times is not None:
        if times.size < 8 * count:
            raise ValueError("a column is shorter than it says")
        base = low = high = load64(times.at, 0)
        with nogil:
            for index in range(1, count):
                time = load64(times.at, index)
                low = min(low, time)
                high = max(high, time)
    if is_apart(low, base) or is_apart(high, base):
        raise ValueError("timestamps are too far apart")
    # Attributes, header count, and each number at its longest here; three for the usual length.
    capacity += count * (
        2 + max(varint_size(zigzag(low - base)), varint_size(zigzag(high - base)))
        + varint_size(zigzag(count)) + varint_size(zigzag(value_column.longest)) + 3
        + (1 if key_column is None else varint_size(zigzag(key_column.longest)))
    )
    if value_column.longest > 500_000 or (key_column is not None and key_column.longest > 500_000):
        capacity += 2 * count
    if headers is not None:
        capacity += 2 * count
    capacity = min(capacity, limit) + 2 * VARINT_BYTES_MAX
    batch = new_batch(head_room, capacity, &writer)
    cdef const uint8_t *key = NULL
    cdef const uint8_t *value = NULL
    cdef int32_t key_length = -1, value_length
    cdef int problem = 0
    with nogil:
        for index in range(count):
            if times is not None:
                time = load64(times.at, index)
            if key_entries != NULL:
                key_length = entry(key_entries, index, &key)
            value_length = entry(&value_column.entries, index, &value)
            if rows != NULL:
                if lists.validity.at != NULL and not has_bit(
                    lists.validity.at, lists.entries.first + index
                ):
                    size = 1
                else:
                    size = headers_size(
                        rows, index, &header_keys.entries, &header_values.entries
                    )
                if size < 0:
                    problem = 1
                    break
            if not write_record(
                &writer, time - base, index, key, key_length, value, value_length, size
            ):
                problem = 2
                break
            if size == 1:
                writer.at[0] = 0
                writer.at += 1
            else:
                writer.at = put_headers(
                    writer.at, rows, index, &header_keys.entries, &header_values.entries
                )
    if problem == 1:
        raise ValueError("a header has no key")
    size = head_room + capacity - (writer.limit - writer.at)
    if problem or size - head_room > limit:
        raise too_large(limit)
    PyByteArray_Resize(batch, size)
    return batch, base, high


cdef struct Row:
    const uint8_t *key
    const uint8_t *value
    Py_ssize_t key_length
    Py_ssize_t value_length
    Py_ssize_t headers_at
    Py_ssize_t headers_length
    int64_t time


cdef bytes as_bytes(object source):
    """``source``, a bytes-like object other than ``bytes``, as ``bytes``."""
    cdef View view = View(source)
    return PyBytes_FromStringAndSize(<char *>view.at, view.size)


cdef Py_ssize_t bytes_of(PyObject *source, list held, const uint8_t **start) except -2:
    """The bytes of a key or value and their length; -1 if it is None."""
    cdef char *at
    cdef Py_ssize_t length
    start[0] = NULL
    if source == Py_None:
        return -1
    if PyBytes_AsStringAndSize(source, &at, &length) < 0:
        PyErr_Clear()
        converted = as_bytes(<object>source)
        held.append(converted)
        PyBytes_AsStringAndSize(<PyObject *>converted, &at, &length)
    start[0] = <const uint8_t *>at
    return length


cdef class Scratch:
    """Bytes that grow at their end; what they hold is named by its position, since they move."""

    cdef uint8_t *at
    cdef Py_ssize_t size, capacity

    def __dealloc__(self):
        free(self.at)

    cdef uint8_t *room(self, Py_ssize_t size) except NULL:
        """Where ``size`` bytes may be written; the caller then raises ``size``."""
        cdef uint8_t *moved
        if size > self.capacity - self.size:
            self.capacity = 2 * self.capacity + size + 1024
            moved = <uint8_t *>realloc(self.at, self.capacity)
            if moved == NULL:
                raise MemoryError
            self.at = moved
        return self.at + self.size

    cdef int put_number(self, int64_t number) except -1:
        cdef uint8_t *at = self.room(VARINT_BYTES_MAX)
        self.size += put_varint(at, zigzag(number)) - at
        return 0

    cdef int put_bytes(self, const uint8_t *start, Py_ssize_t length) except -1:
        """A length, -1 for null, and the bytes."""
        self.put_number(length)
        if length > 0:
            copy(self.room(length), start, length)
            self.size += length
        return 0

    cdef int put_headers(self, object headers) except -1:
        """The header count and headers of one record."""
        cdef tuple held = tuple(headers)
        cdef list kept = []
        cdef const uint8_t *start = NULL
        cdef Py_ssize_t length = 0
        self.put_number(len(held))
        for item in held:
            pair = item if type(item) is tuple else tuple(item)
            if len(<tuple>pair) != 2:
                raise ValueError("a header is a pair of key and value")
            start = <const uint8_t *>PyUnicode_AsUTF8AndSize(
                PyTuple_GetItem(<PyObject *>pair, 0), &length
            )
            self.put_bytes(start, length)
            length = bytes_of(PyTuple_GetItem(<PyObject *>pair, 1), kept, &start)
            self.put_bytes(start, length)
        return 0


cdef enum:
    BLOCK_ROWS = 16
    COPIES_AHEAD = 4

cdef struct Picked:
    # What a record's tuple holds; borrowed from it.
    PyObject *key
    PyObject *value
    PyObject *time
    PyObject *headers


cdef int pick(tuple held, Py_ssize_t first, Py_ssize_t count, Picked *picked) except -1:
    """Take some records apart. Objects lie anywhere, so all are asked for before one is used."""
    cdef PyObject *records[BLOCK_ROWS]
    cdef Py_ssize_t index
    for index in range(count):
        records[index] = PyTuple_GetItem(<PyObject *>held, first + index)
        BRING_NEAR(records[index])
    for index in range(count):
        if PyTuple_Size(records[index]) != 4:
            PyErr_Clear()
            raise TypeError("a record is a tuple of key, value, timestamp in ms and headers")
        picked[index].key = PyTuple_GetItem(records[index], 0)
        picked[index].value = PyTuple_GetItem(records[index], 1)
        picked[index].time = PyTuple_GetItem(records[index], 2)
        picked[index].headers = PyTuple_GetItem(records[index], 3)
        BRING_NEAR(picked[index].key)
        BRING_NEAR(picked[index].value)
        BRING_NEAR(picked[index].time)
    return 0


def encode_rows(records, Py_ssize_t head_room, Py_ssize_t limit):
    # One thing: sizes, then bytes, of the same rows; what one has checked the other relies on.
    # A tuple of tuples cannot change while pointers into its bytes are kept.
    cdef tuple held = tuple(records)
    cdef list kept = []
    cdef tuple none = ()
    cdef Py_ssize_t count = len(held), index, capacity = 2 * VARINT_BYTES_MAX
    cdef Memory memory = Memory(count, sizeof(Row))
    cdef Row *rows = <Row *>memory.at
    cdef Row *row
    cdef Picked picked[BLOCK_ROWS]
    cdef Picked *parts
    cdef PyObject *headers
    cdef int64_t base = 0, high = 0
    cdef Writer writer
    cdef Scratch scratch = Scratch()
    if count < 1 or head_room < 0:
        raise ValueError("a batch holds at least one record")
    # What records without headers share.
    scratch.put_number(0)
    try:
        for index in range(count):
            if index % BLOCK_ROWS == 0:
                pick(held, index, min(count - index, <Py_ssize_t>BLOCK_ROWS), picked)
            parts = picked + index % BLOCK_ROWS
            row = rows + index
            row.time = PyLong_AsLongLong(parts.time)
            if index == 0:
                base = high = row.time
            if row.time > high:
                high = row.time
            if is_apart(row.time, base):
                raise ValueError("timestamps are too far apart; their difference is to fit 64 bits")
            row.key_length = bytes_of(parts.key, kept, &row.key)
            row.value_length = bytes_of(parts.value, kept, &row.value)
            headers = parts.headers
            row.headers_at, row.headers_length = 0, 1
            if headers != <PyObject *>none and PyObject_Size(headers):
                row.headers_at = scratch.size
                scratch.put_headers(<object>headers)
                row.headers_length = scratch.size - row.headers_at
            capacity += (
                1 + varint_size(zigzag(row.time - base)) + varint_size(zigzag(index))
                + varint_size(zigzag(row.key_length)) + varint_size(zigzag(row.value_length))
                + max(row.key_length, 0) + max(row.value_length, 0) + row.headers_length
            )
            capacity += varint_size(zigzag(
                4 + max(row.key_length, 0) + max(row.value_length, 0) + row.headers_length + 22
            ))
            if capacity > limit + 5 * (index + 1) + 2 * VARINT_BYTES_MAX:
                raise too_large(limit)
    except OverflowError as error:
        raise ValueError("a timestamp does not fit into 64 bits") from error
    batch = new_batch(head_room, capacity, &writer)
    cdef bint fits = True
    with nogil:
        for index in range(count):
            row = rows + index
            if index + COPIES_AHEAD < count:
                BRING_NEAR(<const void *>(<size_t>row[COPIES_AHEAD].value + 64))
            fits = write_record(
                &writer, row.time - base, index, row.key, row.key_length, row.value,
                row.value_length, row.headers_length,
            )
            if not fits:
                break
            copy(writer.at, scratch.at + row.headers_at, row.headers_length)
            writer.at += row.headers_length
    cdef Py_ssize_t size = head_room + capacity - (writer.limit - writer.at)
    if not fits or size - head_room > limit:
        raise too_large(limit)
    PyByteArray_Resize(batch, size)
    return batch, base, high
