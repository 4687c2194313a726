"""The choice of the folder for a lake, by its path or URL."""

import re
from urllib.parse import unquote

from firetrail.errors import ConfigError
from firetrail.pipeline.lakes.lake_folder import LakeFolder
from firetrail.pipeline.lakes.local_folder import LocalFolder
from firetrail.pipeline.lakes.s3_folder import S3Folder

_REFUSED_BY_DELTA = re.compile(r"[\x00-\x1f\x7f\\\[\]^|\ud800-\udfff]|%[0-9A-Fa-f]{2}")
"""What delta-rs, which takes paths for URLs, does not find again or panics at, also if encoded."""


def local_place(place: str) -> str:
    """Return the path of a URL ``file:///…``, and any other place as it is."""
    return unquote(place.removeprefix("file://")) if place.startswith("file:///") else place


def open_folder(place: str) -> LakeFolder:
    """Return the folder of a lake.

    Args:
        place: A local path, or a URL that Arrow or fsspec opens.

    Raises:
        PipelineError: Neither knows the URL.
        LakeError: The URL or the settings of an object store are wrong.
        MissingExtraError: The lake is in an object store, and botocore is not installed.
    """
    place = local_place(place)
    if place.startswith("s3://"):
        return S3Folder(place)
    if "://" in place:
        return LakeFolder(place)
    return LocalFolder(place)


def check_delta_opens(folder: LakeFolder) -> None:
    """Raise ConfigError if delta-rs cannot open a table in a local folder."""
    found = _REFUSED_BY_DELTA.search(folder.place) if folder.is_local else None
    if found is not None:
        raise ConfigError(
            "to", folder.place, f"the Delta library opens no path with {found[0]!r}; choose another"
        )
