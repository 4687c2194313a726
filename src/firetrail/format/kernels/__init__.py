"""Compiled loops over the bytes of records, queues and indexes."""

from firetrail.kernels import prepare

prepare(__path__)
