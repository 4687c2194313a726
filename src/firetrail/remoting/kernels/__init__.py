"""Compiled loops for the frames and headers of the remoting protocol."""

from firetrail.kernels import prepare

prepare(__path__)
