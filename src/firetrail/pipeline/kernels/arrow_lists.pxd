from firetrail.pipeline.kernels.arrow cimport Rows

cdef void check_room(Rows rows, int kind, Py_ssize_t lists, Py_ssize_t offsets, Py_ssize_t text) except *
