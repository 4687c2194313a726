# The attributes of the classes in wire.py, as C sees them.

cdef class JsonReader:
    cdef bytes _text
    cdef const unsigned char* _b
    cdef Py_ssize_t _at
    cdef Py_ssize_t _end

    cdef tuple members(self, bytes body, object languages, object kind)
    cdef dict _fields(self)
    cdef int _skip(self) except -1
    cdef int _next(self) except -1
    cdef int _expect(self, unsigned char byte) except -1
    cdef long long _number(self) except? -1
    cdef str _string(self)
    cdef str _unescaped(self, Py_ssize_t at, Py_ssize_t end)
    cdef int _escape(self, Py_ssize_t at, Py_ssize_t end) except -1

cdef class JsonWriter:
    cdef bytearray _buffer
    cdef unsigned char* _out
    cdef Py_ssize_t _at

    cdef int _fields(self, object fields) except -1
    cdef int _number(self, long long number) except -1
    cdef int _raw(self, bytes raw) except -1
    cdef int _string(self, str text) except -1
