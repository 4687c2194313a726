"""A lake in an object store with the S3 interface, which jobs change by conditional writes.

Data files are uploaded under names that no other attempt has, and are part of the lake once the
file that says what it holds names them. That file is replaced only if it is still the one that the
job has read (``If-Match``), or created only if there is none (``If-None-Match``). So of two jobs
one succeeds, and there is nothing to lock.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from urllib.parse import urlsplit

from pyarrow import fs as filesystems

from firetrail.errors import LakeConflictError, LakeError, NotSharedError
from firetrail.pipeline.lakes.hashed_file import HashedFile
from firetrail.pipeline.lakes.lake_folder import LakeFolder, Stored, attempt_name
from firetrail.pipeline.lakes.s3_client import CONFLICTS, MISSING, code_of, connect
from firetrail.pipeline.lakes.s3_upload import S3File, S3Stream

_CONFLICT_ATTEMPTS = 5
"""Maximum attempts of a conditional write that met another one, although the file is unchanged."""


class S3Folder(LakeFolder):
    """The objects of a bucket whose keys have a common beginning."""

    has_conditional_writes = True
    hadoop_opens = False

    def __init__(self, place: str) -> None:
        url = urlsplit(place)
        if url.username or url.password or url.query or url.fragment:
            raise LakeError(
                f"s3://{url.hostname}{url.path}: the URL of a lake has no credentials and no "
                "options; set AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL and so on in the environment"
            )
        if not url.netloc:
            raise LakeError(f"{place}: names no bucket; write s3://BUCKET/PATH")
        self.place = place
        self._bucket = url.netloc
        self._key = url.path.strip("/")
        self._root = f"{self._bucket}/{self._key}".rstrip("/")
        self._connection = connect(place)
        self._client = self._connection.client

    @property
    def filesystem(self) -> filesystems.FileSystem:
        """Arrow's file system, with the credentials of now."""
        with self._naming(""):
            return self._connection.filesystem(self._bucket)

    def storage_options(self) -> dict[str, str]:
        """Return what delta-rs needs to open the folder."""
        with self._naming(""):
            return self._connection.storage_options(self._bucket)

    def reading(self, name: str) -> AbstractContextManager[None]:
        """Return a context that explains errors of Arrow about a file."""
        return self._connection.naming_arrow(self.show(name), self._bucket)

    # -- small files --------------------------------------------------------------------------

    def read(self, name: str) -> bytes | None:
        """Return the content of a small file; None if it does not exist."""
        found = self.stored(name)
        return None if found is None else found.content

    def replace(self, name: str, content: bytes) -> None:
        """Replace a file, whichever it is."""
        with self._naming(name):
            self._client.put_object(**self._object(name), Body=content)

    def remove(self, name: str) -> None:
        """Remove a file if it exists."""
        with self._naming(name):
            self._client.delete_object(**self._object(name))

    # -- the file that says what the lake holds -----------------------------------------------

    def stored(self, name: str) -> Stored | None:
        """Return a file that :meth:`exchange` is to replace; None if it does not exist."""
        with self._naming(name):
            try:
                answer = self._client.get_object(**self._object(name))
                return Stored(answer["Body"].read(), answer["ETag"])
            except self._connection.errors.ClientError as error:
                if code_of(error) in MISSING:
                    return None
                raise

    def exchange(self, name: str, old: Stored | None, content: bytes) -> None:
        """Replace a version of a file; with None, create the file.

        If an answer got lost, the write is sent again and finds its own result, which is then
        taken for the success that it is. So ``content`` must be that of no other job.

        Raises:
            LakeConflictError: Another job has replaced, created or removed it.
        """
        condition = {"IfMatch": old.tag} if old else {"IfNoneMatch": "*"}
        for _ in range(_CONFLICT_ATTEMPTS):
            with self._naming(name):
                try:
                    self._client.put_object(**self._object(name), Body=content, **condition)
                    return
                except self._connection.errors.ClientError as error:
                    if code_of(error) not in CONFLICTS | MISSING:
                        raise
            now = self.stored(name)
            if now is not None and now.content == content:
                return
            if now != old:
                break
        raise LakeConflictError(
            f"{self.place}: another job changed the lake at the same time; run this job again"
        )

    # -- data files ---------------------------------------------------------------------------

    def new_name(self, folder: str, stem: str, token: str, suffix: str) -> str:
        """Return a name that only this attempt at a task has."""
        return f"{folder}/{stem}-{token}-{attempt_name()}{suffix}"

    def create(self, name: str) -> HashedFile:
        """Create a data file, which appears when it is closed."""
        stream = S3Stream(self._client, self._object(name), lambda: self._naming(name))
        return S3File(stream, self.show(name))

    def names(self, changed_before_ms: float = math.inf) -> list[str]:
        """Return every file in the folder and below, published or not."""
        prefix = f"{self._key}/" if self._key else ""
        found = []
        with self._naming(""):
            pages = self._client.get_paginator("list_objects_v2")
            for page in pages.paginate(Bucket=self._bucket, Prefix=prefix):
                for entry in page.get("Contents", ()):
                    changed_ms = entry["LastModified"].timestamp() * 1000
                    if changed_ms < changed_before_ms:
                        found.append(entry["Key"][len(prefix) :])
        return sorted(name for name in found if name and not name.endswith("/"))

    def top_names(self) -> set[str]:
        """Return the names of the files and folders directly in the folder."""
        prefix = f"{self._key}/" if self._key else ""
        with self._naming(""):
            answer = self._client.list_objects_v2(Bucket=self._bucket, Prefix=prefix, Delimiter="/")
        keys = [entry["Key"] for entry in answer.get("Contents", ())]
        keys += [entry["Prefix"] for entry in answer.get("CommonPrefixes", ())]
        return {key[len(prefix) :].rstrip("/") for key in keys} - {""}

    # -- the jobs that use it -----------------------------------------------------------------

    def check_arrived(self, name: str, size: int, worker: str) -> None:
        """Raise NotSharedError unless the driver sees a data file that a task has written."""
        with self._naming(name):
            try:
                found = self._client.head_object(**self._object(name))["ContentLength"]
            except self._connection.errors.ClientError as error:
                if code_of(error) not in MISSING:
                    raise
                found = None
        if found != size:
            raise NotSharedError(
                f"{self.show(name)}: the worker {worker} wrote {size} bytes, but the driver sees "
                f"{'no such file' if found is None else f'{found} bytes'}, so nothing was "
                "committed; the driver and all workers must use the same AWS_ENDPOINT_URL"
            )

    def _object(self, name: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": f"{self._key}/{name}".lstrip("/")}

    def _naming(self, name: str) -> AbstractContextManager[None]:
        place = self.show(name) if name else self.place
        return self._connection.naming(place, self._bucket)
