# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, binding=False, embedsignature=False, auto_pickle=False
"""The open batches of a producer, in C. ``_open_batches.pyi`` describes the classes.

The interpreter's lock makes ``add`` atomic: between finding a batch and adding the record to it, no
Python code runs and nothing is allocated that the garbage collector tracks. So no other thread can
run in between. Keep it so.
"""

import threading
from zlib import crc32

from cpython.bytearray cimport (
    PyByteArray_AsString, PyByteArray_FromStringAndSize, PyByteArray_Resize,
)
from cpython.bytes cimport PyBytes_AsString
from libc.stdint cimport INT64_MAX, INT64_MIN, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset
from libc.time cimport time_t

from oncelog.api.batching.rows import BlockRows, encode_headers
from oncelog.api.batching.delivery import RecordFuture
from oncelog.storage.records.block import RecordBlock

cdef extern from "Python.h":
    ctypedef struct PyObject
    ctypedef struct PyTypeObject
    ctypedef object (*newfunc)(PyTypeObject *, object, PyObject *)
    enum: Py_tp_new
    void *PyType_GetSlot(PyTypeObject *, int) except NULL
    PyObject *PyDict_GetItemWithError(object, object) except? NULL
    PyObject *PyList_GetItem(object, Py_ssize_t) except NULL
    Py_ssize_t PyList_Size(object) except -1
    Py_ssize_t PyBytes_Size(object) except -1

cdef extern from "<time.h>":
    struct timespec:
        time_t tv_sec
        long tv_nsec
    enum: TIME_UTC
    int timespec_get(timespec *, int)

INTERFACE = 6
"""Changes with the classes below, so that a module built from older source is refused."""

include "../../storage/records/_layout.pxi"

cdef enum:
    RECORD_OVERHEAD_BYTES = 21
    # Upper bound of a record's varints, rounded up; its headers are counted separately.
    NUMBERS_BYTES_MAX = 48
    FIRST_CAPACITY_BYTES = 4096
    # A full block's bytes beyond ``batch_bytes``: its header and a last record's varints.
    BLOCK_SLACK_BYTES = 256
    SEED = 0x9747B28C
    MULTIPLIER = 0x5BD1E995

cdef object _no_headers = ()
cdef bytes _headers_of_none = b"\0"


cdef inline uint64_t zigzag(int64_t value) noexcept:
    return (<uint64_t>value << 1) ^ <uint64_t>(value >> 63)


cdef inline Py_ssize_t varint_size(uint64_t number) noexcept:
    cdef Py_ssize_t size = 1
    while number >= 0x80:
        number >>= 7
        size += 1
    return size


cdef inline uint8_t *put_varint(uint8_t *to, uint64_t number) noexcept:
    while number >= 0x80:
        to[0] = <uint8_t>(number | 0x80)
        number >>= 7
        to += 1
    to[0] = <uint8_t>number
    return to + 1


cdef uint32_t _murmur2(const uint8_t *key, Py_ssize_t length) noexcept:
    cdef uint32_t hashed = <uint32_t>SEED ^ <uint32_t>length
    cdef uint32_t word
    cdef Py_ssize_t position = 0
    while position + 4 <= length:
        word = (
            <uint32_t>key[position] | <uint32_t>key[position + 1] << 8
            | <uint32_t>key[position + 2] << 16 | <uint32_t>key[position + 3] << 24
        )
        word *= <uint32_t>MULTIPLIER
        word ^= word >> 24
        word *= <uint32_t>MULTIPLIER
        hashed = hashed * <uint32_t>MULTIPLIER ^ word
        position += 4
    if position < length:
        word = 0
        while length > position:
            length -= 1
            word = word << 8 | key[length]
        hashed = (hashed ^ word) * <uint32_t>MULTIPLIER
    hashed ^= hashed >> 13
    hashed *= <uint32_t>MULTIPLIER
    return hashed ^ hashed >> 15


def murmur2(bytes key not None):
    """Kafka's 32-bit murmur2 hash of ``key``, unsigned."""
    return _murmur2(<const uint8_t *>PyBytes_AsString(key), PyBytes_Size(key))


cdef class _Place:
    """The fields of a record's future, in C; no object is made for the numbers."""

    cdef readonly object _delivery
    cdef readonly int64_t _index
    cdef readonly int64_t _timestamp_ms


class PlacedFuture(_Place, RecordFuture):
    """``RecordFuture`` as the compiled send path makes it."""


cdef PyTypeObject *_future_type = <PyTypeObject *>PlacedFuture
# PlacedFuture.__new__ without the tuple of its arguments.
cdef newfunc _new_future = <newfunc>PyType_GetSlot(_future_type, Py_tp_new)


cdef class OpenBatch:
    """Records are encoded as they come, after room for the batch header."""

    cdef readonly int64_t size_bytes
    cdef readonly double created_s
    cdef readonly object delivery
    cdef OpenBatches _owner
    cdef object _block
    cdef Py_ssize_t _used
    cdef Py_ssize_t _capacity
    cdef Py_ssize_t _count
    cdef int64_t _base_timestamp_ms
    cdef int64_t _max_timestamp_ms

    def __init__(self, delivery, double created_s, OpenBatches owner not None):
        self._owner = owner
        self.size_bytes = 0
        self.created_s = created_s
        self.delivery = delivery
        self._block = PyByteArray_FromStringAndSize(NULL, FIRST_CAPACITY_BYTES)
        memset(PyByteArray_AsString(self._block), 0, HEADER_BYTES)
        self._used = HEADER_BYTES
        self._capacity = FIRST_CAPACITY_BYTES
        self._count = 0
        self._base_timestamp_ms = self._max_timestamp_ms = 0

    def takes_time(self, int64_t timestamp_ms):
        return self._takes_time(timestamp_ms)

    cdef bint _takes_time(self, int64_t timestamp_ms):
        cdef int64_t base = self._base_timestamp_ms
        if self._count == 0:
            return True
        if base >= 0:
            return timestamp_ms >= INT64_MIN + base
        return timestamp_ms <= INT64_MAX + base

    def put(self, tuple record not None, int64_t size_bytes):
        key, value, timestamp_ms, headers = record
        return self._put(
            key, value, timestamp_ms, encode_headers(headers) if headers else _headers_of_none,
            size_bytes,
        )

    cdef Py_ssize_t _put(
        self, object key, object value, int64_t timestamp_ms, bytes headers, int64_t size_bytes
    ) except -1:
        """Runs no Python code: its arguments are bytes or None."""
        cdef Py_ssize_t key_size = -1 if key is None else PyBytes_Size(key)
        cdef Py_ssize_t value_size = -1 if value is None else PyBytes_Size(value)
        cdef Py_ssize_t headers_size = PyBytes_Size(headers)
        cdef Py_ssize_t index = self._count, size
        cdef uint8_t *at
        if self._block is None:
            raise ValueError("the batch is closed; nothing can be added any more")
        if not self._takes_time(timestamp_ms):
            raise ValueError("timestamps are too far apart; their difference is to fit 64 bits")
        if index == 0:
            self._base_timestamp_ms = self._max_timestamp_ms = timestamp_ms
        size = max(key_size, 0) + max(value_size, 0) + headers_size + NUMBERS_BYTES_MAX
        if self._used + size > self._capacity:
            self._grow(self._used + size)
        cdef uint64_t time = zigzag(timestamp_ms - self._base_timestamp_ms)
        size = (
            1 + varint_size(time) + varint_size(zigzag(index)) + varint_size(zigzag(key_size))
            + varint_size(zigzag(value_size)) + max(key_size, 0) + max(value_size, 0)
            + headers_size
        )
        cdef uint8_t *start = <uint8_t *>PyByteArray_AsString(self._block)
        at = put_varint(start + self._used, zigzag(size))
        at[0] = 0
        at = put_varint(put_varint(put_varint(at + 1, time), zigzag(index)), zigzag(key_size))
        if key_size > 0:
            memcpy(at, <const uint8_t *>PyBytes_AsString(key), key_size)
            at += key_size
        at = put_varint(at, zigzag(value_size))
        if value_size > 0:
            memcpy(at, <const uint8_t *>PyBytes_AsString(value), value_size)
            at += value_size
        memcpy(at, <const uint8_t *>PyBytes_AsString(headers), headers_size)
        self._used = at + headers_size - start
        self._count = index + 1
        self._max_timestamp_ms = max(self._max_timestamp_ms, timestamp_ms)
        self.size_bytes += size_bytes
        return index

    cdef int _grow(self, Py_ssize_t needed) except -1:
        """Runs no Python code."""
        cdef Py_ssize_t size = 2 * self._capacity, whole = self._owner._block_bytes
        if 2 * size > whole:
            size = whole
        size = max(size, needed)
        PyByteArray_Resize(self._block, size)
        self._capacity = size
        return 0

    def rows(self):
        PyByteArray_Resize(self._block, self._used)
        rows = BlockRows(RecordBlock(
            self._block, self._count, self._base_timestamp_ms, self._max_timestamp_ms
        ))
        self._block = None
        return rows


cdef class TopicBatches:
    cdef public object metadata
    cdef readonly list batches
    cdef public OpenBatch sticky

    def __init__(self, metadata, Py_ssize_t partition_count):
        self.metadata = metadata
        self.batches = [None] * partition_count
        self.sticky = None


cdef class OpenBatches:
    cdef readonly dict topics
    cdef readonly int64_t buffered_bytes
    cdef public bint is_accepting
    cdef readonly object lock
    cdef dict _known_topics
    cdef object _now_ms
    cdef bint _is_system_time
    cdef bint _is_crc32
    cdef bint _is_by_function
    cdef object _otherwise
    cdef int64_t _batch_bytes
    cdef int64_t _record_bytes_max
    cdef int64_t _buffer_bytes_max
    cdef Py_ssize_t _block_bytes

    def __init__(
        self, *, dict known_topics not None, now_ms, int64_t batch_bytes, int64_t record_bytes_max,
        int64_t buffer_bytes_max, bint is_system_time=False, bint is_crc32=False,
        bint is_by_function=False,
    ):
        self.topics = {}
        self.buffered_bytes = 0
        self.is_accepting = False
        self.lock = threading.Lock()
        self._known_topics = known_topics
        self._now_ms = now_ms
        self._is_system_time = is_system_time and _system_time_ms() > 0
        self._is_crc32 = is_crc32
        self._is_by_function = is_by_function
        self._otherwise = None
        self._batch_bytes = batch_bytes
        self._record_bytes_max = record_bytes_max
        self._buffer_bytes_max = buffer_bytes_max
        self._block_bytes = batch_bytes + BLOCK_SLACK_BYTES

    def send(
        self, topic, value=None, key=None, *, headers=(), timestamp_ms=None, partition=None,
        on_delivery=None,
    ):
        future = None
        if on_delivery is None:
            future = self._add(topic, value, key, headers, timestamp_ms, partition)
        if future is None:
            return self._otherwise(
                topic, value, key, headers, timestamp_ms, partition, on_delivery
            )
        return future

    def sender(self, otherwise):
        self._otherwise = otherwise
        return self.send

    def add(self, topic, value, key, headers, timestamp_ms, partition):
        return self._add(topic, value, key, headers, timestamp_ms, partition)

    cdef object _add(
        self, object topic, object value, object key, object headers, object timestamp_ms,
        object partition,
    ):
        cdef int64_t size_bytes = RECORD_OVERHEAD_BYTES
        cdef int64_t now_ms
        cdef uint32_t hashed = 0
        cdef PyObject *found
        cdef PyObject *known
        cdef _Place future
        cdef TopicBatches batches
        cdef OpenBatch batch
        if type(value) is bytes:
            size_bytes += PyBytes_Size(value)
        elif value is not None:
            return None
        if type(key) is bytes:
            size_bytes += PyBytes_Size(key)
        elif key is not None:
            return None
        if (
            headers is not _no_headers or timestamp_ms is not None or type(topic) is not str
            or size_bytes > self._record_bytes_max
            or (partition is None and self._is_by_function)
        ):
            return None
        # First everything that may run Python code or the garbage collector. Looking up a ``str``
        # in a dict of ``str`` runs none.
        now_ms = _system_time_ms() if self._is_system_time else self._now_ms()
        if self._is_crc32 and partition is None and key is not None and PyBytes_Size(key) > 0:
            hashed = crc32(key)
        future = <_Place>_new_future(_future_type, _no_headers, NULL)
        # From here on, nothing may run Python code or the garbage collector.
        found = PyDict_GetItemWithError(self.topics, topic)
        known = PyDict_GetItemWithError(self._known_topics, topic)
        if found is NULL or known is NULL:
            return None
        batches = <TopicBatches>found
        if (
            not self.is_accepting or self.buffered_bytes >= self._buffer_bytes_max
            or batches.metadata is not <object>known
        ):
            return None
        batch = _batch_for(batches, key, partition, self._is_crc32, hashed)
        if (
            batch is None or batch.size_bytes + size_bytes >= self._batch_bytes
            or not batch._takes_time(now_ms)
        ):
            return None
        future._index = batch._put(key, value, now_ms, _headers_of_none, size_bytes)
        self.buffered_bytes += size_bytes
        future._delivery = batch.delivery
        future._timestamp_ms = now_ms
        return future

    def put(self, OpenBatch batch not None, tuple record not None, int64_t size_bytes):
        cdef _Place future = <_Place>_new_future(_future_type, _no_headers, NULL)
        future._index = batch.put(record, size_bytes)
        future._delivery = batch.delivery
        future._timestamp_ms = record[2]
        self.buffered_bytes += size_bytes
        return future

    def new_batch(self, delivery, double created_s):
        return OpenBatch(delivery, created_s, self)

    def new_topic(self, metadata, Py_ssize_t partition_count):
        return TopicBatches(metadata, partition_count)

    def hold(self, int64_t size_bytes):
        self.buffered_bytes += size_bytes


cdef int64_t _system_time_ms() noexcept:
    """Milliseconds since the epoch, or 0 without such a clock."""
    cdef timespec now
    if timespec_get(&now, TIME_UTC) == 0:
        return 0
    return <int64_t>now.tv_sec * 1_000 + now.tv_nsec // 1_000_000


cdef OpenBatch _batch_for(
    TopicBatches batches, object key, object partition, bint is_crc32, uint32_t hashed
):
    """``hashed`` is the CRC-32 of the key, if it is that which counts."""
    cdef Py_ssize_t count, chosen
    if partition is None and (key is None or (is_crc32 and PyBytes_Size(key) == 0)):
        return batches.sticky
    count = PyList_Size(batches.batches)
    if partition is None and is_crc32:
        chosen = hashed % <uint32_t>count
    elif partition is None:
        chosen = (
            _murmur2(<const uint8_t *>PyBytes_AsString(key), PyBytes_Size(key)) & 0x7FFFFFFF
        ) % count
    elif type(partition) is int and 0 <= partition < count:
        chosen = partition
    else:
        return None
    return <object>PyList_GetItem(batches.batches, chosen)
