"""A simulated disk: the content of a folder that would survive a power loss.

:class:`SimulatedFiles` works on real files, whose content is the page cache, and tells a
:class:`Disk` what was synced. Until a sync, a file on the disk has the content (and the length) of
its last one, and a folder the names. A :class:`Snapshot` holds both sides at one moment; from it
come the images that hardware could leave: of everything that was pending, some reached the disk,
some did not, and of some blocks the bytes that were being changed hold anything. Bytes that were
not being changed stay as they are, also where a block is rewritten only in part (what SQLite calls
a powersafe overwrite): without that no log that fills its blocks bit by bit could promise a thing.

A sync that fails drops what it should have written, as Linux does: the pages count as clean, so
another sync succeeds without writing them.
"""

import mmap
import os
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.crash.world.threads import Abandoned, World, WorldClock, WorldThreads

from firetrail.system import Files, System

SECTOR = 512
PAGE = 4096
NEW = " (new)"
"""Suffix of the label of a file that has no name yet; it follows the name that the file gets."""

Image = dict[str, bytes | None]
"""Content of every file by its path below the root; None for a folder."""
Hook = Callable[[str, str], None]
"""Called before an operation with its kind and the path (or name) it is about."""


@dataclass(frozen=True, slots=True, order=True)
class Pending:
    """Something that may or may not have reached the disk."""

    kind: str  # "name", "size" or "block"
    path: str
    version: int = 0  # 0: the file that was durable under this name, 1: the one there now
    at: int = 0


@dataclass(slots=True)
class Version:
    """A file: as of its last sync, and now."""

    durable: bytes
    now: bytes


@dataclass(slots=True)
class Snapshot:
    """The state of a folder at one moment; None means a folder, or that there is no file."""

    label: str
    before: dict[str, Version | None] = field(default_factory=dict)
    """The files of the durable names."""
    after: dict[str, Version | None] = field(default_factory=dict)
    """The files of the current names."""

    def pending(self, block: int) -> list[Pending]:
        """Return every change that was not synced yet."""
        found = []
        for path in sorted(self.before.keys() | self.after.keys()):
            if (path in self.before) != (path in self.after):
                found.append(Pending("name", path))
            old, new = self.before.get(path), self.after.get(path)
            if path in self.before and path in self.after and old is not new:
                found.append(Pending("name", path))
            versions = [(0, old)] if old is new else [(0, old), (1, new)]
            for number, version in versions:
                if version is None or version.durable == version.now:
                    continue
                if len(version.durable) != len(version.now):
                    found.append(Pending("size", path, number))
                found += [
                    Pending("block", path, number, at)
                    for at in range(0, len(version.now), block)
                    if version.durable[at : at + block].ljust(block, b"\0")
                    != version.now[at : at + block].ljust(block, b"\0")
                ]
        return found

    def image(
        self, block: int, kept: Collection[Pending], garbled: Mapping[Pending, bytes] | None = None
    ) -> Image:
        """Return the content of the disk if only ``kept`` of the pending changes reached it."""
        kept = set(kept)
        garbled = garbled or {}
        image: Image = {}
        for path in sorted(self.before.keys() | self.after.keys()):
            parent = path.rpartition("/")[0]
            if parent and parent not in image:
                continue
            number = 0
            if path not in self.before or (
                path in self.after and self.before[path] is not self.after[path]
            ):
                number = 1 if Pending("name", path) in kept else 0
            elif path not in self.after and Pending("name", path) in kept:
                continue  # its removal has reached the disk
            versions = self.after if number else self.before
            if path in versions:
                image[path] = None
                if (version := versions[path]) is not None:
                    image[path] = _mix(path, number, version, block, kept, garbled)
        return image


def _mix(
    path: str,
    number: int,
    version: Version,
    block: int,
    kept: Collection[Pending],
    garbled: Mapping[Pending, bytes],
) -> bytes:
    size = len(version.durable)
    if Pending("size", path, number) in kept:
        size = len(version.now)
    content = bytearray(version.durable[:size].ljust(size, b"\0"))
    for at in range(0, size, block):
        item = Pending("block", path, number, at)
        end = min(at + block, size)
        if item in garbled:
            for i, noise in zip(range(at, end), garbled[item], strict=False):
                if content[i] != version.now[i]:
                    content[i] = noise
        elif item in kept:
            content[at:end] = version.now[at:end]
    return bytes(content)


class Disk:
    """The durable state of the folder ``root``. Everything in it is durable at first."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._names: dict[str, dict[str, int]] = {}
        self._folders: dict[str, int] = {}  # inode numbers of those whose names were synced
        self._durable: dict[int, bytes] = {}
        self._dropped: dict[int, bytes] = {}
        self._dropped_names: dict[str, dict[str, int]] = {}
        self._gone: dict[int, bytes] = {}  # content of files that have no name any more
        for folder, _, files in os.walk(root):
            self._names[self.name_of(folder)] = _entries(Path(folder))
            for name in files:
                path = Path(folder, name)
                self._durable[path.stat().st_ino] = path.read_bytes()

    def name_of(self, path: str | Path) -> str:
        """Return the path below the root, empty for the root."""
        return str(path).removeprefix(str(self.root)).removeprefix("/")

    def synced(self, descriptor: int, content: bytes) -> None:
        """Note that the file's data, as it was when the sync began, is durable."""
        number = os.fstat(descriptor).st_ino
        dropped = self._dropped.get(number)
        if dropped is not None:
            durable = self._durable.get(number, b"")
            content = b"".join(
                durable[at : at + PAGE].ljust(len(content[at : at + PAGE]), b"\0")
                if content[at : at + PAGE] == dropped[at : at + PAGE]
                else content[at : at + PAGE]
                for at in range(0, len(content), PAGE)
            )
        self._durable[number] = content

    def sync_failed(self, descriptor: int) -> None:
        """Note that the dirty pages of the file count as clean now, but are not on the disk."""
        self._dropped[os.fstat(descriptor).st_ino] = read_all(descriptor)

    def synced_folder(self, path: Path) -> None:
        """Note that the names in the folder are durable."""
        folder = self.name_of(path)
        names = _entries(path)
        before = self._names.get(folder, {})
        for name, number in self._dropped_names.get(folder, {}).items():
            if names.get(name) == number and name not in before:
                del names[name]
        self._names[folder] = names
        self._folders[folder] = path.stat().st_ino

    def folder_sync_failed(self, path: Path) -> None:
        """Note that new names in the folder count as written now, although they are not."""
        self._dropped_names[self.name_of(path)] = _entries(path)

    def forget_name(self, path: Path) -> None:
        """Note that the name is about to be removed or to become the name of another file."""
        if path.exists():
            self._gone[path.stat().st_ino] = path.read_bytes()

    def renames_folder(self, path: Path, target: Path) -> None:
        """Note that what is durable in a folder will be durable under another name."""
        old, new = self.name_of(path), self.name_of(target)
        for name in [name for name in self._names if f"{name}/".startswith(f"{old}/")]:
            self._names[new + name.removeprefix(old)] = self._names[name]
            if name in self._folders:
                self._folders[new + name.removeprefix(old)] = self._folders[name]

    def snapshot(self, label: str = "") -> Snapshot:
        """Return the durable and the current state as of now."""
        snapshot = Snapshot(label)
        versions: dict[int, Version] = {}
        root = str(self.root)
        folders = [""]
        while folders:
            folder = folders.pop()
            for name, number in _entries(f"{root}/{folder}").items():
                path = f"{folder}/{name}" if folder else name
                if number < 0:
                    folders.append(path)
                    snapshot.after[path] = None
                else:
                    version = Version(self._durable.get(number, b""), _read(f"{root}/{path}"))
                    versions[number] = version
                    snapshot.after[path] = version
        self._walk_durable("", snapshot, versions)
        for path in sorted(snapshot.after.keys() - snapshot.before.keys()):
            # If the name of a new folder lasts, the names that were synced in it do.
            if path in self._folders and self._folders[path] == os.stat(f"{root}/{path}").st_ino:
                self._walk_durable(path, snapshot, versions)
        return snapshot

    def _walk_durable(self, folder: str, into: Snapshot, versions: dict[int, Version]) -> None:
        for name, number in self._names.get(folder, {}).items():
            path = f"{folder}/{name}" if folder else name
            if number < 0:
                into.before[path] = None
                self._walk_durable(path, into, versions)
            else:
                if number not in versions:
                    durable = self._durable.get(number, b"")
                    versions[number] = Version(durable, self._gone.get(number, durable))
                into.before[path] = versions[number]


class SimulatedFiles(Files):
    """Real files, with every change announced and every sync noted instead of done."""

    def __init__(self, disk: Disk, world: World) -> None:
        self.disk = disk
        self.world = world
        self.hooks: list[Hook] = []
        self.operations = 0
        self._open: dict[int, Path] = {}

    def system(self) -> System:
        """Return the operating system of this world."""
        return System(self, WorldClock(self.world), 1 << 30, WorldThreads(self.world))

    def _announce(self, kind: str, target: str | Path | int) -> None:
        if self.world.abandoned:
            raise Abandoned
        name = self.disk.name_of(self._open[target] if isinstance(target, int) else target)
        self.operations += 1
        for hook in self.hooks:
            hook(kind, name)
        self.world.yield_point()

    def abandon(self) -> None:
        """Close what the killed process had open."""
        for descriptor in self._open:
            os.close(descriptor)
        self._open.clear()

    # -- the operations -----------------------------------------------------------------------

    def open(self, path: Path, *, writable: bool, create: bool = False) -> int:
        if create and not path.exists():
            self._announce("create", path)
        descriptor = super().open(path, writable=writable, create=create)
        self._open[descriptor] = path
        return descriptor

    def open_new(self, path: Path) -> int:
        self._announce("create", path)
        descriptor = super().open_new(path)
        self._open[descriptor] = path.with_name(path.name + NEW)
        return descriptor

    def give_name(self, descriptor: int, path: Path) -> None:
        self._announce("give_name", path)
        self.disk.forget_name(path)
        super().give_name(descriptor, path)
        self._open[descriptor] = path

    def close(self, descriptor: int) -> None:
        if not self.world.abandoned:
            super().close(descriptor)
            self._open.pop(descriptor, None)

    def set_size(self, descriptor: int, size: int) -> None:
        self._announce("set_size", descriptor)
        super().set_size(descriptor, size)

    def allocate(self, descriptor: int, offset: int, length: int) -> None:
        self._announce("allocate", descriptor)
        super().allocate(descriptor, offset, length)

    def map(self, descriptor: int, size: int, *, writable: bool) -> mmap.mmap:
        if self.world.abandoned:
            raise Abandoned
        return super().map(descriptor, size, writable=writable)

    def populate(self, view: memoryview, offset: int, length: int) -> None:
        """Do nothing: this affects only the speed."""

    def write(self, descriptor: int, buffers: Sequence[bytes | memoryview], offset: int) -> int:
        self._announce("write", descriptor)
        return super().write(descriptor, buffers, offset)

    def write_zeros(self, descriptor: int, offset: int, end: int) -> None:
        self._announce("write_zeros", descriptor)
        super().write_zeros(descriptor, offset, end)

    def sync(self, descriptor: int) -> None:
        content = read_all(descriptor)  # writes during the sync may be durable or not
        try:
            self._announce("sync", descriptor)
        except OSError:
            self.disk.sync_failed(descriptor)
            raise
        self.disk.synced(descriptor, content)

    def sync_folder(self, path: Path) -> None:
        try:
            self._announce("sync_folder", path)
        except OSError:
            self.disk.folder_sync_failed(path)
            raise
        self.disk.synced_folder(path)

    def begin_folder(self, path: Path) -> None:
        self._announce("make_folder", path)
        super().begin_folder(path)

    def run_in_threads(
        self, calls: Sequence[Callable[[], object]], is_over: Callable[[], bool] | None = None
    ) -> bool:
        return self.run_in_order(calls, is_over)  # the simulated process has one thread

    def rename(self, path: Path, target: Path) -> None:
        self._announce("rename", target)
        self.disk.forget_name(target)
        if path.is_dir():
            self.disk.renames_folder(path, target)
        super().rename(path, target)

    def remove(self, path: Path) -> None:
        self._announce("remove", path)
        self.disk.forget_name(path)
        super().remove(path)

    def remove_folder(self, path: Path) -> None:
        self._announce("remove_folder", path)
        super().remove_folder(path)

    def descriptor_limit(self) -> int:
        """Return 0, so that the store keeps as few files open as it can."""
        return 0

    def used_ratio(self, path: Path) -> float:
        return 0.1


# -- images ---------------------------------------------------------------------------------------


def write_image(image: Image, folder: Path) -> None:
    """Make the folder look like the image; runs of zeros become holes."""
    folder.mkdir(parents=True)
    for name, content in image.items():
        path = folder / name
        if content is None:
            path.mkdir()
            continue
        with path.open("wb") as file:
            for at in range(0, len(content), PAGE):
                part = content[at : at + PAGE]
                if part.count(0) != len(part):
                    file.seek(at)
                    file.write(part)
            file.truncate(len(content))


def random_image(snapshot: Snapshot, source: random.Random) -> tuple[str, Image]:
    """Return one of the images that could be left, and how it was chosen."""
    block = source.choice((SECTOR, PAGE))
    pending = snapshot.pending(block)
    fate = source.choice(("none", "all", "one kept", "one missing", "some", "some", "garbled"))
    kept: set[Pending] = set()
    garbled: dict[Pending, bytes] = {}
    if fate == "all":
        kept = set(pending)
    elif fate == "one kept" and pending:
        kept = {source.choice(pending)}
        kept |= {item for item in pending if item.kind != "block"}
    elif fate == "one missing" and pending:
        kept = set(pending) - {source.choice(pending)}
    elif fate in ("some", "garbled"):
        share = source.random()
        kept = {item for item in pending if source.random() < share}
    if fate == "garbled":
        blocks = [item for item in pending if item.kind == "block"]
        for item in blocks:
            if source.random() < 0.3:
                garbled[item] = source.randbytes(block)
    return f"{fate} of {len(pending)} x {block}", snapshot.image(block, kept, garbled)


def every_image(snapshot: Snapshot, block: int) -> Iterator[tuple[str, Image]]:
    """None kept, all kept, each alone missing, each alone kept."""
    pending = snapshot.pending(block)
    yield f"none of {len(pending)} x {block}", snapshot.image(block, ())
    yield f"all of {len(pending)} x {block}", snapshot.image(block, pending)
    not_blocks = {item for item in pending if item.kind != "block"}
    for item in pending:
        yield f"{block}: without {item}", snapshot.image(block, set(pending) - {item})
        yield f"{block}: only {item}", snapshot.image(block, not_blocks | {item})


def read_all(descriptor: int) -> bytes:
    """Return the content of the whole file of a descriptor."""
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0)


def _read(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return read_all(descriptor)
    finally:
        os.close(descriptor)


def _entries(folder: str | Path) -> dict[str, int]:
    """Names and inode numbers, those of folders negative."""
    with os.scandir(folder) as found:
        return {
            entry.name: -entry.inode() if entry.is_dir(follow_symlinks=False) else entry.inode()
            for entry in found
        }
