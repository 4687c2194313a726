# The attributes of the classes in answer.py, as C sees them.

cdef class GetResult:
    cdef readonly object status
    cdef readonly long long next_offset
    cdef readonly long long min_offset
    cdef readonly long long max_offset
    cdef readonly long long size
    cdef readonly Py_ssize_t count
    cdef readonly bint suggest_slave
    cdef list _buffers
    cdef object _units
    cdef Py_ssize_t _first
    cdef object _log
    cdef long long _base

cdef class QueueCursor:
    cdef object _found
    cdef object _queue
    cdef object _queue_segments
    cdef object _queue_last
    cdef object _units_segment
    cdef object _units
    cdef const unsigned char[::1] _units_view
    cdef long long _units_base
    cdef object _log
    cdef object _log_segments
    cdef object _log_last
    cdef object _log_segment
    cdef object _log_view
    cdef const unsigned char[::1] _log_bytes
    cdef long long _log_base
    cdef long long _min_offset
    cdef Py_ssize_t _count_max
    cdef long long _bytes_max
    cdef long long _memory
