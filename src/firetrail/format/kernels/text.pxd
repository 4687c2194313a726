cdef int hash_utf8(const unsigned char* text, Py_ssize_t at, Py_ssize_t count, int start) noexcept nogil
