# What of encode.py other kernels use without the detour through Python.

cpdef Py_ssize_t record_size(
    Py_ssize_t born_host_size,
    Py_ssize_t store_host_size,
    Py_ssize_t body_size,
    Py_ssize_t topic_size,
    Py_ssize_t properties_size,
) noexcept

cdef class RecordWriter:
    cdef unsigned char[::1] _view
    cdef unsigned char* _out
    cdef Py_ssize_t _size

    cpdef write(
        self,
        Py_ssize_t at,
        Py_ssize_t size,
        long long queue_id,
        long long flag,
        long long queue_offset,
        long long physical_offset,
        long long sys_flag,
        long long born_time,
        bytes born_host,
        long long store_time,
        bytes store_host,
        long long reconsume_times,
        long long prepared_offset,
        bytes body,
        bytes topic,
        bytes properties,
    )

    cdef int _require(self, Py_ssize_t at, Py_ssize_t size) except -1
