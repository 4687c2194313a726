"""The schema: the published descriptor, beside RocketMQ's own client, as it is compiled now."""

import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from tests.proxy.schema import generator

from firetrail.proxy.schema import messages
from firetrail.proxy.schema.messages import (
    Code,
    Duration,
    Message,
    MessageType,
    Resource,
    Status,
    SystemProperties,
    Timestamp,
)

FILES = ("definition", "service")


def test_the_committed_files_are_what_the_sources_compile_to() -> None:
    files = generator.compiled()
    committed = (generator.FOLDER / messages.DESCRIPTORS).read_bytes()
    assert committed == files.SerializeToString(deterministic=True)
    declared = (generator.FOLDER / "messages.pyi").read_text(encoding="utf-8")
    assert declared == generator.declarations(files)


@pytest.mark.parametrize("name", FILES)
def test_the_schema_is_that_of_the_released_client(name: str) -> None:
    """It is imported into the same process, which fails if both use one descriptor pool."""
    grpc_protocol = pytest.importorskip("rocketmq.grpc_protocol")
    theirs, ours = FileDescriptorProto(), FileDescriptorProto()
    getattr(grpc_protocol, f"{name}_pb2").DESCRIPTOR.CopyToProto(theirs)
    messages.POOL.FindFileByName(f"{generator.PACKAGE}/{name}.proto").CopyToProto(ours)
    for file in (theirs, ours):
        file.name = Path(file.name).name
        file.dependency[:] = sorted(Path(dependency).name for dependency in file.dependency)
    for message in ours.message_type:
        for field in (*message.field, *(f for nested in message.nested_type for f in nested.field)):
            field.ClearField("json_name")  # generated Python code lacks these
    assert ours == theirs


@pytest.mark.parametrize("first", ["firetrail.proxy.schema.messages", "rocketmq.grpc_protocol"])
def test_either_may_be_imported_first(first: str) -> None:
    pytest.importorskip("rocketmq")
    script = f"import {first}, rocketmq.grpc_protocol, firetrail.proxy.schema.messages"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_messages_survive_the_wire() -> None:
    sent = Message(
        topic=Resource(name="orders"),
        user_properties={"shop": "berlin"},
        system_properties=SystemProperties(
            keys=["a", "b"],
            message_type=MessageType.DELAY,
            delivery_timestamp=Timestamp(seconds=7),
            invisible_duration=Duration(seconds=1, nanos=500_000_000),
        ),
        body=b"body",
    )
    got = Message.FromString(sent.SerializeToString())
    assert got == sent
    assert got.system_properties.invisible_duration.ToMilliseconds() == 1500
    assert not got.system_properties.HasField("store_timestamp")


def test_enumerations_have_names() -> None:
    assert Code(Status(code=Code.TOPIC_NOT_FOUND).code) is Code.TOPIC_NOT_FOUND
    assert Code["TOPIC_NOT_FOUND"].value == 40402
