"""The seam itself: the promises of each operation, on the real file system."""

import errno
import mmap
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.helpers import PATIENCE_S

from firetrail import libc
from firetrail.system import SYNC_THREADS, Clock, Files, System

files = Files()


@pytest.fixture
def descriptor(tmp_path: Path) -> Iterator[int]:
    descriptor = files.open(tmp_path / "a", writable=True, create=True)
    yield descriptor
    files.close(descriptor)


class TestOpen:
    def test_a_missing_file_is_an_error_unless_created(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            files.open(tmp_path / "a", writable=True)

    def test_files_belong_to_their_owner_alone(self, tmp_path: Path, descriptor: int) -> None:
        assert (tmp_path / "a").stat().st_mode & 0o777 == 0o600

    def test_are_not_inherited_by_other_programs(self, descriptor: int) -> None:
        assert not os.get_inheritable(descriptor)

    def test_read_only(self, tmp_path: Path, descriptor: int) -> None:
        reader = files.open(tmp_path / "a", writable=False)
        with pytest.raises(OSError, match="Bad file descriptor"):
            files.write(reader, [b"x"], 0)
        files.close(reader)


@pytest.mark.parametrize(
    ("mode", "owner", "process", "is_private"),
    [
        (0o600, 1000, 1000, True),
        (0o400, 0, 0, True),
        (0o640, 1000, 1000, False),
        (0o640, 0, 0, False),
        (0o640, 0, 1000, True),  # mounted by a container system
        (0o440, 0, 1000, True),
        (0o640, 2000, 1000, False),
        (0o660, 0, 1000, False),
        (0o644, 0, 1000, False),
        (0o604, 0, 1000, False),
        (0o602, 0, 1000, False),
    ],
)
def test_secrets_belong_to_their_owner_and_those_of_root_also_to_a_group(
    mode: int, owner: int, process: int, is_private: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = os.stat_result((0o100000 | mode, 0, 0, 1, owner, 0, 0, 0, 0, 0))
    monkeypatch.setattr(Path, "stat", lambda _: status)
    monkeypatch.setattr(os, "geteuid", lambda: process)
    assert files.is_private(Path("secret")) is is_private
    assert files.private_mode(Path("secret")) == ("640" if owner == 0 != process else "600")


class TestWrite:
    def test_buffers_are_written_one_after_another(self, tmp_path: Path, descriptor: int) -> None:
        assert files.write(descriptor, [b"abc", memoryview(b"de"), b"", b"f"], 2) == 8
        assert (tmp_path / "a").read_bytes() == b"\0\0abcdef"

    def test_more_buffers_than_one_call_takes(self, tmp_path: Path, descriptor: int) -> None:
        parts = [b"%d," % number for number in range(3000)]
        files.write(descriptor, parts, 0)
        assert (tmp_path / "a").read_bytes() == b"".join(parts)

    @pytest.mark.parametrize("most", [1, 2, 3, 5])
    def test_goes_on_after_a_short_write(
        self, tmp_path: Path, descriptor: int, most: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def short(fd: int, buffers: list[memoryview], offset: int) -> int:
            return os.pwrite(fd, b"".join(buffers)[:most], offset)

        monkeypatch.setattr(os, "pwritev", short)
        assert files.write(descriptor, [b"abc", b"defg", b"h"], 0) == 8
        assert (tmp_path / "a").read_bytes() == b"abcdefgh"

    def test_zeros_overwrite_only_their_range(self, tmp_path: Path, descriptor: int) -> None:
        files.write(descriptor, [b"x" * (3 << 20)], 0)
        files.write_zeros(descriptor, 10, (2 << 20) + 5)
        content = (tmp_path / "a").read_bytes()
        assert content[:10] == b"x" * 10
        assert content[10 : (2 << 20) + 5] == bytes((2 << 20) - 5)
        assert set(content[(2 << 20) + 5 :]) == {ord("x")}


class TestSpace:
    def test_allocation_takes_space_and_keeps_the_length(
        self, tmp_path: Path, descriptor: int
    ) -> None:
        files.set_size(descriptor, 1 << 20)
        assert (tmp_path / "a").stat().st_blocks == 0
        files.allocate(descriptor, 0, 1 << 16)
        stat = (tmp_path / "a").stat()
        assert stat.st_size == 1 << 20
        assert stat.st_blocks * 512 >= 1 << 16

    def test_data_ranges_cover_what_is_there(self, descriptor: int) -> None:
        files.set_size(descriptor, 1 << 20)
        files.write(descriptor, [b"x"], 300_000)
        ranges = list(files.data_ranges(descriptor, 0, 1 << 20))
        assert any(start <= 300_000 < end for start, end in ranges)
        assert sum(end - start for start, end in ranges) < 1 << 20
        assert list(files.data_ranges(descriptor, 400_000, 1 << 20)) == []

    def test_data_ranges_stay_inside_what_was_asked_for(self, descriptor: int) -> None:
        files.write(descriptor, [b"x" * (1 << 16)], 0)
        assert list(files.data_ranges(descriptor, 100, 200)) == [(100, 200)]
        assert list(files.data_ranges(descriptor, 1 << 16, 1 << 17)) == []

    def test_used_ratio(self, tmp_path: Path) -> None:
        assert 0.0 <= files.used_ratio(tmp_path) <= 1.0


def says_nothing(*_: int) -> int:
    return 0


def does_not_do_it(*_: int) -> int:
    raise OSError(errno.EXDEV, "Invalid cross-device link")


@pytest.mark.parametrize("kernel", [os.copy_file_range, says_nothing, does_not_do_it])
def test_copy_of_a_range(
    tmp_path: Path, kernel: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some file systems do not copy in the kernel, and not all of them raise an error."""
    monkeypatch.setattr(os, "copy_file_range", kernel)
    files = Files()
    (tmp_path / "source").write_bytes(bytes(range(100)))
    source = files.open(tmp_path / "source", writable=False)
    target = files.open(tmp_path / "target", writable=True, create=True)
    files.copy_range(source, target, 10, 90)
    files.copy_range(source, target, 95, 200)  # it ends before
    files.close(source)
    files.close(target)
    copy = (tmp_path / "target").read_bytes()
    assert copy == bytes(10) + bytes(range(10, 90)) + bytes(5) + bytes(range(95, 100))


class TestMapping:
    def test_is_shared_with_the_file(self, tmp_path: Path, descriptor: int) -> None:
        files.set_size(descriptor, 4096)
        mapping = files.map(descriptor, 4096, writable=True)
        mapping[0:3] = b"abc"
        assert (tmp_path / "a").read_bytes()[:3] == b"abc"
        mapping.close()

    def test_populate_changes_nothing_and_lets_go(self, tmp_path: Path, descriptor: int) -> None:
        files.write(descriptor, [b"abc"], 0)
        files.set_size(descriptor, 1 << 20)
        mapping = files.map(descriptor, 1 << 20, writable=True)
        files.populate(memoryview(mapping), 5000, 100_000)
        assert (tmp_path / "a").read_bytes() == b"abc".ljust(1 << 20, b"\0")
        mapping.close()

    def test_lock_memory_lets_go(self) -> None:
        mapping = mmap.mmap(-1, 4096)
        try:
            files.lock_memory(mapping)
        except OSError as error:
            assert "mlock of 4096 bytes" in str(error)
        mapping.close()


class TestFolders:
    def test_are_made_with_those_above(self, tmp_path: Path) -> None:
        files.make_folder(tmp_path / "a" / "b" / "c")
        files.make_folder(tmp_path / "a" / "b" / "c")
        assert (tmp_path / "a" / "b" / "c").is_dir()
        assert (tmp_path / "a").stat().st_mode & 0o777 == 0o700

    def test_each_name_is_made_durable(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        synced: list[Path] = []
        monkeypatch.setattr(files, "sync_folder", synced.append, raising=False)
        files.make_folder(tmp_path / "a" / "b")
        assert synced == [tmp_path, tmp_path / "a"]

    def test_a_file_in_the_way_of_a_folder_is_an_error(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_bytes(b"")
        with pytest.raises(OSError, match=str(tmp_path / "a")):
            files.make_folder(tmp_path / "a" / "b")

    def test_names_are_sorted_and_none_where_there_is_no_folder(self, tmp_path: Path) -> None:
        for name in "cab":
            (tmp_path / name).touch()
        assert files.names(tmp_path) == ["a", "b", "c"]
        assert files.names(tmp_path / "missing") == []


class TestReplace:
    def test_gives_the_new_content(self, tmp_path: Path) -> None:
        for content in (b"old and longer", b"new"):
            files.replace(tmp_path / "a", content)
            assert files.read(tmp_path / "a") == content
        assert files.names(tmp_path) == ["a"]

    @pytest.mark.parametrize("operation", ["write", "sync", "rename"])
    def test_a_failure_leaves_the_old_content(self, tmp_path: Path, operation: str) -> None:
        class Failing(Files):
            pass

        def fail(*arguments: object) -> None:
            raise OSError(errno.EIO, "no")

        files.replace(tmp_path / "a", b"old")
        failing = Failing()
        setattr(failing, operation, fail)
        with pytest.raises(OSError, match="no"):
            failing.replace(tmp_path / "a", b"new")
        assert files.read(tmp_path / "a") == b"old"

    def test_a_removed_file_is_gone_and_cannot_be_removed_again(self, tmp_path: Path) -> None:
        (tmp_path / "a").touch()
        files.remove(tmp_path / "a")
        assert not (tmp_path / "a").exists()
        with pytest.raises(FileNotFoundError):
            files.remove(tmp_path / "a")


LOCKER = """
import sys
from pathlib import Path
from firetrail.system import Files
files = Files()
descriptor = files.open(Path(sys.argv[1]), writable=True)
print(files.lock(descriptor), files.lock_owner(descriptor), flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("at_once", [True, False])
class TestExchange:
    @pytest.fixture(autouse=True)
    def kernel(self, at_once: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        if not at_once:
            monkeypatch.setattr(libc, "_LIBC", object())

    def test_two_folders_swap_their_names(self, tmp_path: Path) -> None:
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
            (tmp_path / name / f"of-{name}").touch()
        files.exchange(tmp_path / "a", tmp_path / "b")
        assert [path.name for path in sorted(tmp_path.rglob("of-*"))] == ["of-b", "of-a"]
        assert sorted(os.listdir(tmp_path)) == ["a", "b"]

    def test_both_must_be_there(self, tmp_path: Path) -> None:
        (tmp_path / "a").mkdir()
        with pytest.raises(FileNotFoundError):
            files.exchange(tmp_path / "a", tmp_path / "b")
        assert os.listdir(tmp_path) == ["a"]


class TestLock:
    def test_is_seen_by_other_processes(self, tmp_path: Path, descriptor: int) -> None:
        assert files.lock_owner(descriptor) is None
        assert files.lock(descriptor)
        other = subprocess.run(
            [sys.executable, "-c", LOCKER, str(tmp_path / "a")],
            input="",
            capture_output=True,
            text=True,
            check=True,
        )
        assert other.stdout.split() == ["False", str(os.getpid())]

    def test_a_lock_of_another_process_is_respected(self, tmp_path: Path, descriptor: int) -> None:
        with subprocess.Popen(
            [sys.executable, "-c", LOCKER, str(tmp_path / "a")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as other:
            assert other.stdout is not None and other.stdin is not None
            assert other.stdout.readline().split() == ["True", "None"]
            assert not files.lock(descriptor)
            assert files.lock_owner(descriptor) == other.pid
            other.stdin.close()
        assert files.lock(descriptor)


def test_the_clock_advances_and_the_memory_is_known() -> None:
    clock = Clock()
    before = clock.monotonic()
    clock.sleep_ms(1)
    assert clock.monotonic() >= before + 0.001
    assert clock.now_ms() * 1_000_000 <= clock.time_ns()
    assert System().memory_bytes > 1 << 20


def test_folders_are_listed_without_files(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    (tmp_path / "file").touch()
    assert files.folders(tmp_path) == ["a", "b", "link"]
    assert files.folders(tmp_path / "missing") == files.folders(tmp_path / "file") == []


class TestAtOnce:
    def test_all_calls_are_made_by_several_threads(self) -> None:
        together = threading.Barrier(SYNC_THREADS, timeout=PATIENCE_S)
        made: list[int] = []

        def call(number: int) -> None:
            if number < SYNC_THREADS:
                together.wait()  # raises unless all of them arrive
            made.append(number)

        assert files.run_in_threads([partial(call, number) for number in range(100)])
        assert sorted(made) == list(range(100))

    def test_few_are_made_by_the_caller(self) -> None:
        threads: list[threading.Thread] = []
        assert files.run_in_threads([lambda: threads.append(threading.current_thread())] * 3)
        assert set(threads) == {threading.current_thread()}

    @pytest.mark.parametrize("count", [3, 100])
    def test_what_fails_is_raised(self, count: int) -> None:
        def fail() -> None:
            raise OSError(5, "no")

        calls: list[Callable[[], object]] = [lambda: None] * count
        with pytest.raises(OSError, match="no"):
            files.run_in_threads([*calls, fail, *calls])

    @pytest.mark.parametrize("count", [3, 50 * SYNC_THREADS])
    def test_no_more_when_the_time_is_over(self, count: int) -> None:
        made: list[None] = []
        assert not files.run_in_threads([lambda: made.append(None)] * count, lambda: len(made) > 0)
        assert 0 < len(made) <= SYNC_THREADS  # a call of each thread, and not all that wait


class TestUnfinishedWork:
    def test_a_folder_is_removed_with_all_in_it(self, tmp_path: Path) -> None:
        (tmp_path / "a" / "b").mkdir(parents=True)
        (tmp_path / "a" / "b" / "c").touch()
        files.remove_tree(tmp_path / "a")
        assert not (tmp_path / "a").exists()
        with pytest.raises(FileNotFoundError):
            files.remove_tree(tmp_path / "a")
        files.remove_tree(tmp_path / "a", ignore_errors=True)

    def test_a_file_is_removed_if_it_is_there(self, tmp_path: Path) -> None:
        (tmp_path / "a").touch()
        files.discard(tmp_path / "a")
        assert not (tmp_path / "a").exists()
        files.discard(tmp_path / "a")


def test_the_lock_of_an_open_file_keeps_out_this_process_too(
    tmp_path: Path, descriptor: int
) -> None:
    assert files.lock_open_file(descriptor)
    other = files.open(tmp_path / "a", writable=True)
    assert not files.lock_open_file(other)
    files.close(other)
    assert files.lock_open_file(descriptor), "unlike with lock(), closing another one frees nothing"


def test_a_second_name_that_is_taken(tmp_path: Path) -> None:
    files = Files()
    (tmp_path / "a").write_bytes(b"1")
    files.link(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == b"1"
    with pytest.raises(FileExistsError):
        files.link(tmp_path / "a", tmp_path / "b")
