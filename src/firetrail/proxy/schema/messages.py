"""The classes of the messages and enumerations of ``apache.rocketmq.v2``.

``tests/proxy/schema/generator.py`` compiles the ``.proto`` files to ``messages.binpb`` and declares
the classes to type checkers in ``messages.pyi``. The classes use a descriptor pool of their own,
because RocketMQ's client for Python registers the same names in the default pool, where each name
can be registered only once.
"""

from enum import IntEnum
from pkgutil import get_data
from typing import Any

from google.protobuf.descriptor import EnumDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message as ProtoMessage
from google.protobuf.message_factory import GetMessageClass

__all__ = ("DESCRIPTORS", "POOL", "ProtoMessage")

DESCRIPTORS = "messages.binpb"
"""The file with the compiled schema, a serialized FileDescriptorSet."""

POOL = DescriptorPool()
"""The descriptors of the schema, and of Duration and Timestamp."""


def load() -> dict[str, Any]:
    """Register the schema in the pool, and return its messages and enumerations by name."""
    compiled = FileDescriptorSet.FromString(get_data(__package__, DESCRIPTORS))
    found: dict[str, Any] = {}
    for file in compiled.file:
        POOL.Add(file)
    for file in compiled.file:
        descriptor = POOL.FindFileByName(file.name)
        for name, message in descriptor.message_types_by_name.items():
            found[name] = GetMessageClass(message)
        for name, enum in descriptor.enum_types_by_name.items():
            found[name] = python_enum(enum)
    return found


def python_enum(descriptor: EnumDescriptor) -> type[IntEnum]:
    """Return an enumeration of the schema; fields of messages hold its values as plain integers."""
    values = {value.name: value.number for value in descriptor.values}
    return IntEnum(descriptor.name, values, module=__name__)  # type: ignore[return-value]


globals().update(load())
