# The compiled form of _bigendian.py: inlined into every kernel that cimports it.

from cpython.bytes cimport PyBytes_AS_STRING
from libc.string cimport memchr, memcmp, memcpy

cdef inline unsigned int load_u32(const unsigned char* b, Py_ssize_t at) noexcept nogil:
    return ((<unsigned int> b[at]) << 24) | ((<unsigned int> b[at + 1]) << 16) | ((<unsigned int> b[at + 2]) << 8) | b[at + 3]

cdef inline long long load_i32(const unsigned char* b, Py_ssize_t at) noexcept nogil:
    return <int> load_u32(b, at)

cdef inline unsigned long long load_u64(const unsigned char* b, Py_ssize_t at) noexcept nogil:
    return ((<unsigned long long> load_u32(b, at)) << 32) | load_u32(b, at + 4)

cdef inline long long load_i64(const unsigned char* b, Py_ssize_t at) noexcept nogil:
    return <long long> load_u64(b, at)

cdef inline long long load_u16(const unsigned char* b, Py_ssize_t at) noexcept nogil:
    return (b[at] << 8) | b[at + 1]

cdef inline void store_i16(unsigned char* b, Py_ssize_t at, long long value) noexcept nogil:
    b[at] = <unsigned char> ((value >> 8) & 0xFF)
    b[at + 1] = <unsigned char> (value & 0xFF)

cdef inline void store_i32(unsigned char* b, Py_ssize_t at, long long value) noexcept nogil:
    b[at] = <unsigned char> ((value >> 24) & 0xFF)
    b[at + 1] = <unsigned char> ((value >> 16) & 0xFF)
    b[at + 2] = <unsigned char> ((value >> 8) & 0xFF)
    b[at + 3] = <unsigned char> (value & 0xFF)

cdef inline void store_i64(unsigned char* b, Py_ssize_t at, long long value) noexcept nogil:
    store_i32(b, at, value >> 32)
    store_i32(b, at + 4, value)

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
