"""Compiled loops that turn scanned records into Arrow buffers and back."""

from firetrail.kernels import prepare

prepare(__path__)
