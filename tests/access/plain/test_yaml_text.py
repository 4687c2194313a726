"""YAML without surprises: text stays text, and nothing expands."""

import sys
from typing import Any

import pytest
from tests.extras import require

from firetrail.access.plain.yaml_text import SIZE_MAX, dump_yaml, load_yaml
from firetrail.errors import ConfigError, FormatError


@pytest.fixture(autouse=True)
def yaml() -> None:
    require("yaml")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("# nothing", None),
        ("a: 0123456", {"a": "0123456"}),
        ("a: yes\nb: 1e3\nc: 2020-01-01", {"a": "yes", "b": "1e3", "c": "2020-01-01"}),
        ("a: null\nb: ~\nc:\nd: 'null'", {"a": "", "b": "", "c": "", "d": "null"}),
        ("a:\n- x\n- [y, z]\n- {k: v}", {"a": ["x", ["y", "z"], {"k": "v"}]}),
        ("\ufeffa: {b: {c: d}}\n", {"a": {"b": {"c": "d"}}}),
        ("a: |\n  x\n  y\n", {"a": "x\ny\n"}),
    ],
)
def test_scalars_are_text(text: str, value: Any) -> None:
    assert load_yaml(text.encode()) == value


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"a: &x b\nc: *x", "line 1: anchors and aliases are not allowed"),
        (b"a: !!python/object/apply:os.system [id]", "line 1: tags are not allowed"),
        (b"a: !x b", "tags are not allowed"),
        (b"a: 1\na: 2", "line 2: a key is repeated"),
        (b"? [a]\n: b", "a key must be text"),
        (b"a: 1\n---\nb: 2", "only one document"),
        (b"[" * 9 + b"]" * 9, "more than 8 levels"),
        (b"[" * 100_000, "more than 8 levels"),
        (b"a: [secret\nb: }", "is not valid YAML"),
        (b"a: \x00secret", "is not text in UTF-8"),
        (b"a: \xffsecret", "is not text in UTF-8"),
        (b"#" * (SIZE_MAX + 1), "is larger than 4 MiB"),
    ],
)
def test_everything_else_is_refused_without_showing_it(content: bytes, why: str) -> None:
    with pytest.raises(FormatError) as caught:
        load_yaml(content)
    assert why in str(caught.value)
    assert "secret" not in str(caught.value)


def test_what_is_written_is_read_as_the_same_text() -> None:
    value = {"a": ["0123456", "null", "yes", "x: y", "ü", " - "], "b": {"c": "#"}}
    assert load_yaml(dump_yaml(value)) == value


def test_without_pyyaml_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(ConfigError, match=r"pip install 'firetrail\[auth\]'"):
        load_yaml(b"a: b")
