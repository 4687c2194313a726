"""The connection to an object store with the S3 interface, as the environment describes it.

Credentials, region and endpoint are those that the tools of AWS use: variables such as
``AWS_ACCESS_KEY_ID`` and ``AWS_ENDPOINT_URL``, a profile (``AWS_PROFILE``), or the role of the
machine. Each process finds them for itself, so they are in no task, option or message.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

from pyarrow import fs as filesystems

from firetrail.errors import LakeError, MissingExtraError

CONNECT_TIMEOUT_S = 10
ANSWER_TIMEOUT_S = 60
ATTEMPTS = 4
"""Maximum attempts of a request if the server does not answer, or asks to slow down."""
CONFLICTS = {"PreconditionFailed", "ConditionalRequestConflict", "412", "409"}
"""Answers to a conditional write of which another job has changed the condition."""
MISSING = {"NoSuchKey", "404", "NotFound"}
_REFUSED = {"InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "ExpiredToken"}
_REFUSED |= {"AuthFailure", "InvalidClientTokenId", "UnrecognizedClient"}
_DENIED = {"AccessDenied", "AccountProblem", "AllAccessDisabled", "Forbidden", "403"}
_ARROW_ERROR = re.compile(r"AWS Error (\w+)")
_UNREACHABLE = {"NETWORK_CONNECTION", "REQUEST_TIMEOUT"}


class S3Connection:
    """Requests to the object store, by botocore and by Arrow."""

    def __init__(self) -> None:
        config: Any = _botocore("config")
        session = _botocore("session").get_session()
        self.errors: Any = _botocore("exceptions")
        self.client = session.create_client(
            "s3",
            config=config.Config(
                connect_timeout=CONNECT_TIMEOUT_S,
                read_timeout=ANSWER_TIMEOUT_S,
                retries={"mode": "standard", "total_max_attempts": ATTEMPTS},
                # Checksums that S3 does not require are unknown to many other servers.
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
            ),
        )
        self._credentials = session.get_credentials()
        self._systems: dict[str, tuple[Any, filesystems.FileSystem]] = {}
        self._regions: dict[str, str] = {}
        endpoint = urlsplit(self.client.meta.endpoint_url)
        self.endpoint = endpoint.netloc.rpartition("@")[2]
        self._scheme = endpoint.scheme
        self._is_aws = (endpoint.hostname or "").endswith((".amazonaws.com", ".amazonaws.com.cn"))

    def filesystem(self, bucket: str) -> filesystems.FileSystem:
        """Return Arrow's file system, with credentials that are valid now."""
        keys = self._keys()
        known = self._systems.get(bucket)
        if known is None or known[0] != keys:
            options = {} if self._is_aws else {"endpoint_override": self.endpoint}
            system = filesystems.S3FileSystem(
                access_key=keys.access_key,
                secret_key=keys.secret_key,
                session_token=keys.token,
                region=self._region(bucket),
                scheme=self._scheme,
                connect_timeout=CONNECT_TIMEOUT_S,
                request_timeout=ANSWER_TIMEOUT_S,
                retry_strategy=filesystems.AwsStandardS3RetryStrategy(max_attempts=ATTEMPTS),
                **options,
            )
            known = self._systems[bucket] = keys, system
        return known[1]

    def storage_options(self, bucket: str) -> dict[str, str]:
        """Return the same as options of delta-rs."""
        keys = self._keys()
        options = {
            "AWS_ACCESS_KEY_ID": keys.access_key,
            "AWS_SECRET_ACCESS_KEY": keys.secret_key,
            "AWS_REGION": self._region(bucket),
        }
        if keys.token:
            options["AWS_SESSION_TOKEN"] = keys.token
        if not self._is_aws:
            options["AWS_ENDPOINT_URL"] = f"{self._scheme}://{self.endpoint}"
        if self._scheme == "http":
            options["AWS_ALLOW_HTTP"] = "true"
        return options

    def _keys(self) -> Any:
        if self._credentials is None:
            raise self.errors.NoCredentialsError
        return self._credentials.get_frozen_credentials()

    def _region(self, bucket: str) -> str:
        """Return the region of the bucket; botocore finds it by itself, the others do not."""
        region = self._regions.get(bucket)
        if region is None:
            found: str | None = None
            if self._is_aws:
                found = self.client.head_bucket(Bucket=bucket).get("BucketRegion")
            region = found or self.client.meta.region_name or "us-east-1"
            self._regions[bucket] = region
        return region

    @contextmanager
    def naming(self, place: str, bucket: str) -> Iterator[None]:
        """Raise LakeError for an error of the object store.

        Args:
            place: URL of what the request is about.
            bucket: The bucket in which it is.
        """
        errors = self.errors
        try:
            yield
        except errors.ClientError as error:
            raise LakeError(self._explained(code_of(error), place, bucket)) from None
        except (errors.NoCredentialsError, errors.PartialCredentialsError):
            raise LakeError(_no_credentials(place)) from None
        except (errors.HTTPClientError, errors.ConnectionError):
            raise LakeError(self._unreachable(place)) from None
        except errors.BotoCoreError as error:
            raise LakeError(_unusable(place, error)) from None

    @contextmanager
    def naming_arrow(self, place: str, bucket: str) -> Iterator[None]:
        """Do the same for errors of Arrow, whose text contains the code."""
        try:
            yield
        except OSError as error:
            found = _ARROW_ERROR.search(str(error))
            if found is None:
                raise
            if found[1] in _UNREACHABLE:
                raise LakeError(self._unreachable(place)) from None
            code = found[1].title().replace("_", "")
            raise LakeError(self._explained(code, place, bucket)) from None

    def _explained(self, code: str, place: str, bucket: str) -> str:
        if code == "NoSuchBucket":
            return (
                f"{place}: the object store at {self.endpoint} has no bucket {bucket}; create it, "
                "or check the name and AWS_ENDPOINT_URL"
            )
        if code in _DENIED:
            return (
                f"{place}: access was denied ({code}); allow the user of these credentials to "
                f"list the bucket {bucket}, and to get, put and delete its objects"
            )
        if code in _REFUSED:
            return (
                f"{place}: the object store at {self.endpoint} refused the credentials ({code}); "
                "renew or correct them (AWS_ACCESS_KEY_ID and its secret, or AWS_PROFILE)"
            )
        if code in ("NotImplemented", "501"):
            return (
                f"{place}: the object store at {self.endpoint} has no conditional writes, without "
                "which two jobs could overwrite each other's work; use one that has them"
            )
        return f"{place}: the object store at {self.endpoint} answered {code}; try again later"

    def _unreachable(self, place: str) -> str:
        return (
            f"{place}: cannot reach the object store at {self.endpoint}; check AWS_ENDPOINT_URL, "
            "the region and the network"
        )


def _no_credentials(place: str) -> str:
    return (
        f"{place}: there are no credentials for the object store; set AWS_ACCESS_KEY_ID and "
        "AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, on the driver and all workers"
    )


def _unusable(place: str, error: Exception) -> str:
    """Return the message for other errors; their text may have what a program has printed."""
    return (
        f"{place}: the settings for the object store cannot be used ({type(error).__name__}); "
        "check AWS_ENDPOINT_URL, AWS_REGION, the profile and its source of credentials"
    )


def code_of(error: Any) -> str:
    """Return the code of an error that the object store answered."""
    return str(error.response.get("Error", {}).get("Code", ""))


def connect(place: str) -> S3Connection:
    """Return the connection of this process.

    Args:
        place: The lake, for messages.

    Raises:
        LakeError: The settings are wrong, for example the name of a profile.
        MissingExtraError: botocore is not installed.
    """
    errors: Any = _botocore("exceptions")
    try:
        return _connected(tuple(sorted(i for i in os.environ.items() if i[0].startswith("AWS_"))))
    except errors.ProfileNotFound:
        raise LakeError(
            f"{place}: the profile {os.environ.get('AWS_PROFILE', '')} is in no file of AWS; "
            "correct AWS_PROFILE, or add the profile to ~/.aws/config"
        ) from None
    except (errors.BotoCoreError, ValueError) as error:
        raise LakeError(_unusable(place, error)) from None


@lru_cache(maxsize=4)
def _connected(environment: tuple[tuple[str, str], ...]) -> S3Connection:
    return S3Connection()


def _botocore(module: str) -> Any:
    try:
        return import_module(f"botocore.{module}")
    except ImportError as error:
        raise MissingExtraError(
            "a lake in an object store needs botocore: pip install 'firetrail[spark,s3]'"
        ) from error
