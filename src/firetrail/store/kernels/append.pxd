# The attributes of the classes in append.py, as C sees them.

from firetrail.format.kernels.draft cimport Draft, DraftRules
from firetrail.format.kernels.encode cimport RecordFields, RecordWriter

cdef class PutResult:
    cdef readonly object status
    cdef readonly long long queue_id
    cdef readonly long long queue_offset
    cdef readonly long long physical_offset
    cdef readonly long long size
    cdef readonly long long store_time
    cdef readonly object store_host
    cdef readonly long long messages
    cdef readonly str detail
    cdef readonly str field
    cdef readonly object is_temporary

cdef class Appender:
    cdef public long long last_store_time
    cdef public long long calls
    cdef public long long messages
    cdef public long long bytes
    cdef DraftRules _rules
    cdef object _store_host
    cdef dict _queues
    cdef object _locked
    cdef object _acquire
    cdef object _release
    cdef object _time_ns
    cdef object _segment
    cdef RecordWriter _writer
    cdef long long _base
    cdef Py_ssize_t _end
    cdef bint _buffered
    cdef Py_ssize_t _writer_start

    cdef PutResult _append(self, Draft draft, object queue)
    cdef long long _next_store_time(self) except? -1
    cdef int _place(self, RecordFields fields, Py_ssize_t at, long long queue_offset) except -1
    cdef PutResult _finish(self, RecordFields first, object queue, long long queue_end, long long size, long long messages)
    cdef PutResult _no_room(self, long long size)
