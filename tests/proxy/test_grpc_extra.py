"""The packages of the extra, and imports that fail for another reason."""

import tomllib

import pytest
from tests.clone import ROOT

from firetrail.proxy.grpc_extra import PACKAGES, is_missing


@pytest.mark.parametrize(
    ("name", "expected"),
    [("hpack", True), ("google.protobuf", True), ("firetrail.proxy.gone", False), (None, False)],
)
def test_an_import_that_needs_the_extra(name: str | None, expected: bool) -> None:
    assert is_missing(ModuleNotFoundError("no module", name=name)) is expected


def test_the_extra_has_these_packages() -> None:
    """The service needs them; it also runs without the packages for compressed bodies."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    modules = {"protobuf": "google"}
    needed = [each for each in extras["grpc"] if each not in extras["compression"]]
    names = {requirement.partition(">")[0] for requirement in needed}
    assert {modules.get(name, name) for name in names} == PACKAGES
    assert set(extras["compression"]) < set(extras["grpc"])
