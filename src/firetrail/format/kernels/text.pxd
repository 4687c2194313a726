cdef int hash_utf8(const unsigned char* text, Py_ssize_t at, Py_ssize_t count, int start) noexcept nogil
cdef Py_ssize_t text_size(const unsigned char* text, Py_ssize_t at, Py_ssize_t count) noexcept nogil
cdef Py_ssize_t copy_text(unsigned char* out, Py_ssize_t to, const unsigned char* text, Py_ssize_t at, Py_ssize_t count) noexcept nogil
