# CRC-32C: by the processor's instruction where it has one, else by tables. Part of _kernel.pyx.

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>

    #define LARGE_STRIDE 2048
    #define SMALL_STRIDE 128

    #if defined(__x86_64__) && defined(__GNUC__)
    static int has_crc_instruction(void)
    {
        __builtin_cpu_init();
        return __builtin_cpu_supports("sse4.2") != 0;
    }

    static uint32_t shifted(const uint32_t table[4][256], uint32_t crc)
    {
        return table[0][crc & 255] ^ table[1][crc >> 8 & 255]
            ^ table[2][crc >> 16 & 255] ^ table[3][crc >> 24];
    }

    static uint64_t word_at(const uint8_t *at)
    {
        uint64_t word;
        memcpy(&word, at, 8);
        return word;
    }

    /* The instruction takes three cycles but can begin in each: three strides run side by side. */
    __attribute__((target("sse4.2")))
    static uint64_t crc_of_strides(
        uint64_t first, const uint8_t *at, long stride, const uint32_t table[4][256])
    {
        uint64_t second = 0, third = 0;
        for (const uint8_t *end = at + stride; at < end; at += 8) {
            first = __builtin_ia32_crc32di(first, word_at(at));
            second = __builtin_ia32_crc32di(second, word_at(at + stride));
            third = __builtin_ia32_crc32di(third, word_at(at + 2 * stride));
        }
        second ^= shifted(table, (uint32_t)first);
        return third ^ shifted(table, (uint32_t)second);
    }

    __attribute__((target("sse4.2")))
    static uint32_t crc_by_instruction(
        uint64_t crc, const uint8_t *at, long size, const uint32_t large[4][256],
        const uint32_t small[4][256])
    {
        for (; size >= 3 * LARGE_STRIDE; at += 3 * LARGE_STRIDE, size -= 3 * LARGE_STRIDE)
            crc = crc_of_strides(crc, at, LARGE_STRIDE, large);
        for (; size >= 3 * SMALL_STRIDE; at += 3 * SMALL_STRIDE, size -= 3 * SMALL_STRIDE)
            crc = crc_of_strides(crc, at, SMALL_STRIDE, small);
        for (; size >= 8; at += 8, size -= 8)
            crc = __builtin_ia32_crc32di(crc, word_at(at));
        for (; size > 0; at++, size--)
            crc = __builtin_ia32_crc32qi((uint32_t)crc, *at);
        return (uint32_t)crc;
    }
    #else
    static int has_crc_instruction(void) { return 0; }

    static uint32_t crc_by_instruction(
        uint64_t crc, const uint8_t *at, long size, const uint32_t large[4][256],
        const uint32_t small[4][256])
    {
        return 0;
    }
    #endif
    """
    int has_crc_instruction()
    # This, and those below, go on from a CRC whose bits are turned over.
    uint32_t crc_by_instruction(
        uint64_t crc, const uint8_t *at, Py_ssize_t size, uint32_t (*large)[256],
        uint32_t (*small)[256]
    ) noexcept nogil
    enum:
        LARGE_STRIDE
        SMALL_STRIDE

cdef uint32_t POLYNOMIAL = 0x82F63B78

cdef uint32_t CRC_TABLE[8][256]
# By each byte of a CRC: what it becomes after so many bytes of zero.
cdef uint32_t LARGE_SHIFT[4][256]
cdef uint32_t SMALL_SHIFT[4][256]
cdef bint HAS_CRC_INSTRUCTION = has_crc_instruction()


cdef void fill_crc_table() noexcept:
    cdef uint32_t crc
    cdef int byte, bit, slice_
    for byte in range(256):
        crc = byte
        for bit in range(8):
            crc = (crc >> 1) ^ (POLYNOMIAL if crc & 1 else 0)
        CRC_TABLE[0][byte] = crc
    for byte in range(256):
        for slice_ in range(1, 8):
            crc = CRC_TABLE[slice_ - 1][byte]
            CRC_TABLE[slice_][byte] = (crc >> 8) ^ CRC_TABLE[0][crc & 0xFF]


cdef void fill_shift_table(uint32_t (*table)[256], int zeros) noexcept:
    cdef uint32_t crc
    cdef uint32_t of_bit[32]
    cdef int bit, step, byte, place
    for bit in range(32):
        crc = <uint32_t>1 << bit
        for step in range(zeros):
            crc = (crc >> 8) ^ CRC_TABLE[0][crc & 0xFF]
        of_bit[bit] = crc
    # Shifting is linear: the shift of a byte is the sum of those of its bits.
    for place in range(4):
        for byte in range(256):
            crc = 0
            for bit in range(8):
                if byte >> bit & 1:
                    crc ^= of_bit[8 * place + bit]
            table[place][byte] = crc


fill_crc_table()
fill_shift_table(LARGE_SHIFT, LARGE_STRIDE)
fill_shift_table(SMALL_SHIFT, SMALL_STRIDE)


cdef uint32_t crc_by_tables(uint32_t crc, const uint8_t *data, Py_ssize_t size) noexcept nogil:
    """Eight bytes at a time."""
    while size >= 8:
        crc ^= (
            <uint32_t>data[0] | <uint32_t>data[1] << 8
            | <uint32_t>data[2] << 16 | <uint32_t>data[3] << 24
        )
        crc = (
            CRC_TABLE[7][crc & 0xFF] ^ CRC_TABLE[6][(crc >> 8) & 0xFF]
            ^ CRC_TABLE[5][(crc >> 16) & 0xFF] ^ CRC_TABLE[4][crc >> 24]
            ^ CRC_TABLE[3][data[4]] ^ CRC_TABLE[2][data[5]]
            ^ CRC_TABLE[1][data[6]] ^ CRC_TABLE[0][data[7]]
        )
        data += 8
        size -= 8
    while size > 0:
        crc = (crc >> 8) ^ CRC_TABLE[0][(crc ^ data[0]) & 0xFF]
        data += 1
        size -= 1
    return crc


cdef inline uint32_t crc_on(uint32_t crc, const uint8_t *data, Py_ssize_t size) noexcept nogil:
    if HAS_CRC_INSTRUCTION:
        return crc_by_instruction(crc, data, size, LARGE_SHIFT, SMALL_SHIFT)
    return crc_by_tables(crc, data, size)


cdef inline uint32_t crc32c_of(const uint8_t *data, Py_ssize_t size) noexcept nogil:
    """The CRC-32C of ``size`` bytes."""
    return ~crc_on(UINT32_MAX, data, size)


CRC_METHODS = ("tables",) + ("instruction",) * HAS_CRC_INSTRUCTION
"""How this processor can compute a CRC, the fastest last."""


def crc32c(data):
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    cdef uint32_t crc = crc32c_of(<const uint8_t *>view.buf, view.len)
    PyBuffer_Release(&view)
    return crc


def crc32c_by(str method, data):
    cdef View view = View(data)
    cdef uint32_t crc
    if method not in CRC_METHODS:
        raise ValueError(f"no CRC by {method!r} here, but by {', '.join(CRC_METHODS)}")
    if method == "tables":
        crc = crc_by_tables(UINT32_MAX, view.at, view.size)
    else:
        crc = crc_by_instruction(UINT32_MAX, view.at, view.size, LARGE_SHIFT, SMALL_SHIFT)
    return <uint32_t>~crc
