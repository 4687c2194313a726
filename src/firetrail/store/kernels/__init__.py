"""Compiled loops that work on the open files of a store."""

from firetrail.kernels import prepare

prepare(__path__)
