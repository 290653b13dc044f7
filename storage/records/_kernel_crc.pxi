# CRC-32C: by folding where the processor multiplies wide vectors without carry, by its instruction
# where it has one, else by tables. Part of _kernel.pyx.

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

    #if defined(__x86_64__) && (defined(__clang__) ? __clang_major__ >= 9 : __GNUC__ >= 9)
    #include <immintrin.h>

    #define WIDE "avx512f,avx512bw,avx512vl,avx512vbmi,vpclmulqdq,pclmul,sse4.2"
    #define WIDE_BYTES 64

    static int can_fold(void)
    {
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")
            && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vbmi")
            && __builtin_cpu_supports("vpclmulqdq") && __builtin_cpu_supports("pclmul")
            && __builtin_cpu_supports("sse4.2");
    }

    /* By what the two halves of 16 bytes are multiplied to stand so many bytes further on: the
       remainders of x^(8 * bytes + 31) and x^(8 * bytes - 33), their bits reversed. */
    #define ON_BY_16 0x493c7d27, 0xf20c0dfe
    #define ON_BY_32 0xba4fc28e, 0x3da6d0cb
    #define ON_BY_48 0xddc0152b, 0x1c291d04
    #define ON_BY_64 0x9e4addf8, 0x740eef02
    #define ON_BY_256 0xb9e02b86, 0xdcb17aa4

    /* What is left of ``sum`` further on, and what stands there. */
    __attribute__((target(WIDE)))
    static inline __m512i folded(__m512i sum, __m512i on, __m512i there)
    {
        return _mm512_ternarylogic_epi64(
            _mm512_clmulepi64_epi128(sum, on, 0x00), _mm512_clmulepi64_epi128(sum, on, 0x11),
            there, 0x96);
    }

    __attribute__((target(WIDE)))
    static inline __m512i first_four(uint32_t bytes)
    {
        return _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)bytes));
    }

    /* Of more than WIDE_BYTES bytes. */
    __attribute__((target(WIDE)))
    static uint32_t crc_by_folding(uint32_t crc, const uint8_t *at, long size)
    {
        static const uint8_t PLACES[64] = {
            0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23,
            24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45,
            46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63};
        const __m512i on_by_64 = _mm512_broadcast_i32x4(_mm_set_epi64x(ON_BY_64));
        const __m512i to_last = _mm512_set_epi64(0, 0, ON_BY_16, ON_BY_32, ON_BY_48);
        /* Zeros in front change nothing, so the odd bytes become the end of a whole vector; the
           CRC so far is added to the first four bytes of the data, wherever these are. */
        long odd = ((size - 1) & 63) + 1;
        uint32_t rest = odd < 4 ? crc >> 8 * odd : 0;
        __m512i sum = _mm512_maskz_permutexvar_epi8(
            ~(__mmask64)0 << (64 - odd),
            _mm512_add_epi8(_mm512_loadu_si512(PLACES), _mm512_set1_epi8((char)odd)),
            _mm512_xor_si512(_mm512_loadu_si512(at), first_four(crc)));
        at += odd;
        sum = folded(sum, on_by_64, _mm512_xor_si512(_mm512_loadu_si512(at), first_four(rest)));
        at += 64;
        size -= odd + 64;
        if (size >= 512) {
            /* A product takes a while, but others can begin meanwhile: four sums side by side. */
            const __m512i on_by_256 = _mm512_broadcast_i32x4(_mm_set_epi64x(ON_BY_256));
            __m512i second = _mm512_loadu_si512(at), third = _mm512_loadu_si512(at + 64);
            __m512i fourth = _mm512_loadu_si512(at + 128);
            for (at += 192, size -= 192; size >= 256; at += 256, size -= 256) {
                sum = folded(sum, on_by_256, _mm512_loadu_si512(at));
                second = folded(second, on_by_256, _mm512_loadu_si512(at + 64));
                third = folded(third, on_by_256, _mm512_loadu_si512(at + 128));
                fourth = folded(fourth, on_by_256, _mm512_loadu_si512(at + 192));
            }
            sum = folded(folded(folded(sum, on_by_64, second), on_by_64, third), on_by_64, fourth);
        }
        for (; size > 0; at += 64, size -= 64)
            sum = folded(sum, on_by_64, _mm512_loadu_si512(at));
        sum = folded(sum, to_last, _mm512_maskz_mov_epi64(0xC0, sum));
        __m256i half = _mm256_xor_si256(
            _mm512_castsi512_si256(sum), _mm512_extracti64x4_epi64(sum, 1));
        __m128i last = _mm_xor_si128(
            _mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
        uint64_t of_first = _mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(last));
        return (uint32_t)_mm_crc32_u64(of_first, (uint64_t)_mm_extract_epi64(last, 1));
    }
    #else
    #define WIDE_BYTES 64
    static int can_fold(void) { return 0; }
    static uint32_t crc_by_folding(uint32_t crc, const uint8_t *at, long size) { return 0; }
    #endif
    """
    int has_crc_instruction()
    int can_fold()
    # These, and those below, continue from a CRC whose bits are inverted.
    uint32_t crc_by_instruction(
        uint64_t crc, const uint8_t *at, Py_ssize_t size, uint32_t (*large)[256],
        uint32_t (*small)[256]
    ) noexcept nogil
    uint32_t crc_by_folding(uint32_t crc, const uint8_t *at, Py_ssize_t size) noexcept nogil
    enum:
        LARGE_STRIDE
        SMALL_STRIDE
        WIDE_BYTES

cdef uint32_t POLYNOMIAL = 0x82F63B78

cdef uint32_t CRC_TABLE[8][256]
# By each byte of a CRC: what it becomes after so many bytes of zero.
cdef uint32_t LARGE_SHIFT[4][256]
cdef uint32_t SMALL_SHIFT[4][256]
cdef bint HAS_CRC_INSTRUCTION = has_crc_instruction()
cdef bint CAN_FOLD = HAS_CRC_INSTRUCTION and can_fold()


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
    if CAN_FOLD and size > WIDE_BYTES:
        return crc_by_folding(crc, data, size)
    if HAS_CRC_INSTRUCTION:
        return crc_by_instruction(crc, data, size, LARGE_SHIFT, SMALL_SHIFT)
    return crc_by_tables(crc, data, size)


cdef inline uint32_t crc32c_of(const uint8_t *data, Py_ssize_t size) noexcept nogil:
    """The CRC-32C of ``size`` bytes."""
    return ~crc_on(UINT32_MAX, data, size)


CRC_METHODS = ("tables",) + ("instruction",) * HAS_CRC_INSTRUCTION + ("folding",) * CAN_FOLD
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
    elif method == "instruction" or view.size <= WIDE_BYTES:
        crc = crc_by_instruction(UINT32_MAX, view.at, view.size, LARGE_SHIFT, SMALL_SHIFT)
    else:
        crc = crc_by_folding(UINT32_MAX, view.at, view.size)
    return <uint32_t>~crc
