"""A lake in an object store: its files, conditional writes, and errors of the store."""

import os
import pickle
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.pipeline.lakes.object_store import DENIED, SECRET, ObjectStore, Refusal, Request
from tests.ports import free_port

from firetrail.errors import (
    FiretrailError,
    LakeConflictError,
    LakeError,
    MissingExtraError,
    NotSharedError,
)
from firetrail.pipeline.lakes.location import open_folder
from firetrail.pipeline.lakes.s3_folder import S3Folder

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture
def folder(bucket: str) -> S3Folder:
    return opened(f"s3://{bucket}/lakes/one")


def opened(place: str) -> S3Folder:
    found = open_folder(place)
    assert isinstance(found, S3Folder)
    return found


def written(folder: S3Folder, name: str, rows: int) -> int:
    """Write a data file and return its length."""
    file = folder.create(name)
    pq.write_table(pa.table({"a": range(rows)}), file)
    file.close()
    return file.size


def test_files_are_found_under_their_names(folder: S3Folder) -> None:
    assert (folder.names(), folder.top_names(), folder.read("x/state.json")) == ([], set(), None)
    folder.replace("x/state.json", b"1")
    folder.replace("x/state.json", b"2")
    name = folder.new_name("topic=b%25c/day=2026-11-19", "00", "token", ".parquet")
    assert name != folder.new_name("topic=b%25c/day=2026-11-19", "00", "token", ".parquet")
    size = written(folder, name, 3)
    folder.check_arrived(name, size, "worker-1")
    assert folder.read("x/state.json") == b"2"
    assert folder.names() == sorted([name, "x/state.json"])
    assert folder.names(changed_before_ms=0) == []
    assert folder.top_names() == {"topic=b%25c", "x"}
    assert (
        pq.read_table(folder.path(name), filesystem=folder.filesystem, partitioning=None).num_rows
        == 3
    )
    folder.remove(name)
    folder.remove(name)
    assert folder.names() == ["x/state.json"]
    assert opened(folder.place.rpartition("/")[0]).names() == ["one/x/state.json"]


def test_a_listing_has_more_than_one_page(folder: S3Folder, bucket: str) -> None:
    for number in range(1001):
        folder._client.put_object(Bucket=bucket, Key=f"lakes/one/{number:04d}", Body=b"")
    assert len(folder.names()) == 1001


def test_a_worker_with_another_store_is_found_out(folder: S3Folder) -> None:
    with pytest.raises(NotSharedError, match=r"wrote 9 bytes, but the driver sees no such file"):
        folder.check_arrived("day=x/1.parquet", 9, "worker-1")


class TestUpload:
    @pytest.fixture(autouse=True)
    def small_parts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("firetrail.pipeline.lakes.s3_upload.PART_BYTES", 5 << 20)

    def test_a_large_file_is_sent_in_parts(
        self, folder: S3Folder, object_store: ObjectStore
    ) -> None:
        """The answer to the last request gets lost."""
        content = bytes(range(256)) * (12 << 12)
        lost = Refusal("500 Internal Server Error", "InternalError", True)
        ends: list[int] = []

        def lose(number: int, request: Request) -> Refusal | None:
            if request.method == "POST" and number > 1:
                ends.append(number)
            return lost if ends == [number] else None

        with object_store.refusing(lose):
            file = folder.create("day=x/1.parquet")
            for at in range(0, len(content), 1 << 20):
                file.write(content[at : at + (1 << 20)])
            assert folder.names() == [], "it appears as a whole"
            file.close()
        assert folder.read("day=x/1.parquet") == content
        assert [request.method for request in object_store.requests].count("PUT") == 3
        assert len(ends) == 2

    @pytest.mark.parametrize("size", [100, 6 << 20])
    def test_the_file_of_a_failed_task_never_appears(self, folder: S3Folder, size: int) -> None:
        file = folder.create("day=x/1.parquet")
        file.write(b"x" * size)
        file.abandon()
        file.write(b"more")
        file.close()
        assert folder.names() == []
        left = folder._client.list_multipart_uploads(Bucket=folder._bucket)
        assert left.get("Uploads", []) == []

    def test_a_refused_part_names_the_file(
        self, folder: S3Folder, object_store: ObjectStore
    ) -> None:
        file = folder.create("day=x/1.parquet")
        with (
            object_store.refusing(lambda *_: DENIED),
            pytest.raises(LakeError, match=rf"^{folder.place}/day=x/1.parquet: access was deni"),
        ):
            file.write(b"x" * (6 << 20))
        file.abandon()


class TestExchange:
    def test_a_file_is_created_once_and_replaced_by_who_read_it(self, folder: S3Folder) -> None:
        folder.exchange("state", None, b"1")
        with pytest.raises(LakeConflictError, match="another job changed the lake"):
            folder.exchange("state", None, b"one")
        first = folder.stored("state")
        folder.exchange("state", first, b"2")
        with pytest.raises(LakeConflictError):
            folder.exchange("state", first, b"two")
        assert folder.read("state") == b"2"
        folder.remove("state")
        with pytest.raises(LakeConflictError):
            folder.exchange("state", first, b"two")

    def test_of_racing_jobs_one_wins_each_time(self, folder: S3Folder) -> None:
        folder.exchange("state", None, b"0")
        won: list[int] = []
        start = threading.Barrier(3)

        def race(name: int) -> None:
            for _ in range(10):
                old = folder.stored("state")
                assert old is not None
                start.wait()
                try:
                    folder.exchange("state", old, old.content + b"%d" % name)
                    won.append(name)
                except LakeConflictError:
                    pass
                start.wait()

        threads = [threading.Thread(target=race, args=(name,)) for name in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert folder.read("state") == b"0" + b"".join(b"%d" % name for name in won)
        assert len(won) == 10

    def test_a_lost_answer_is_not_taken_for_a_conflict(
        self, folder: S3Folder, object_store: ObjectStore
    ) -> None:
        lost = Refusal("500 Internal Server Error", "InternalError", True)
        with object_store.refusing(lambda number, request: lost if number == 0 else None):
            folder.exchange("state", None, b"1")
        assert [request.method for request in object_store.requests] == ["PUT", "PUT", "GET"]
        assert folder.read("state") == b"1"

    def test_a_write_that_met_another_one_is_repeated(
        self, folder: S3Folder, object_store: ObjectStore
    ) -> None:
        """S3 answers 409 if two conditional writes overlap, whether or not one succeeded."""
        met = Refusal("409 Conflict", "ConditionalRequestConflict", False)
        with object_store.refusing(lambda number, request: met if number == 0 else None):
            folder.exchange("state", None, b"1")
        assert folder.read("state") == b"1"


def refuse(code: str, status: str) -> Callable[..., Refusal]:
    return lambda *_: Refusal(status, code, False)


class TestErrors:
    @pytest.mark.parametrize(
        ("status", "code", "text"),
        [
            ("404 Not Found", "NoSuchBucket", "has no bucket bucket-.*create it, or check"),
            ("403 Forbidden", "AccessDenied", r"denied \(AccessDenied\); allow the user"),
            ("403 Forbidden", "InvalidAccessKeyId", "refused the credentials .*renew or correct"),
            ("403 Forbidden", "SignatureDoesNotMatch", "refused the credentials"),
            ("501 Not Implemented", "NotImplemented", "has no conditional writes"),
            ("400 Bad Request", "Odd", "answered Odd; try again later"),
        ],
    )
    def test_an_answer_names_place_and_remedy(
        self, folder: S3Folder, object_store: ObjectStore, status: str, code: str, text: str
    ) -> None:
        with (
            object_store.refusing(refuse(code, status)),
            pytest.raises(LakeError, match=rf"^{folder.place}/state: .*{text}") as caught,
        ):
            folder.exchange("state", None, b"1")
        assert shows_no_secret(caught.value)

    def test_a_missing_bucket(self, bucket: str) -> None:
        with pytest.raises(LakeError, match=r"^s3://no-such-bucket/lake/x: .* has no bucket no-su"):
            opened("s3://no-such-bucket/lake").read("x")

    def test_arrow_is_denied(self, folder: S3Folder, object_store: ObjectStore) -> None:
        with (
            object_store.refusing(lambda *_: DENIED),
            pytest.raises(
                LakeError, match=rf"^{folder.place}/day=x/1: access was denied"
            ) as caught,
        ):
            written(folder, "day=x/1", 1)
        assert shows_no_secret(caught.value)

    def test_there_are_no_credentials(
        self, folder: S3Folder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
        found = opened(folder.place)
        with pytest.raises(LakeError, match=r"no credentials .*set AWS_ACCESS_KEY_ID and"):
            found.read("x")
        with pytest.raises(LakeError, match="no credentials"):
            written(found, "x", 1)
        with pytest.raises(LakeError, match="no credentials"):
            _ = found.filesystem

    def test_nothing_listens(self, folder: S3Folder, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
        monkeypatch.setattr("firetrail.pipeline.lakes.s3_client.ATTEMPTS", 1)
        found = opened(folder.place)
        with pytest.raises(LakeError, match=r"cannot reach the object store at 127.0.0.1:\d+; ch"):
            found.read("x")
        with (
            pytest.raises(LakeError, match=r"cannot reach the object store at 127.0.0.1"),
            found.reading("x"),
        ):
            found.filesystem.open_input_file(found.path("x"))

    def test_a_wrong_endpoint(self, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWS_ENDPOINT_URL", "nonsense")
        with pytest.raises(LakeError, match=r"settings .* cannot be used .*; check AWS_END"):
            opened(f"s3://{bucket}/x")

    def test_a_program_that_gives_no_credentials(
        self, bucket: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What it prints may be secret."""
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(name)
        program = f"sh -c 'echo {SECRET} >&2; exit 1'"
        Path(os.environ["AWS_CONFIG_FILE"]).write_text(
            f"[profile lake]\ncredential_process = {program}\n"
        )
        monkeypatch.setenv("AWS_PROFILE", "lake")
        with pytest.raises(LakeError, match="the profile and its source of cred") as caught:
            opened(f"s3://{bucket}/x").read("x")
        assert shows_no_secret(caught.value)

    def test_botocore_is_missing(self, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "botocore.exceptions", None)
        with pytest.raises(MissingExtraError, match=r"pip install 'firetrail\[spark,s3\]'"):
            opened(f"s3://{bucket}/x")

    def test_an_unknown_profile(self, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWS_PROFILE", "nobody")
        with pytest.raises(LakeError, match="the profile nobody is in no file of AWS; correct"):
            opened(f"s3://{bucket}/x")

    @pytest.mark.parametrize(
        "url", [f"s3://tester:{SECRET}@bucket/lake", f"s3://bucket/lake?secret_key={SECRET}"]
    )
    def test_a_url_with_secrets_is_refused(self, bucket: str, url: str) -> None:
        with pytest.raises(LakeError, match=r"^s3://bucket/lake: .* no credentials") as caught:
            opened(url)
        assert shows_no_secret(caught.value)

    def test_a_url_without_a_bucket(self, bucket: str) -> None:
        with pytest.raises(LakeError, match="names no bucket"):
            opened("s3:///lake")


def test_buckets_of_one_account_may_be_in_different_regions(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Amazon answers where a bucket is; other stores have one region."""

    def head_bucket(Bucket: str) -> dict[str, str]:
        return {"BucketRegion": {"one": "eu-central-1", "two": "us-west-2"}[Bucket]}

    connection = opened(f"s3://{bucket}/x")._connection
    assert connection.storage_options(bucket)["AWS_REGION"] == "eu-west-1"
    monkeypatch.setattr(connection, "_is_aws", True)
    monkeypatch.setattr(connection.client, "head_bucket", head_bucket)
    found = [connection.filesystem(name).region for name in ("one", "two", "one")]
    assert found == ["eu-central-1", "us-west-2", "eu-central-1"]


def shows_no_secret(error: FiretrailError) -> bool:
    return SECRET not in f"{error}{error.__cause__}{vars(error)}"


def test_credentials_of_a_profile_are_used_and_not_pickled(
    folder: S3Folder, object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL", "AWS_REGION"):
        monkeypatch.delenv(name)
    Path(os.environ["AWS_CONFIG_FILE"]).write_text(
        f"[profile lake]\nregion = eu-west-1\nendpoint_url = {object_store.url}\n"
        f"aws_access_key_id = other\naws_secret_access_key = {SECRET}\n"
    )
    monkeypatch.setenv("AWS_PROFILE", "lake")
    sent = pickle.dumps(opened(folder.place))
    assert SECRET.encode() not in sent
    found: S3Folder = pickle.loads(sent)
    size = written(found, "day=x/1.parquet", 2)
    found.check_arrived("day=x/1.parquet", size, "w")
    assert found.storage_options()["AWS_ACCESS_KEY_ID"] == "other"
