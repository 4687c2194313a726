# Declarations for other kernels, and the attributes of Rows in C.

cdef bint row_is_of(long long* cells, Py_ssize_t capacity, long long row, Py_ssize_t length) noexcept nogil

cdef class Rows:
    cdef readonly Py_ssize_t count
    cdef const unsigned char[::1] _data
    cdef long long[::1] _table
    cdef long long[::1] _picks
    cdef Py_ssize_t _capacity
    cdef int _measured
    cdef long long _items
    cdef long long _bytes
    cpdef room(self, int kind)
    cdef Py_ssize_t _start_of(self, Py_ssize_t column) except -1
    cdef void _fits(self, long long room, long long needed) except *
