"""The log of a server: levels, JSON lines, a file that is rotated."""

import argparse
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.cli.servers.test_up import addresses, started
from tests.helpers import PATIENCE_S

from firetrail.cli.servers import log_output
from firetrail.system import SYSTEM


@contextmanager
def logging_to(file: Path, *arguments: str) -> Iterator[logging.Logger]:
    """A logger whose messages go where the arguments say."""
    parser = argparse.ArgumentParser()
    log_output.add_arguments(parser)
    handler = log_output.handler_of(parser.parse_args(["--log-file", str(file), *arguments]))
    logger = logging.getLogger("firetrail.test.logs")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield logger
    finally:
        logger.removeHandler(handler)
        handler.close()


def test_a_file_that_is_rotated(tmp_path: Path) -> None:
    file = tmp_path / "log"
    with logging_to(file, "--log-size", "1K", "--log-keep", "2") as logger:
        for number in range(100):
            logger.info("message %d", number)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "log.1", "log.2"]
    assert max(path.stat().st_size for path in tmp_path.iterdir()) <= 1024
    assert file.read_text().splitlines()[-1].endswith(" INFO    message 99")


def test_only_the_owner_can_read_the_files(tmp_path: Path) -> None:
    file = tmp_path / "log"
    with logging_to(file, "--log-size", "1K", "--log-keep", "2") as logger:
        for number in range(100):
            logger.info("message %d", number)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == {"log": 0o600, "log.1": 0o600, "log.2": 0o600}


def test_a_file_that_others_could_read_becomes_private(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_text("before\n")
    file.chmod(0o644)
    with logging_to(file) as logger:
        logger.info("after")
    assert file.stat().st_mode & 0o777 == 0o600
    assert [line.split()[-1] for line in file.read_text().splitlines()] == ["before", "after"]


def test_a_file_that_was_renamed_is_opened_again(tmp_path: Path) -> None:
    file, old = tmp_path / "log", tmp_path / "log.old"
    with logging_to(file) as logger:
        logger.info("before")
        file.rename(old)
        logger.info("between")
        (handler,) = logger.handlers
        assert isinstance(handler, log_output.PrivateFileHandler)
        handler.reopen()
        logger.info("after")
    assert [line.split()[-1] for line in old.read_text().splitlines()] == ["before", "between"]
    assert [line.split()[-1] for line in file.read_text().splitlines()] == ["after"]
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_device_keeps_its_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changed: list[Path] = []
    monkeypatch.setattr(SYSTEM.files, "make_private", changed.append)
    with logging_to(Path("/dev/null")) as logger:
        logger.info("gone")
    assert changed == []


def test_names_of_clients_cannot_forge_lines(tmp_path: Path) -> None:
    file = tmp_path / "log"
    with logging_to(file) as logger:
        logger.warning("topic %s", "T1\n2026-01-01 00:00:00,000 ERROR   forged \x1b[2J")
    (line,) = file.read_text().splitlines()
    assert line.endswith(r"topic T1\n2026-01-01 00:00:00,000 ERROR   forged \x1b[2J")


def test_json_lines_contain_errors_on_one_line(tmp_path: Path) -> None:
    file = tmp_path / "log"
    with logging_to(file, "--log-json") as logger:
        try:
            raise ValueError("oh\nno")
        except ValueError:
            logger.exception("it failed: %s", "ü")
    (line,) = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    assert line["time"].endswith("Z")
    assert line["level"] == "error"
    assert line["logger"] == "firetrail.test.logs"
    assert line["message"] == "it failed: ü"
    assert line["exception"].endswith("ValueError: oh\nno")


@pytest.mark.parametrize(
    ("text", "expected"), [("1", 1), ("500K", 512_000), ("64M", 64 << 20), ("1G", 1 << 30)]
)
def test_sizes_are_read_with_their_units(text: str, expected: int) -> None:
    assert log_output.size(text) == expected


@pytest.mark.parametrize("text", ["", "0", "-1", "1T", "1.5M", "many"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError):
        log_output.size(text)


def test_a_server_logs_into_the_file(tmp_path: Path) -> None:
    for name in ("config", "kvStore"):  # as in a folder of RocketMQ's
        (tmp_path / "data" / name).mkdir(parents=True)
    file = tmp_path / "log"
    ports = "--port", "0", "--namesrv-port", "0"
    options = "--log-file", str(file), "--log-json"
    with started("up", str(tmp_path / "data"), *ports, *options) as process:
        addresses(process, 2)
        process.terminate()
        _, said = process.communicate(timeout=PATIENCE_S)
    assert said == ""
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert any("kvStore/" in line["message"] for line in lines)
