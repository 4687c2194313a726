"""The options of a table: function, command and run have the same ones."""

import inspect
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from firetrail.cli.main import main
from firetrail.pipeline.tables.runs import table_job
from firetrail.pipeline.tables.table_options import TableOptions

DEFAULTS = {field.name: field.default for field in fields(TableOptions)}
WITHOUT_FLAG = {"split_bytes": "a measure for tests and benchmarks"}
FLAGS = (
    *("--decoder", "csv", "--option", "columns=id", "--schema", "id bigint", "--prefix", "x"),
    *("--no-message-columns", "--upsert", "id", "--buckets", "3", "--keep", "5"),
    *("--strict", "--allow-gap"),
)


def test_the_function_has_the_options_of_a_run() -> None:
    parameters = inspect.signature(table_job.table).parameters.values()
    found = {each.name: each.default for each in parameters if each.kind is each.KEYWORD_ONLY}
    assert found.keys() == DEFAULTS.keys()
    del found["on_plan"]
    assert found == {name: DEFAULTS[name] for name in found}


def test_the_function_passes_each_option_under_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed = {}

    def options(**given: Any) -> TableOptions:
        passed.update(given)
        raise StopIteration

    monkeypatch.setattr(table_job, "TableOptions", options)
    given = {name: object() for name in DEFAULTS}
    with pytest.raises(StopIteration):
        table_job.table(None, "data", "orders", tmp_path, **given)  # type: ignore[arg-type]
    assert passed == given


def test_the_command_has_the_options_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    passed: dict[str, Any] = {}

    def table(*_: object, **given: Any) -> None:
        passed.update(given)
        raise KeyboardInterrupt

    monkeypatch.setattr(table_job, "table", table)
    main(["pipeline", "table", "data", "orders", "--to", "lake", *FLAGS])
    assert passed.keys() == DEFAULTS.keys() - WITHOUT_FLAG.keys()
    assert not [name for name, value in passed.items() if value == DEFAULTS[name]]
