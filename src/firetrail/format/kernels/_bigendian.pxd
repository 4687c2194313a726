# The compiled form of _bigendian.py: inlined into every kernel that cimports it.

from cpython.bytes cimport PyBytes_AS_STRING
from libc.string cimport memchr, memcmp, memcpy

# Bytes one by one would do, but compilers do not always see that it is one load and a swap.
cdef extern from *:
    """
    #if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    #define FIRETRAIL_SWAP_16(x) (x)
    #define FIRETRAIL_SWAP_32(x) (x)
    #define FIRETRAIL_SWAP_64(x) (x)
    #define FIRETRAIL_LITTLE_64(x) __builtin_bswap64(x)
    #else
    #define FIRETRAIL_SWAP_16(x) __builtin_bswap16(x)
    #define FIRETRAIL_SWAP_32(x) __builtin_bswap32(x)
    #define FIRETRAIL_SWAP_64(x) __builtin_bswap64(x)
    #define FIRETRAIL_LITTLE_64(x) (x)
    #endif
    """
    unsigned short swap_16 "FIRETRAIL_SWAP_16"(unsigned short value) noexcept nogil
    unsigned int swap_32 "FIRETRAIL_SWAP_32"(unsigned int value) noexcept nogil
    unsigned long long swap_64 "FIRETRAIL_SWAP_64"(unsigned long long value) noexcept nogil
    unsigned long long little_64 "FIRETRAIL_LITTLE_64"(unsigned long long value) noexcept nogil
    int zeros_below "__builtin_ctzll"(unsigned long long value) noexcept nogil
    void prefetch "__builtin_prefetch"(const void* address, int write) noexcept nogil

cdef inline void will_change(unsigned char* b, Py_ssize_t at) noexcept nogil:
    prefetch(&b[at], 1)

cdef inline long long load_u16(const unsigned char* b, Py_ssize_t at) noexcept nogil:
    cdef unsigned short value
    memcpy(&value, &b[at], 2)
    return swap_16(value)

cdef inline unsigned int load_u32(const unsigned char* b, Py_ssize_t at) noexcept nogil:
    cdef unsigned int value
    memcpy(&value, &b[at], 4)
    return swap_32(value)

cdef inline long long load_i32(const unsigned char* b, Py_ssize_t at) noexcept nogil:
    return <int> load_u32(b, at)

cdef inline unsigned long long load_u64(const unsigned char* b, Py_ssize_t at) noexcept nogil:
    cdef unsigned long long value
    memcpy(&value, &b[at], 8)
    return swap_64(value)

cdef inline unsigned long long load_little_u64(const unsigned char* b, Py_ssize_t at) noexcept nogil:
    cdef unsigned long long value
    memcpy(&value, &b[at], 8)
    return little_64(value)

cdef inline long long load_i64(const unsigned char* b, Py_ssize_t at) noexcept nogil:
    return <long long> load_u64(b, at)

cdef inline void store_i16(unsigned char* b, Py_ssize_t at, long long value) noexcept nogil:
    cdef unsigned short swapped = swap_16(<unsigned short> value)
    memcpy(&b[at], &swapped, 2)

cdef inline void store_i32(unsigned char* b, Py_ssize_t at, long long value) noexcept nogil:
    cdef unsigned int swapped = swap_32(<unsigned int> value)
    memcpy(&b[at], &swapped, 4)

cdef inline void store_i64(unsigned char* b, Py_ssize_t at, long long value) noexcept nogil:
    cdef unsigned long long swapped = swap_64(<unsigned long long> value)
    memcpy(&b[at], &swapped, 8)

cdef inline void copy_bytes(unsigned char* out, Py_ssize_t at, const unsigned char* source, Py_ssize_t start, Py_ssize_t count) noexcept nogil:
    memcpy(&out[at], &source[start], count)

cdef inline void copy_from(unsigned char* out, Py_ssize_t at, bytes source, Py_ssize_t count) noexcept:
    memcpy(&out[at], PyBytes_AS_STRING(source), count)

cdef inline Py_ssize_t find_byte(const unsigned char* b, int byte, Py_ssize_t at, Py_ssize_t end) noexcept nogil:
    cdef const unsigned char* found
    if at >= end:
        return end
    found = <const unsigned char*> memchr(&b[at], byte, end - at)
    return end if found == NULL else at + (found - &b[at])

cdef inline bint same_bytes(const unsigned char* a, Py_ssize_t at, const unsigned char* b, Py_ssize_t other, Py_ssize_t count) noexcept nogil:
    return memcmp(&a[at], &b[other], count) == 0

cdef inline bint lies_in(long long at, long long size, Py_ssize_t length) noexcept nogil:
    return 0 <= at <= length and 0 <= size <= length - at
