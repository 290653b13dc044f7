# Bytes to records one by one, as named tuples. Part of _kernel.pyx.

cdef enum:
    # Records between the one that is checked and the one that is brought near.
    AHEAD = 8


cdef class Rows:
    """The records of one uncompressed block; see ``rows.Rows``."""

    cdef View view
    cdef Batch batch
    cdef const uint8_t *at
    cdef int64_t least_delta
    cdef object row_type
    cdef tuple leading
    cdef readonly Py_ssize_t left

    def __cinit__(self, block, int32_t count, int64_t base_offset, int32_t last_delta,
                  int64_t base_time, int64_t max_time, bint is_append_time, row_type,
                  tuple leading, int64_t first_offset):
        cdef Fields fields
        cdef HeaderTotals totals = HeaderTotals(0, 0)
        cdef const uint8_t *at
        cdef int64_t least_delta = 0
        cdef Problem problem
        cdef Py_ssize_t ahead
        if not issubclass(row_type, tuple) or row_type is tuple:
            raise TypeError(f"{row_type} is no named tuple")
        self.view = View(block)
        self.batch = Batch(
            self.view.at, self.view.at + self.view.size, base_offset, base_time, max_time,
            last_delta, count, is_append_time,
        )
        self.row_type, self.leading = row_type, leading
        # All are checked before one is made, so that a batch is delivered whole or not at all.
        self.at = at = self.view.at
        self.left = count
        for _ in range(count):
            problem = get_checked(&self.batch, at, least_delta, &fields, &totals)
            if problem != FITS:
                raise corrupt(base_offset, PROBLEMS[problem])
            # Records far apart are no pattern to the processor; most are as long as the one before.
            ahead = AHEAD * (fields.end - at)
            at = fields.end
            if ahead < self.batch.end - at:
                BRING_NEAR(at + ahead)
            least_delta = fields.offset - base_offset + 1
            if fields.offset < first_offset:
                self.at, self.least_delta = at, least_delta
                self.left -= 1
        if at != self.batch.end:
            raise corrupt(base_offset, PROBLEMS[LEAVES_BATCH])

    def take(self, Py_ssize_t count_max):
        cdef list rows = []
        cdef newfunc new_tuple = <newfunc>PyType_GetSlot(&PyTuple_Type, Py_tp_new)
        cdef Py_ssize_t index, offset_at = len(self.leading)
        # ``tuple.__new__(row_type, made)`` copies ``made``, which is then filled anew: nobody else
        # sees it, not even the garbage collector.
        cdef PyObject *made = PyTuple_New(offset_at + 5)
        cdef tuple arguments = tuple_of(made)
        cdef const uint8_t *at = self.at
        cdef int64_t least_delta = self.least_delta, time = 0
        cdef Fields fields
        cdef HeaderTotals totals = HeaderTotals(0, 0)
        cdef bint has_time = False, has_headers = False
        cdef object row
        for index in range(offset_at):
            put_item(made, index, self.leading[index])
        put_item(made, offset_at + 4, ())
        for _ in range(min(count_max, self.left)):
            if get_checked(&self.batch, at, least_delta, &fields, &totals) != FITS:
                raise CorruptDataError("the buffer changes while it is read")
            at = fields.end
            least_delta = fields.offset - self.batch.base_offset + 1
            PyTuple_SetItem(made, offset_at, PyLong_FromLongLong(fields.offset))
            if not has_time or fields.time != time:
                # Records sent together mostly have the same time, and then share it.
                has_time, time = True, fields.time
                PyTuple_SetItem(made, offset_at + 1, PyLong_FromLongLong(time))
            PyTuple_SetItem(made, offset_at + 2, new_bytes(fields.key, fields.key_length))
            PyTuple_SetItem(made, offset_at + 3, new_bytes(fields.value, fields.value_length))
            if fields.header_count or has_headers:
                has_headers = fields.header_count != 0
                put_item(made, offset_at + 4, header_tuples(&fields))
            row = new_tuple(<PyTypeObject *>self.row_type, arguments, NULL)
            # Bytes, text and numbers form no cycles: the collector need not look at them.
            PyObject_GC_UnTrack(<void *>row)
            rows.append(row)
        # Only now, so that an error loses no record.
        self.at, self.least_delta = at, least_delta
        self.left -= len(rows)
        return rows


cdef object tuple_of(PyObject *item):
    """A tuple that takes over the tuple ``item``, both unknown to the garbage collector."""
    cdef object one = <object>PyTuple_New(1)
    Py_DECREF(one)
    PyTuple_SetItem(<PyObject *>one, 0, item)
    PyObject_GC_UnTrack(<void *>one)
    PyObject_GC_UnTrack(<void *>item)
    return one


cdef inline int put_item(PyObject *to, Py_ssize_t index, object item) except -1:
    Py_INCREF(item)
    return PyTuple_SetItem(to, index, <PyObject *>item)


cdef inline PyObject *new_bytes(const uint8_t *at, int64_t length) except NULL:
    if length < 0:
        Py_INCREF(None)
        return Py_None
    return PyBytes_New(<char *>at, length)


cdef tuple header_tuples(const Fields *fields):
    cdef list headers = []
    cdef const uint8_t *at = fields.headers
    cdef const uint8_t *start = NULL
    cdef int64_t length = 0
    cdef object key, value
    for _ in range(fields.header_count):
        at = get_bytes(at, fields.end, &start, &length)
        key = PyUnicode_DecodeUTF8(<char *>start, length, "replace")
        at = get_bytes(at, fields.end, &start, &length)
        value = None
        if length >= 0:
            value = PyBytes_FromStringAndSize(<char *>start, length)
        headers.append(PyTuple_Pack(2, <PyObject *>key, <PyObject *>value))
    return tuple(headers)
