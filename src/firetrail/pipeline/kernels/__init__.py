"""Compiled loops that convert scanned records to Arrow buffers and back."""

from firetrail.kernels import prepare

prepare(__path__)
