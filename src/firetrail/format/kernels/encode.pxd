# What of encode.py other kernels use without the detour through Python.

cpdef Py_ssize_t record_size(
    Py_ssize_t born_host_size,
    Py_ssize_t store_host_size,
    Py_ssize_t body_size,
    Py_ssize_t topic_size,
    Py_ssize_t properties_size,
) noexcept

cdef class RecordFields:
    cdef readonly bytes topic
    cdef readonly bytes born_host
    cdef readonly bytes store_host
    cdef readonly bytes body
    cdef readonly bytes properties
    cdef readonly long long queue_id
    cdef readonly long long flag
    cdef readonly long long queue_offset
    cdef readonly long long physical_offset
    cdef readonly long long sys_flag
    cdef readonly long long born_time
    cdef readonly long long store_time
    cdef readonly long long reconsume_times
    cdef readonly long long prepared_offset
    cdef readonly Py_ssize_t size

cdef class RecordWriter:
    cdef unsigned char[::1] _view
    cdef unsigned char* _out
    cdef Py_ssize_t _size

    cpdef write(self, Py_ssize_t at, RecordFields fields)
    cdef int _require(self, Py_ssize_t at, Py_ssize_t size) except -1
