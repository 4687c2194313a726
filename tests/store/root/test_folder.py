"""Opening a folder: whether it is a store, the lock, and the abort file."""

import errno
import os
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from tests.helpers import Machine, bodies, put_all, small_config, tree
from tests.store.conftest import OpenStore

from firetrail import Store
from firetrail.errors import NotAStoreError, StoreError, StoreLockedError
from firetrail.store.root.folder import AbortFile, FolderLock, check_is_store, lock_owner

HOLDER = """
import sys
from firetrail import Store
with Store.open(sys.argv[1]) as store:
    print("open", flush=True)
    sys.stdin.read()
"""

TAKER = """
import sys
from firetrail import Store
from firetrail.errors import StoreLockedError
try:
    Store.open(sys.argv[1])
except StoreLockedError as error:
    print(error)
"""


class TestNotAStore:
    def test_a_file_is_not_a_store(self, machine: Machine, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"x")
        with pytest.raises(NotAStoreError, match="file: not a folder"):
            Store.open(tmp_path / "file", system=machine.system)
        with pytest.raises(NotAStoreError, match="file: not a folder"):
            check_is_store(machine.system, tmp_path / "file")

    def test_a_path_below_a_file_is_refused(self, machine: Machine, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"x")
        with pytest.raises(StoreError, match="file"):
            Store.open(tmp_path / "file" / "data", system=machine.system)

    def test_a_folder_with_other_files_is_refused(self, machine: Machine, tmp_path: Path) -> None:
        (tmp_path / "letter.txt").write_bytes(b"x")
        (tmp_path / "photos").mkdir()
        with pytest.raises(NotAStoreError, match=r"contains other files.*choose an empty folder"):
            Store.open(tmp_path, system=machine.system)
        assert sorted(os.listdir(tmp_path)) == ["letter.txt", "photos"]

    def test_a_store_with_another_file_beside_it_opens(self, store: Store, root: Path) -> None:
        (root / "letter.txt").write_bytes(b"x")
        store.close()
        with Store.open(root, small_config()) as again:
            assert again.topics() == []
        assert (root / "letter.txt").read_bytes() == b"x"

    def test_a_store_must_have_a_log_folder(self, machine: Machine, tmp_path: Path) -> None:
        with pytest.raises(NotAStoreError, match="missing: no such folder"):
            check_is_store(machine.system, tmp_path / "missing")
        with pytest.raises(NotAStoreError, match="has no folder 'commitlog'"):
            check_is_store(machine.system, tmp_path)
        (tmp_path / "commitlog").mkdir()
        check_is_store(machine.system, tmp_path)

    def test_an_empty_folder_becomes_one(self, machine: Machine, tmp_path: Path) -> None:
        Store.open(tmp_path, small_config(), system=machine.system).close()
        assert (tmp_path / "commitlog").is_dir()
        with Store.open(str(tmp_path), small_config(), system=machine.system) as again:
            assert again.recovery.clean

    def test_parent_folders_are_created(self, machine: Machine, tmp_path: Path) -> None:
        path = tmp_path / "a" / "b" / "c"
        Store.open(path, small_config(), system=machine.system).close()
        assert path.is_dir()


class TestNoPermission:
    @pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS])
    def test_a_folder_that_cannot_be_created(self, machine: Machine, root: Path, code: int) -> None:
        machine.files.fail("begin_folder", code)
        with pytest.raises(
            StoreError, match=rf"data: cannot be used as a store: {os.strerror(code)}"
        ):
            Store.open(root, small_config(), system=machine.system)

    def test_a_folder_that_cannot_be_read(self, machine: Machine, store: Store, root: Path) -> None:
        store.close()
        machine.files.fail("names", errno.EACCES)
        with pytest.raises(StoreError, match="data: cannot be used as a store: Permission denied"):
            Store.open(root, small_config(), system=machine.system)

    @pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS])
    def test_a_lock_file_that_cannot_be_written(
        self, machine: Machine, store: Store, root: Path, code: int
    ) -> None:
        put_all(store, [b"a"])
        store.close()
        before = tree(root)
        machine.files.fail("open", code, "data/lock")
        with pytest.raises(StoreError, match=rf"data/lock: cannot be written: {os.strerror(code)}"):
            Store.open(root, small_config(), system=machine.system)
        machine.files.heal()
        assert tree(root) == before
        # The attempt holds no lock.
        with Store.open(root, small_config(), system=machine.system) as again:
            assert bodies(again) == [b"a"]

    @pytest.mark.parametrize("name", ["commitlog", "consumequeue", "index", "checkpoint", "abort"])
    @pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS, errno.EMFILE])
    def test_a_file_that_cannot_be_opened(
        self, machine: Machine, open_store: OpenStore, root: Path, name: str, code: int
    ) -> None:
        store = open_store()
        put_all(store, [b"a"], keys=["k"])
        store.close()
        (root / "firetrail.watermark").unlink()  # so that all of them are looked at
        machine.files.fail("open", code, name)
        with pytest.raises(StoreError, match=rf"cannot be opened.*{os.strerror(code)}.*{name}"):
            open_store()
        machine.files.heal()
        assert not machine.files.open_files
        assert bodies(open_store()) == [b"a"]

    def test_lock_that_cannot_be_asked_for(self, machine: Machine, root: Path) -> None:
        machine.files.fail("write", errno.ENOSPC, "data/lock")
        with pytest.raises(StoreError, match="lock: cannot be written: No space left"):
            Store.open(root, small_config(), system=machine.system)
        assert not machine.files.open_files


class TestLock:
    def test_a_second_open_in_this_process_is_refused(
        self, open_store: OpenStore, root: Path
    ) -> None:
        store = open_store()
        put_all(store, [b"a"])
        for path in (root, root / ".." / root.name, Path(os.path.relpath(root))):
            with pytest.raises(StoreLockedError, match="this process has the store open already"):
                open_store(path)
        put_all(store, [b"b"])
        store.close()
        assert bodies(open_store()) == [b"a", b"b"]

    def test_another_process_cannot_open_the_store(
        self, open_store: OpenStore, root: Path, machine: Machine
    ) -> None:
        store = open_store()
        put_all(store, [b"a"])
        taker = subprocess.run(
            [sys.executable, "-c", TAKER, str(root)], capture_output=True, text=True, check=True
        )
        assert f"process {os.getpid()} has the store open; stop it" in taker.stdout
        assert lock_owner(machine.system, root) == os.getpid()
        put_all(store, [b"b"])

    def test_the_owner_in_another_process_is_named(
        self, open_store: OpenStore, root: Path, machine: Machine
    ) -> None:
        with subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as holder:
            assert holder.stdout is not None and holder.stdin is not None
            assert holder.stdout.readline() == "open\n"
            with pytest.raises(StoreLockedError, match=f"process {holder.pid} has the store open"):
                open_store()
            assert lock_owner(machine.system, root) == holder.pid
            assert not machine.files.open_files
            holder.stdin.close()
        assert lock_owner(machine.system, root) is None
        open_store()

    def test_is_given_up_with_a_failed_open(self, machine: Machine, root: Path) -> None:
        machine.files.fail("open", errno.EIO, "data/checkpoint")
        for _ in range(2):
            with pytest.raises(StoreError, match="Input/output error"):
                Store.open(root, small_config(), system=machine.system)
        machine.files.heal()
        Store.open(root, small_config(), system=machine.system).close()

    def test_only_one_of_many_gets_it(self, machine: Machine, tmp_path: Path) -> None:
        taken: list[FolderLock] = []
        start = threading.Barrier(8)

        def take() -> None:
            start.wait()
            with suppress(StoreLockedError):
                taken.append(FolderLock(machine.system, tmp_path))

        threads = [threading.Thread(target=take) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(taken) == 1
        taken[0].release()
        FolderLock(machine.system, tmp_path).release()

    def test_the_lock_shows_whether_java_held_it_last(
        self, machine: Machine, tmp_path: Path
    ) -> None:
        for content, javas in ((b"", False), (b"lock", True)):
            (tmp_path / "lock").write_bytes(content)
            for expected in (javas, False):
                lock = FolderLock(machine.system, tmp_path)
                assert lock.last_held_by_java is expected
                lock.sign()
                lock.release()

    def test_nobody_owns_a_store_that_was_never_opened(
        self, machine: Machine, tmp_path: Path
    ) -> None:
        assert lock_owner(machine.system, tmp_path) is None


class TestAbort:
    def test_the_abort_file_exists_while_the_store_is_open(
        self, open_store: OpenStore, root: Path
    ) -> None:
        store = open_store()
        assert (root / "abort").read_bytes().startswith(b"firetrail")
        store.close()
        assert not (root / "abort").exists()

    def test_the_abort_file_shows_whether_firetrail_wrote_it(
        self, machine: Machine, tmp_path: Path
    ) -> None:
        abort = AbortFile(machine.system, tmp_path)
        assert not abort.exists and not abort.is_ours
        for java in (b"", b"12345"):
            (tmp_path / "abort").write_bytes(java)
            assert abort.exists and not abort.is_ours
        abort.create(sealed=False)
        assert abort.exists and abort.is_ours
        abort.remove()
        assert not abort.exists
