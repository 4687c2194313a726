"""The packages of the extra, and imports that fail for another reason."""

import tomllib

import pytest
from tests.clone import ROOT

from firetrail.proxy.extra import PACKAGES, is_missing


@pytest.mark.parametrize(
    ("name", "expected"),
    [("hpack", True), ("google.protobuf", True), ("firetrail.proxy.gone", False), (None, False)],
)
def test_an_import_that_needs_the_extra(name: str | None, expected: bool) -> None:
    assert is_missing(ModuleNotFoundError("no module", name=name)) is expected


def test_the_extra_has_these_packages() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        extra = tomllib.load(file)["project"]["optional-dependencies"]["grpc"]
    modules = {"protobuf": "google"}
    names = {requirement.partition(">")[0] for requirement in extra}
    assert {modules.get(name, name) for name in names} == PACKAGES
