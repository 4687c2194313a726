cdef int note_record(
    const unsigned char* data,
    Py_ssize_t at,
    Py_ssize_t limit,
    long long base,
    long long* cells,
    Py_ssize_t capacity,
    Py_ssize_t row,
) noexcept nogil
