# items.py for other kernels: nothing of it is for Python.

cdef Py_ssize_t item_properties_size(
    const unsigned char* batch,
    Py_ssize_t own_at,
    Py_ssize_t own,
    Py_ssize_t shared_size,
    bint property_crc,
) noexcept nogil

cdef tuple measure(
    const unsigned char* batch,
    Py_ssize_t end,
    Py_ssize_t fixed,
    Py_ssize_t shared_size,
    bint property_crc,
)
