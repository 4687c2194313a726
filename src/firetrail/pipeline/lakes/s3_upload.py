"""A new object that is uploaded as it is written.

Arrow's stream cannot give up an upload: it completes the object of a failed task when it is
released. This one sends a small object with one request, and a large one in parts, which appear
together at the end or not at all.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any

from firetrail.errors import LakeError
from firetrail.pipeline.lakes.hashed_file import HashedFile
from firetrail.pipeline.lakes.s3_client import code_of

PART_BYTES = 8 << 20
"""Bytes per part, which each open file holds in memory. S3 takes 5 MiB to 5 GiB, and 10,000."""


class S3Stream:
    """The stream of an object.

    Args:
        client: That of botocore.
        target: Bucket and key.
        naming: Returns a context that explains errors.
    """

    def __init__(
        self,
        client: Any,
        target: dict[str, str],
        naming: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._client = client
        self._target = target
        self._naming = naming
        self._buffer = bytearray()
        self._size = 0
        self._upload: dict[str, str] | None = None
        self._parts: list[dict[str, Any]] = []
        self.closed = False

    def write(self, data: Any) -> None:
        """Append bytes."""
        self._buffer += memoryview(data)
        while len(self._buffer) >= PART_BYTES:
            self._send(PART_BYTES)

    def close(self) -> None:
        """Complete the object, which then appears."""
        if self.closed:
            return
        self.closed = True
        if self._upload is None:
            with self._naming():
                self._client.put_object(**self._target, Body=bytes(self._buffer))
            return
        if self._buffer:
            self._send(len(self._buffer))
        with self._naming():
            try:
                self._client.complete_multipart_upload(
                    **self._upload, MultipartUpload={"Parts": self._parts}
                )
            except self._client.exceptions.ClientError as error:
                if code_of(error) != "NoSuchUpload" or not self._is_there():
                    raise  # otherwise the answer to an earlier attempt was lost

    def abort(self) -> None:
        """Give the object up; a store that does not answer keeps the parts."""
        self.closed = True
        if self._upload is not None:
            with suppress(LakeError), self._naming():
                self._client.abort_multipart_upload(**self._upload)

    def _send(self, size: int) -> None:
        with self._naming():
            if self._upload is None:
                begun = self._client.create_multipart_upload(**self._target)
                self._upload = {**self._target, "UploadId": begun["UploadId"]}
            number = len(self._parts) + 1
            body = bytes(self._buffer[:size])
            sent = self._client.upload_part(**self._upload, PartNumber=number, Body=body)
        self._parts.append({"PartNumber": number, "ETag": sent["ETag"]})
        self._size += size
        del self._buffer[:size]

    def _is_there(self) -> bool:
        found = self._client.head_object(**self._target)
        return bool(found["ContentLength"] == self._size)


class S3File(HashedFile):
    """A data file in an object store."""

    def __init__(self, stream: S3Stream, shown: str) -> None:
        super().__init__(stream, shown)
        self._upload = stream

    def abandon(self) -> None:
        """Give up the file of a failed task."""
        super().abandon()
        self._upload.abort()
