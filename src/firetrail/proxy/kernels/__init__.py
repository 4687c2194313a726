"""Compiled loops for the calls of the gRPC service."""

from firetrail.kernels import prepare

prepare(__path__)
