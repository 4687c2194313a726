cdef int note_record(
    const unsigned char* data,
    Py_ssize_t at,
    Py_ssize_t limit,
    long long base,
    long long* cells,
    Py_ssize_t capacity,
    Py_ssize_t row,
) noexcept nogil

cdef int check_record(
    const unsigned char* data,
    Py_ssize_t at,
    long long size,
    long long base,
    int check,
) noexcept nogil

cdef bint is_message(
    const unsigned char* data,
    Py_ssize_t at,
    const unsigned char* topic,
    Py_ssize_t topic_size,
    long long queue_id,
    long long queue_offset,
) noexcept nogil
