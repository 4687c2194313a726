"""The folders of a commit log: ``commitlog/`` of the store, or others.

RocketMQ's ``storePathCommitLog`` names one or several folders, and ``readOnlyCommitLogStorePaths``
names folders that get no new files. Java knows them from its ``broker.conf`` only. Firetrail also
writes them to ``firetrail.log-paths`` in the store, in the same syntax, before it creates files
elsewhere, so that every tool finds the log without a configuration. ``docs/format/log-paths.md``
describes the file and the rules.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from firetrail.errors import ConfigError, StoreDamagedError, StoreError
from firetrail.format.files.java_properties import Entry, parse_properties
from firetrail.format.names import (
    CHECKPOINT,
    COMMIT_LOG,
    CONSUME_QUEUE,
    LOCK,
    LOG_PATHS,
    parse_segment_name,
)
from firetrail.settings.settings_table import FOLDER_SEPARATOR
from firetrail.storage.spread import Spread
from firetrail.store.settings.store_config import StoreConfig
from firetrail.system import Files

PATHS_KEY = "storePathCommitLog"
READ_ONLY_KEY = "readOnlyCommitLogStorePaths"
_STORE_KEY = "store"
"""The link from folders elsewhere to the folder of the store that they belong to."""


class LogPaths(NamedTuple):
    """The folders of a log."""

    writable: tuple[Path, ...]
    read_only: tuple[Path, ...] = ()

    @property
    def all(self) -> tuple[Path, ...]:
        """All folders, each once."""
        return tuple(dict.fromkeys((*self.writable, *self.read_only)))

    def outside(self, root: Path) -> tuple[Path, ...]:
        """Return the folders that are not in the folder of the store."""
        return tuple(path for path in self.all if not path.is_relative_to(root))

    def spread(self, files: Files, full_above: Callable[[], float] = lambda: 1.0) -> Spread:
        """Return the rule for new files, and the way to existing ones."""
        return Spread(files, self.writable, self.read_only, full_above)


def shown_path(root: Path, path: Path) -> str:
    """Return a path for reports: relative if it is in the folder of the store."""
    return (path.relative_to(root) if path.is_relative_to(root) else path).as_posix()


def recorded_paths(files: Files, root: Path) -> LogPaths | None:
    """Return the folders in ``firetrail.log-paths``; None if the log is in ``commitlog/`` alone."""
    content = _recorded(files, root)
    return _paths_in(root, content) if content is not None else None


def log_folders(files: Files, root: Path) -> tuple[Path, ...]:
    """Return all folders with files of a store's log."""
    paths = recorded_paths(files, root)
    return paths.all if paths is not None else (root / COMMIT_LOG,)


def log_spread(
    files: Files, root: Path, full_above: Callable[[], float] = lambda: 1.0
) -> Spread | None:
    """Return the folders of a log; None if they are in ``commitlog/`` alone."""
    paths = recorded_paths(files, root)
    return paths.spread(files, full_above) if paths is not None else None


def settle_paths(files: Files, root: Path, config: StoreConfig) -> LogPaths | None:
    """Make the configured folders those of a store that is about to be written.

    Without configured folders the recorded ones are kept. Raises an error, and changes nothing, if
    a folder with log files would be left out, if one is missing, or if it belongs to another store.
    """
    recorded = _recorded(files, root)
    if recorded is None and not config.commit_log_paths and not config.read_only_log_paths:
        return None
    before = _paths_in(root, recorded) if recorded is not None else LogPaths((root / COMMIT_LOG,))
    paths = before
    if config.commit_log_paths:
        paths = LogPaths(_resolved(root, config.commit_log_paths))
    if config.read_only_log_paths:
        paths = paths._replace(read_only=_resolved(root, config.read_only_log_paths))
    _check_writable(paths)
    if len({folder.resolve() for folder in paths.all}) < len(paths.all):
        raise ConfigError(PATHS_KEY, _text(root, paths.all), "names one folder twice")
    _check_left_out(files, before, paths)
    _check_owner(root, recorded or {}, paths)
    is_new = not any(files.names(root / CONSUME_QUEUE)) and not any(
        _has_files(files, folder) for folder in (*before.all, *paths.all)
    )
    for folder in paths.all:
        _check_exists(files, folder, is_new=is_new)
    if paths == LogPaths((root / COMMIT_LOG,)):
        if recorded is not None:
            files.remove(root / LOG_PATHS)
        return None
    content = _content(root, paths)
    if recorded != parse_properties(content):
        files.replace(root / LOG_PATHS, content.encode())
    return paths


def _recorded(files: Files, root: Path) -> dict[str, Entry] | None:
    try:
        text = files.read(root / LOG_PATHS).decode()
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        text = ""
    entries = parse_properties(text)
    if PATHS_KEY not in entries:
        raise StoreError(
            f"{root / LOG_PATHS}: damaged: it has no {PATHS_KEY}; write that line again, with the "
            "folders of the log as in broker.conf"
        )
    return entries


def _paths_in(root: Path, entries: dict[str, Entry]) -> LogPaths:
    writable, read_only = (
        _resolved(root, [word.strip() for word in entries[key].text.split(FOLDER_SEPARATOR)])
        if key in entries
        else ()
        for key in (PATHS_KEY, READ_ONLY_KEY)
    )
    return LogPaths(writable, read_only)


def _resolved(root: Path, folders: Iterable[str]) -> tuple[Path, ...]:
    return tuple(dict.fromkeys(_below(root, root / folder) for folder in folders if folder))


def _below(root: Path, folder: Path) -> Path:
    """Return a folder; one that is in the store, if through a link, with the store's own path."""
    inside = folder.resolve().is_relative_to(root.resolve())
    return root / folder.resolve().relative_to(root.resolve()) if inside else folder


def _text(root: Path, folders: Iterable[Path]) -> str:
    """Return folders as in ``broker.conf``; those in the store are relative to it."""
    text = FOLDER_SEPARATOR.join(shown_path(root, path) for path in folders)
    return text.replace("\\", "\\\\")


def _content(root: Path, paths: LogPaths) -> str:
    lines = [f"{PATHS_KEY}={_text(root, paths.writable)}"]
    if paths.read_only:
        lines.append(f"{READ_ONLY_KEY}={_text(root, paths.read_only)}")
    if paths.outside(root):
        lines.append(f"{_STORE_KEY}={root}")
    return "".join(f"{line}\n" for line in lines)


def _has_files(files: Files, folder: Path) -> bool:
    return any(parse_segment_name(name) is not None for name in files.names(folder))


def _check_writable(paths: LogPaths) -> None:
    if not set(paths.writable) - set(paths.read_only):
        text = FOLDER_SEPARATOR.join(map(str, paths.read_only))
        raise ConfigError(READ_ONLY_KEY, text, f"leaves no folder of {PATHS_KEY} for new files")


def _check_left_out(files: Files, before: LogPaths, paths: LogPaths) -> None:
    for folder in before.all:
        if folder not in paths.all and _has_files(files, folder):
            raise StoreError(
                f"{folder}: has files of the log, but is not in {PATHS_KEY}; add it to {PATHS_KEY} "
                f"or {READ_ONLY_KEY}, or move its files to one of these folders"
            )


def _check_owner(root: Path, recorded: dict[str, Entry], paths: LogPaths) -> None:
    outside = paths.outside(root)
    owner = recorded.get(_STORE_KEY)
    if outside and owner is not None and owner.text != str(root):
        raise StoreError(
            f"{root / LOG_PATHS}: {outside[0]} belongs to the store {owner.text}; if this store is "
            f"a copy, copy the log as well ('firetrail backup' does); if it was moved here, "
            f"remove the line '{_STORE_KEY}=…'"
        )
    for folder in outside:
        if any((folder.parent / name).exists() for name in (CHECKPOINT, LOCK)):
            raise StoreError(
                f"{folder}: belongs to the store {folder.parent}, not to {root}; correct "
                f"{PATHS_KEY} and {READ_ONLY_KEY}"
            )


def _check_exists(files: Files, folder: Path, *, is_new: bool) -> None:
    if folder.is_dir():
        return
    if not is_new:
        raise StoreDamagedError(
            str(folder),
            0,
            None,
            "this folder of the log does not exist",
            f"mount its volume; if it is new, create it; if it is no longer used, remove it from "
            f"{PATHS_KEY} and {READ_ONLY_KEY}",
        )
    files.make_folder(folder)
