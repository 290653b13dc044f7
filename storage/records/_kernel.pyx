# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, binding=False, embedsignature=False
"""Records to bytes and back in C, over plain buffers: Arrow's memory layout, but nothing of Arrow.

What is read may be hostile: every field is checked against its record, every record against its
batch, every size before it is allocated, whether or not a CRC was right. What is encoded may be
wrong too: offsets of a column are checked against its data. Loops over columns release the GIL.
``compiled`` is where others find this module; ``_kernel.pyi`` describes its functions.
"""

from cpython.bytearray cimport (
    PyByteArray_AsString, PyByteArray_FromStringAndSize, PyByteArray_Resize,
)
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AsString, PyBytes_FromStringAndSize
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from libc.stdint cimport (
    INT32_MAX, INT64_MAX, UINT32_MAX, int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t,
    uint64_t,
)
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memset

from oncelog.storage.exceptions import CorruptDataError

cdef extern from "Python.h":
    # Borrowed references: what they are taken from is held while they are used.
    PyObject *PyTuple_GetItem(PyObject *, Py_ssize_t) except NULL
    Py_ssize_t PyTuple_Size(PyObject *)
    int PyBytes_AsStringAndSize(PyObject *, char **, Py_ssize_t *)
    void PyErr_Clear()
    Py_ssize_t PyObject_Size(PyObject *) except -1
    long long PyLong_AsLongLong(PyObject *) except? -1
    const char *PyUnicode_AsUTF8AndSize(PyObject *, Py_ssize_t *) except NULL
    object PyUnicode_DecodeUTF8(const char *, Py_ssize_t, const char *)
    object PyTuple_Pack(Py_ssize_t, ...)
    PyObject *Py_None
    ctypedef struct PyTypeObject:
        pass
    ctypedef object (*newfunc)(PyTypeObject *, object, PyObject *)
    PyTypeObject PyTuple_Type
    const int Py_tp_new
    void *PyType_GetSlot(PyTypeObject *, int)
    void PyObject_GC_UnTrack(void *)
    PyObject *PyTuple_New(Py_ssize_t) except NULL
    # New references, which the tuple takes over.
    int PyTuple_SetItem(PyObject *, Py_ssize_t, PyObject *) except -1
    PyObject *PyLong_FromLongLong(long long) except NULL
    PyObject *PyBytes_New "PyBytes_FromStringAndSize"(const char *, Py_ssize_t) except NULL
    const Py_ssize_t PY_SSIZE_T_MAX

INTERFACE = 7
"""Changes with the functions below, so that a module built from older source is refused."""

cdef enum:
    VARINT_BYTES_MAX = 10
    # Up to here a CRC by tables costs less than the call of the library.
    TABLE_CRC_BYTES_MAX = 512

include "_layout.pxi"
include "_kernel_bytes.pxi"
include "_kernel_crc.pxi"
include "_kernel_batch.pxi"
include "_kernel_encode.pxi"
include "_kernel_decode.pxi"
include "_kernel_rows.pxi"
include "_kernel_scan.pxi"
