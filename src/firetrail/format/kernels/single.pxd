cdef class KeyQuestion:
    cdef readonly object key_hash
    cdef readonly long long begin
    cdef readonly long long end
    cdef bytes _topic
    cdef bytes _key
    cdef bint _is_one_of(self, const unsigned char* data, Py_ssize_t at, Py_ssize_t count)
