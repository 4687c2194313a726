# The attributes of the classes in draft.py, as C sees them.

from firetrail.format.kernels.encode cimport RecordFields

cdef class Message:
    cdef public str topic
    cdef public object body
    cdef public object tags
    cdef public object keys
    cdef public object properties
    cdef public long long queue_id
    cdef public long long delay_level
    cdef public long long flag
    cdef public long long sys_flag
    cdef public object born_time
    cdef public object born_host
    cdef public long long reconsume_times
    cdef public long long prepared_offset
    cdef public object raw_properties
    cdef public bint wait_for_flush

    cpdef bytes encode_properties(self)

cdef class DraftRules:
    cdef readonly bytes store_host
    cdef readonly long long store_flags
    cdef readonly bint property_crc
    cdef public Py_ssize_t body_max
    cdef public Py_ssize_t record_max
    cdef public bint light_queues

cdef class Draft(RecordFields):
    cdef readonly bint may_delay
    cdef readonly bint names_light_queues
