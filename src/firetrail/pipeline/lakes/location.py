"""The choice of the folder for a lake, by its path or URL."""

from firetrail.pipeline.lakes.folder import LakeFolder
from firetrail.pipeline.lakes.local_folder import LocalFolder
from firetrail.pipeline.lakes.s3_folder import S3Folder


def open_folder(place: str) -> LakeFolder:
    """Return the folder of a lake.

    Args:
        place: A local path, or a URL that Arrow or fsspec opens.

    Raises:
        PipelineError: Neither knows the URL.
        LakeError: The URL or the settings of an object store are wrong.
        MissingExtraError: The lake is in an object store, and botocore is not installed.
    """
    if place.startswith("s3://"):
        return S3Folder(place)
    if "://" in place:
        return LakeFolder(place)
    return LocalFolder(place)
