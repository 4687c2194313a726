cdef Py_ssize_t copy_host(unsigned char* out, Py_ssize_t to, const unsigned char* data, Py_ssize_t at, bint v6) noexcept nogil
cdef void copy_hex(unsigned char* out, Py_ssize_t to, const unsigned char* data, Py_ssize_t at, Py_ssize_t count) noexcept nogil
