"""The readable index files of a store that is only read; unreadable ones are reported."""

from pathlib import Path

from firetrail.errors import StoreDamagedError
from firetrail.format.files.index import IndexGeometry
from firetrail.format.names import INDEX, parse_index_name
from firetrail.store.index.index_file import IndexFile
from firetrail.store.problems import Problem, ProblemKind
from firetrail.system import System


def load_index_files(
    system: System, root: Path, geometry: IndexGeometry, *, live: bool
) -> tuple[tuple[IndexFile, ...], list[Problem]]:
    """Return the index files of a store, and the errors of those that cannot be read.

    A file that does not show its geometry gets that of the others, or else ``geometry``. In a
    ``live`` store, retention may delete a file while it is opened.
    """
    folder = root / INDEX
    names = [name for name in system.files.names(folder) if parse_index_name(name) is not None]
    loaded: dict[str, IndexFile] = {}
    faults: list[Problem] = []
    for _ in range(2):
        faults.clear()
        for name in names:
            if name in loaded:
                continue
            found = _open(system, folder / name, geometry, live)
            if isinstance(found, Problem):
                faults.append(found)
            elif found is not None:
                loaded[name] = found
                geometry = IndexGeometry(found.slots, found.entries)
    return tuple(loaded[name] for name in names if name in loaded), faults


def _open(
    system: System, path: Path, geometry: IndexGeometry, live: bool
) -> IndexFile | Problem | None:
    kind, file = ProblemKind.INDEX_FILE, None
    try:
        if system.files.size(path) == 0:
            return None  # left by a crash right after its creation
        file = IndexFile.load(system, path, geometry, writable=False)
        _ = file.header  # raises if it is not an index file
        return file
    except StoreDamagedError as error:
        detail = error.detail
    except OSError as error:
        if live and isinstance(error, FileNotFoundError):
            return None  # retention has deleted it
        kind, detail = ProblemKind.FILE_UNREADABLE, str(error.strerror)
    if file is not None:
        file.segment.close()
    return Problem(f"{INDEX}/{path.name}", 0, None, kind, detail)
