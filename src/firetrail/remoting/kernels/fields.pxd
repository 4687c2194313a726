# What fields.py takes from Python's C interface.

from cpython.object cimport PyObject_GenericSetAttr as set_attribute
