"""The program etcd for the tests, and the message if there is none."""

import subprocess
from pathlib import Path

import pytest
from tests.harness.pytest_runs import REPOSITORY
from tests.machine import etcd_program
from tests.machine.etcd_program import PROGRAM, FetchError, fetch_etcd, find_etcd

APT = """#!/bin/sh
echo "$@" >> {log}
case "$*" in
    {refused}) echo "E: Unable to locate package etcd-server" >&2; exit 100 ;;
    *download*) touch etcd-server_3.4_amd64.deb ;;
esac
"""
DPKG = """#!/bin/sh
mkdir -p unpacked/usr/bin
echo fetched > unpacked/usr/bin/etcd
"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without etcd, whose programs are in a folder, and whose clone is a folder, too."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("sh", "mkdir", "touch"):
        (programs / name).symlink_to(f"/bin/{name}")
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.delenv(PROGRAM, raising=False)
    monkeypatch.setattr(etcd_program, "FETCHED", tmp_path / "build" / "etcd")
    return tmp_path


def install_apt(machine: Path, refused: str = "nothing") -> Path:
    """Install an apt-get that refuses some commands, and return the list of its commands."""
    log = machine / "commands"
    for name, text in (("apt-get", APT.format(log=log, refused=refused)), ("dpkg-deb", DPKG)):
        (machine / "bin" / name).write_text(text)
        (machine / "bin" / name).chmod(0o755)
    return log


def test_etcd_of_the_machine_is_used(machine: Path) -> None:
    own = machine / "bin" / "etcd"
    own.touch(0o755)
    assert find_etcd() == str(own)


def test_a_variable_names_another_etcd(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PROGRAM, "/opt/etcd")
    assert find_etcd() == "/opt/etcd"


def test_the_package_is_fetched(machine: Path) -> None:
    commands = install_apt(machine)
    assert find_etcd() is None
    fetch_etcd()
    assert find_etcd() == str(machine / "build" / "etcd")
    assert commands.read_text() == "download etcd-server\n"
    assert [path.name for path in (machine / "build").iterdir()] == ["etcd"]


def test_apt_that_knows_no_packages_learns_them_in_a_folder_of_the_clone(machine: Path) -> None:
    commands = install_apt(machine, refused='"download etcd-server"')
    fetch_etcd()
    assert find_etcd() == str(machine / "build" / "etcd")
    _, update, download = commands.read_text().splitlines()
    lists = f"Dir::State::lists={machine}/build/"
    assert lists in update and update.endswith(" update")
    assert lists in download and download.endswith(" download etcd-server")


def test_a_package_that_cannot_be_fetched_leaves_nothing(machine: Path) -> None:
    install_apt(machine, refused="*download*")
    with pytest.raises(FetchError, match="download etcd-server failed: E: Unable to locate"):
        fetch_etcd()
    assert find_etcd() is None
    assert not list((machine / "build").iterdir())


def test_a_machine_without_apt_is_told_what_to_do(machine: Path) -> None:
    with pytest.raises(FetchError, match="there is no apt-get; install etcd, or set FIRETRAIL_"):
        fetch_etcd()


@pytest.mark.parametrize("etcd, is_fetched", [("build/etcd", True), ("/bin/true", False)])
def test_make_setup_fetches_it_unless_the_machine_has_it(etcd: str, is_fetched: bool) -> None:
    command = ["make", "--dry-run", "--always-make", "setup", f"{PROGRAM}={etcd}"]
    planned = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True).stdout
    assert ("-m tests.machine.etcd_program" in planned) == is_fetched
