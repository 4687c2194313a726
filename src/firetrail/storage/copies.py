"""Copies of sparse files."""

from pathlib import Path

from firetrail.system import Files


def copy_file(files: Files, source: Path, target: Path, part: range | None = None) -> int:
    """Copy a file durably, and return how many bytes were copied; holes are not.

    The copy has the length that the file has at the start, and is as sparse. The file may be
    written during the copy: writes after the current position of the copy are included, up to that
    length. If only a ``part`` of the bytes is copied, the rest of the copy is a hole.
    """
    descriptor = files.open(source, writable=False)
    try:
        size = files.size(source)
        copy = files.open(target, writable=True, create=True)
        try:
            files.set_size(copy, size)
            copied = 0
            begin, limit = (part.start, min(part.stop, size)) if part is not None else (0, size)
            for start, end in files.data_ranges(descriptor, begin, limit):
                files.copy_range(descriptor, copy, start, end)
                copied += end - start
            files.sync(copy)
        finally:
            files.close(copy)
    finally:
        files.close(descriptor)
    return copied
