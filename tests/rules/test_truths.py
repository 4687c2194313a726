"""Truth values as text mean the same to all who read them."""

from datetime import UTC

import pyarrow as pa
import pytest

from firetrail.access.plain.plain_accounts import PlainAccount
from firetrail.broker.filter.sql92 import parse
from firetrail.format.message_types import is_transactional, waits_for_disk
from firetrail.format.values.truths import is_true, truth_in, truth_text
from firetrail.pipeline.decoding.mysql_types import canal_reader, mysql_type
from firetrail.pipeline.decoding.text_values import BodyError, Converter, from_text
from firetrail.settings.settings_table import Flag

TRUE = ("true", "True", "TRUE", "tRuE")
FALSE = ("false", "False", "FALSE", "fAlSe")
OTHER = ("", " true", "true ", "1", "0", "yes", "null")


@pytest.mark.parametrize("text", [*TRUE, *FALSE, *OTHER])
def test_a_text_is_true_or_not(text: str) -> None:
    """As for Java's ``Boolean.parseBoolean``."""
    found = [
        is_true(text),
        is_transactional({"TRAN_MSG": text}),
        waits_for_disk({"WAIT": text}),
        parse("a = TRUE").matches({"a": text}),
        PlainAccount.of({"accessKey": "u" * 7, "secretKey": "s" * 7, "admin": text}).is_admin,
    ]
    if text != text.strip():  # blanks in a file of accounts do not count
        found.pop()
    assert found == [text in TRUE] * len(found)


@pytest.mark.parametrize("text", [*TRUE, *FALSE, *OTHER])
def test_a_setting_is_true_or_false(text: str) -> None:
    """Any other text would be false in Java, without a word."""
    value = truth_in(text)
    assert value is (None if text in OTHER else text in TRUE)
    if value is None:
        with pytest.raises(ValueError, match="true or false"):
            Flag().parse(text)
    else:
        assert Flag().parse(text) is value
        assert Flag().show(value) == truth_text(value) == text.lower()


@pytest.mark.parametrize("text", [*TRUE, *FALSE, *OTHER])
def test_a_value_of_a_table_is_true_or_false(text: str) -> None:
    """A ``tinyint(1)`` of MySQL may also be a number."""
    for kind in ("boolean", "tinyint"):
        read = text_reader(kind)
        if text in (*TRUE, *FALSE):
            assert read(text) == (text in TRUE)
        elif kind == "boolean" or text not in ("0", "1"):
            with pytest.raises(BodyError):
                read(text)


def text_reader(kind: str) -> Converter:
    if kind == "tinyint":
        return canal_reader(mysql_type("tinyint(1)"), UTC, zero_nulls=True)
    read = from_text(pa.bool_(), UTC)
    assert read is not None
    return read
