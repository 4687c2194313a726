"""YAML as RocketMQ's ACL 1.0 uses it: mappings, lists and scalars, which are read as text.

A secret key such as ``0123456`` must not become a number, so nothing is converted. Anchors, tags
and repeated keys are refused, and depth and size are limited: a file may be large only because of
its accounts, not because of a few characters that expand. PyYAML comes with the extra ``auth``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from firetrail.errors import ConfigError, FormatError

if TYPE_CHECKING:
    from types import ModuleType

SIZE_MAX = 4 << 20
"""Maximum size of a file in bytes: about ten thousand accounts."""
DEPTH_MAX = 8
"""Maximum depth of nesting; the files of ACL 1.0 have four levels."""
_WHAT = "YAML"
_NULLS = ("~", "null")
"""Unquoted values that mean null."""


def load_yaml(content: bytes) -> Any:
    """Return the value in a file: dicts, lists and text; None if there is none.

    Raises:
        FormatError: It is not such a file. The message shows none of its values.
        ConfigError: PyYAML is not installed.
    """
    yaml = pyyaml()
    if len(content) > SIZE_MAX:
        raise FormatError(_WHAT, SIZE_MAX, f"is larger than {SIZE_MAX >> 20} MiB")
    builder = _Builder(yaml)
    try:
        text = content.decode("utf-8-sig")
        for event in yaml.parse(text, Loader=yaml.BaseLoader):
            builder.add(event)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at, line = (mark.index, mark.line + 1) if mark is not None else (0, 1)
        raise FormatError(_WHAT, at, f"line {line} is not valid YAML") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        at = getattr(error, "position", getattr(error, "start", 0))
        raise FormatError(_WHAT, at, "is not text in UTF-8") from None
    return builder.value


def dump_yaml(value: dict[str, Any]) -> bytes:
    """Return the content of a file; raise ConfigError if PyYAML is not installed."""
    text: str = pyyaml().safe_dump(value, sort_keys=False, allow_unicode=True, width=1000)
    return text.encode()


def pyyaml() -> ModuleType:
    """Return PyYAML; raise ConfigError if it is not installed."""
    try:
        import yaml
    except ModuleNotFoundError:
        raise ConfigError(
            "aclEnable",
            True,
            "plain_acl.yml is read with PyYAML, which is not installed: pip install"
            " 'firetrail[auth]'",
        ) from None
    module: ModuleType = yaml
    return module


class _Builder:
    """Builds the value from the events of the parser."""

    def __init__(self, yaml: ModuleType) -> None:
        self._yaml = yaml
        self._open: list[dict[str, Any] | list[Any]] = []
        self._key: str | None = None
        self.value: Any = None
        self._documents = 0

    def add(self, event: Any) -> None:
        """Process the next event; raise FormatError if it is not allowed."""
        yaml = self._yaml
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise _refused(event, "anchors and aliases are not allowed")
        if isinstance(event, yaml.NodeEvent) and event.tag is not None:
            raise _refused(event, "tags are not allowed")
        if isinstance(event, yaml.DocumentStartEvent):
            self._documents += 1
            if self._documents > 1:
                raise _refused(event, "only one document is allowed")
        elif isinstance(event, yaml.ScalarEvent):
            self._scalar(event)
        elif isinstance(event, yaml.CollectionStartEvent):
            if len(self._open) >= DEPTH_MAX:
                raise _refused(event, f"more than {DEPTH_MAX} levels are not allowed")
            self._begin({} if isinstance(event, yaml.MappingStartEvent) else [], event)
        elif isinstance(event, yaml.CollectionEndEvent):
            self._open.pop()

    def _scalar(self, event: Any) -> None:
        container = self._open[-1] if self._open else None
        if isinstance(container, dict) and self._key is None:
            if event.value in container:
                raise _refused(event, "a key is repeated")
            self._key = event.value
        else:
            is_null = event.style is None and event.value.lower() in _NULLS
            self._put("" if is_null else event.value)

    def _begin(self, container: dict[str, Any] | list[Any], event: Any) -> None:
        if self._open and isinstance(self._open[-1], dict) and self._key is None:
            raise _refused(event, "a key must be text")
        self._put(container)
        self._open.append(container)

    def _put(self, value: Any) -> None:
        container = self._open[-1] if self._open else None
        if isinstance(container, dict):
            assert self._key is not None
            container[self._key] = value
            self._key = None
        elif isinstance(container, list):
            container.append(value)
        else:
            self.value = value


def _refused(event: Any, why: str) -> FormatError:
    mark = event.start_mark
    return FormatError(_WHAT, mark.index, f"line {mark.line + 1}: {why}")
