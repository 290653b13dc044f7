# Numbers and bytes: what encoding and decoding share. Part of _kernel.pyx.

cdef extern from *:
    """
    #if defined(__GNUC__)
    #define BRING_NEAR(address) __builtin_prefetch(address)
    #else
    #define BRING_NEAR(address) ((void)(address))
    #endif
    """
    void BRING_NEAR(const void *) noexcept nogil


cdef inline uint32_t big32(const uint8_t *at) noexcept nogil:
    return (
        <uint32_t>at[0] << 24 | <uint32_t>at[1] << 16 | <uint32_t>at[2] << 8 | <uint32_t>at[3]
    )


cdef inline int64_t big64(const uint8_t *at) noexcept nogil:
    return <int64_t>(<uint64_t>big32(at) << 32 | big32(at + 4))


cdef inline int32_t load32(const uint8_t *at, Py_ssize_t index) noexcept nogil:
    """An int32 of this machine, which need not be aligned."""
    cdef int32_t value
    memcpy(&value, at + 4 * index, 4)
    return value


cdef inline int64_t load64(const uint8_t *at, Py_ssize_t index) noexcept nogil:
    cdef int64_t value
    memcpy(&value, at + 8 * index, 8)
    return value


cdef inline bint has_bit(const uint8_t *bits, Py_ssize_t index) noexcept nogil:
    return bits[index >> 3] >> (index & 7) & 1


cdef inline uint64_t zigzag(int64_t value) noexcept nogil:
    return (<uint64_t>value << 1) ^ <uint64_t>(value >> 63)


cdef inline Py_ssize_t varint_size(uint64_t number) noexcept nogil:
    cdef Py_ssize_t size = 1
    while number >= 0x80:
        number >>= 7
        size += 1
    return size


cdef inline uint8_t *put_varint(uint8_t *to, uint64_t number) noexcept nogil:
    while number >= 0x80:
        to[0] = <uint8_t>(number | 0x80)
        number >>= 7
        to += 1
    to[0] = <uint8_t>number
    return to + 1


cdef inline const uint8_t *get_varint(
    const uint8_t *at, const uint8_t *end, int bits, int64_t *value
) noexcept nogil:
    """Read a number of at most ``bits`` bits; NULL if it is longer or passes ``end``."""
    cdef uint64_t number, byte
    cdef int shift = 7
    if at >= end:
        return NULL
    number = at[0]
    at += 1
    if number >= 0x80:
        number &= 0x7F
        while True:
            if at >= end or shift >= bits:
                return NULL
            byte = at[0]
            at += 1
            if bits - shift < 7 and (byte & 0x7F) >> (bits - shift):
                return NULL
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
    value[0] = <int64_t>(number >> 1) ^ -<int64_t>(number & 1)
    return at


cdef inline void copy(uint8_t *to, const uint8_t *source, Py_ssize_t size) noexcept nogil:
    """``memcpy``, without its call for most sizes that keys and values have.

    Two loads that may overlap cover each range of sizes, and nothing beyond it.
    """
    cdef uint8_t head[32]
    cdef uint8_t tail[32]
    if size > 64:
        memcpy(to, source, size)
    elif size > 32:
        memcpy(head, source, 32)
        memcpy(tail, source + size - 32, 32)
        memcpy(to, head, 32)
        memcpy(to + size - 32, tail, 32)
    elif size > 16:
        memcpy(head, source, 16)
        memcpy(tail, source + size - 16, 16)
        memcpy(to, head, 16)
        memcpy(to + size - 16, tail, 16)
    elif size >= 8:
        memcpy(head, source, 8)
        memcpy(tail, source + size - 8, 8)
        memcpy(to, head, 8)
        memcpy(to + size - 8, tail, 8)
    else:
        while size > 0:
            size -= 1
            to[size] = source[size]


cdef class Memory:
    """Uninitialised bytes that are freed with this object."""

    cdef uint8_t *at

    def __cinit__(self, Py_ssize_t count, Py_ssize_t size):
        if count < PY_SSIZE_T_MAX // size:
            self.at = <uint8_t *>malloc((count + 1) * size)
        if self.at == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.at)


cdef class View:
    """The memory of a bytes-like object, which keeps it alive and in its place."""

    cdef Py_buffer view
    cdef const uint8_t *at
    cdef Py_ssize_t size

    def __cinit__(self, source):
        if source is None:
            return
        PyObject_GetBuffer(source, &self.view, PyBUF_SIMPLE)
        self.at = <const uint8_t *>self.view.buf
        self.size = self.view.len

    def __dealloc__(self):
        # Does nothing if no buffer was acquired.
        PyBuffer_Release(&self.view)
