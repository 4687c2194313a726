# CRC-32 by carry-less multiplication, for checksum.py: sixteen bytes per step instead of one, if the
# processor can (x86 with PCLMULQDQ, detected at run time). Elsewhere can_fold() returns false.
#
# The checksum is the remainder of the message, a polynomial, divided by another one of degree 32. A part
# of the message that is n bits before the end may be replaced by its product with x^n modulo that
# polynomial. So four registers of 16 bytes move over the message, each multiplied onto the 16 bytes that
# are 64 bytes further on. The constants are such powers of x, in the bit-reflected form that CRC-32 uses:
#
#     AHEAD_64      x^(512+32), x^(512-32)    onto the bytes 64 further on
#     AHEAD_16      x^(128+32), x^(128-32)    onto the bytes 16 further on
#     LAST_8        x^64                      from 12 bytes to 8
#     DIVISOR       the polynomial, and floor(x^64 / polynomial) to divide by it without dividing

cdef extern from *:
    """
    #if (defined(__x86_64__) || defined(__i386__)) && defined(__GNUC__)
    #include <immintrin.h>

    static int firetrail_can_fold(void) {
        __builtin_cpu_init();
        return __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
    }

    #define FIRETRAIL_CLMUL __attribute__((target("pclmul,sse4.1")))

    FIRETRAIL_CLMUL static inline __m128i firetrail_onto(__m128i x, __m128i powers, __m128i next) {
        __m128i low = _mm_clmulepi64_si128(x, powers, 0x00);
        __m128i high = _mm_clmulepi64_si128(x, powers, 0x11);
        return _mm_xor_si128(_mm_xor_si128(low, high), next);
    }

    FIRETRAIL_CLMUL static inline unsigned int firetrail_reduce(__m128i x, __m128i ahead_16) {
        const __m128i last_8 = _mm_set_epi64x(0, 0x163cd6124);
        const __m128i divisor = _mm_set_epi64x(0x1f7011641, 0x1db710641);
        const __m128i low_32 = _mm_set_epi32(0, -1, 0, -1);
        __m128i q;
        x = _mm_xor_si128(_mm_srli_si128(x, 8), _mm_clmulepi64_si128(x, ahead_16, 0x10));
        q = _mm_clmulepi64_si128(_mm_and_si128(x, low_32), last_8, 0x00);
        x = _mm_xor_si128(_mm_srli_si128(x, 4), q);
        q = _mm_clmulepi64_si128(_mm_and_si128(x, low_32), divisor, 0x10);
        q = _mm_clmulepi64_si128(_mm_and_si128(q, low_32), divisor, 0x00);
        return (unsigned int) _mm_extract_epi32(_mm_xor_si128(x, q), 1);
    }

    /* Advance crc over count bytes, a multiple of 16 and not 0. */
    FIRETRAIL_CLMUL static unsigned int firetrail_fold(
        unsigned int crc, const unsigned char *data, Py_ssize_t count
    ) {
        #define FIRETRAIL_LOAD(n) _mm_loadu_si128((const __m128i *) (data + 16 * (n)))
        const __m128i ahead_64 = _mm_set_epi64x(0x1c6e41596, 0x154442bd4);
        const __m128i ahead_16 = _mm_set_epi64x(0x0ccaa009e, 0x1751997d0);
        __m128i a = _mm_xor_si128(FIRETRAIL_LOAD(0), _mm_cvtsi32_si128((int) crc));
        if (count >= 64) {
            __m128i b = FIRETRAIL_LOAD(1), c = FIRETRAIL_LOAD(2), d = FIRETRAIL_LOAD(3);
            for (data += 64, count -= 64; count >= 64; data += 64, count -= 64) {
                a = firetrail_onto(a, ahead_64, FIRETRAIL_LOAD(0));
                b = firetrail_onto(b, ahead_64, FIRETRAIL_LOAD(1));
                c = firetrail_onto(c, ahead_64, FIRETRAIL_LOAD(2));
                d = firetrail_onto(d, ahead_64, FIRETRAIL_LOAD(3));
            }
            a = firetrail_onto(a, ahead_16, b);
            a = firetrail_onto(a, ahead_16, c);
            a = firetrail_onto(a, ahead_16, d);
        } else {
            data += 16;
            count -= 16;
        }
        for (; count >= 16; data += 16, count -= 16)
            a = firetrail_onto(a, ahead_16, FIRETRAIL_LOAD(0));
        #undef FIRETRAIL_LOAD
        return firetrail_reduce(a, ahead_16);
    }

    #else

    static int firetrail_can_fold(void) { return 0; }

    static unsigned int firetrail_fold(
        unsigned int crc, const unsigned char *data, Py_ssize_t count
    ) { return crc; }

    #endif
    """
    bint can_fold "firetrail_can_fold"() noexcept nogil
    unsigned int fold "firetrail_fold"(unsigned int crc, const unsigned char* data, Py_ssize_t count) noexcept nogil
