"""The choice of the folder for a lake, by its path or URL."""

from firetrail.pipeline.lakes.folder import LakeFolder
from firetrail.pipeline.lakes.local_folder import LocalFolder
from firetrail.pipeline.source.places import file_system


def open_folder(place: str) -> LakeFolder:
    """Return the folder of a lake.

    Args:
        place: A local path, or a URL that Arrow or fsspec opens.

    Raises:
        PipelineError: Neither knows the URL.
    """
    if "://" in place:
        return LakeFolder(place, *file_system(place))
    return LocalFolder(place)
