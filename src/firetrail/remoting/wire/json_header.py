"""The header of a frame as JSON.

::

    {"code":105,"extFields":{"topic":"T1"},"flag":0,"language":"JAVA","opaque":1,
     "serializeTypeCurrentRPC":"JSON","version":409}

Clients differ: they send field values as text, numbers or booleans and the language as a name or a
number, and omit some members. Firetrail sends only text as field values, because some clients drop
frames with numbers.
"""

import json
from collections.abc import Callable
from importlib.util import find_spec
from math import isfinite
from typing import Any

from firetrail.errors import ProtocolError
from firetrail.format.values.integers import number_in
from firetrail.format.values.truths import truth_text
from firetrail.remoting.wire.codes import Language, Serialize
from firetrail.remoting.wire.command import RemotingCommand

_LANGUAGES = {language.name: language.value for language in Language}
_NAMES = {language.value: language.name for language in Language}
_OTHER = Language.OTHER.name
_OPAQUE_RANGE = range(-(1 << 31), 1 << 31)


def decode(header: bytes, body: bytes) -> RemotingCommand:
    """Decode a command from its header and body. Raises ProtocolError for an invalid header."""
    try:
        members = _LOADS(header)
    except (ValueError, RecursionError) as error:
        reason = str(error) if isinstance(error, ValueError) else "nested too deeply"
        raise ProtocolError(f"the header is not JSON: {reason}") from None
    if not isinstance(members, dict):
        raise ProtocolError(f"the header is a {type(members).__name__}, not an object")
    fields = members.get("extFields") or {}
    if not isinstance(fields, dict):
        raise ProtocolError(f"extFields is a {type(fields).__name__}, not an object")
    remark = members.get("remark")
    if remark is not None and not isinstance(remark, str):
        raise ProtocolError("the remark is not text")
    return RemotingCommand(
        code=_integer(members, "code"),
        fields={
            name: value if type(value) is str else _text(name, value)
            for name, value in fields.items()
            if value is not None
        },
        body=body,
        remark=remark,
        opaque=_integer(members, "opaque"),
        flag=_integer(members, "flag"),
        language=_language(members.get("language")),
        version=_integer(members, "version"),
        serialize=Serialize.JSON,
    )


def encode(command: RemotingCommand) -> bytes:
    """Encode the header of a command."""
    members: dict[str, Any] = {"code": int(command.code)}
    if command.fields:
        members["extFields"] = dict(command.fields)  # JSON libraries know no other mapping
    members["flag"] = int(command.flag)
    members["language"] = _NAMES.get(command.language, _OTHER)
    members["opaque"] = command.opaque
    if command.remark is not None:
        members["remark"] = command.remark
    members["serializeTypeCurrentRPC"] = Serialize.JSON.name
    members["version"] = int(command.version)
    try:
        return _DUMPS(members)
    except (TypeError, UnicodeEncodeError):  # a lone surrogate, which UTF-8 cannot encode
        return _ENCODE(members).encode("utf-8", "replace")


_ENCODE = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def _dumps(members: Any) -> bytes:
    return _ENCODE(members).encode()


def _loads(header: bytes) -> Any:
    """Read JSON as orjson does: in UTF-8, without infinite numbers and halves of characters."""
    text = header.decode()
    members = json.loads(text, parse_constant=_finite, parse_float=_finite, parse_int=_whole)
    if "\\u" in text:
        _dumps(members)  # it fails for half of a surrogate pair
    return members


def _whole(text: str) -> int | float:
    number = int(text)
    return number if -(1 << 63) <= number < 1 << 64 else _finite(text)


def _finite(text: str) -> float:
    number = float(text)
    if not isfinite(number):
        raise ValueError(f"the number {text:.20} is not finite")
    return number


_DUMPS: Callable[[Any], bytes] = _dumps
_LOADS: Callable[[bytes], Any] = _loads
if find_spec("orjson") is not None:  # it is several times as fast
    import orjson

    _DUMPS, _LOADS = orjson.dumps, orjson.loads


def _integer(members: dict[str, Any], name: str) -> int:
    value = members.get(name, 0)
    if isinstance(value, str):
        value = number_in(value)
    if type(value) is not int or value not in _OPAQUE_RANGE:
        raise ProtocolError(f"{name} is not a 32-bit number: {members[name]!r:.50}")
    return value


def _language(value: object) -> int:
    """Return the number of a language; unknown ones are OTHER, because it is only informational."""
    if isinstance(value, str):
        return _LANGUAGES.get(value, Language.OTHER)
    return value if type(value) is int and value in _NAMES else Language.OTHER


def _text(name: str, value: object) -> str:
    if isinstance(value, bool):
        return truth_text(value)
    if isinstance(value, int | float):
        return repr(value)
    raise ProtocolError(f"the field {name:.50} is a {type(value).__name__}, not text")
