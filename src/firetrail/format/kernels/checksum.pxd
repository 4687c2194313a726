cdef unsigned int crc31(const unsigned char* data, Py_ssize_t at, Py_ssize_t count) noexcept nogil
