"""The options of a table: function, command and run have the same ones."""

import inspect
import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from tests.cli.test_help import COMMANDS
from tests.clone import ROOT
from tests.pipeline.tables.topics import put, rows, table

from firetrail.cli.main import main
from firetrail.errors import ConfigError, LakeError
from firetrail.pipeline.lakes.location import open_folder
from firetrail.pipeline.tables.files import table_columns
from firetrail.pipeline.tables.keyed import keys
from firetrail.pipeline.tables.runs import publication, table_job, table_rounds
from firetrail.pipeline.tables.runs.explanation import explain_table
from firetrail.pipeline.tables.runs.table_status import table_status
from firetrail.pipeline.tables.runs.verification import verify_table
from firetrail.pipeline.tables.table_options import TableOptions

DEFAULTS = {field.name: field.default for field in fields(TableOptions)}
WITHOUT_FLAG = {"split_bytes": "a measure for tests and benchmarks"}
FLAGS = (
    *("--decoder", "csv", "--option", "columns=id", "--schema", "id bigint", "--prefix", "x"),
    *("--no-message-columns", "--upsert", "id", "--history", "--buckets", "3", "--keep", "5"),
    *("--strict", "--allow-gap", "--format", "iceberg", "--catalog", "lake.shop.orders"),
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


def test_the_page_describes_the_options_of_the_command() -> None:
    page = (ROOT / "docs/guide/tables.md").read_text()
    parser, _ = COMMANDS["firetrail pipeline table"]
    general = {"--help", "--json", "--master", "--conf"}
    options = {name for each in parser._actions for name in each.option_strings if name[1] == "-"}
    assert not [name for name in options - general if not re.search(rf"{name}\b", page)]


def test_texts_name_the_values_of_defaults() -> None:
    options = " ".join(COMMANDS["firetrail pipeline table"][0].format_help().split())
    page = " ".join((ROOT / "docs/guide/tables.md").read_text().split())
    function, follow = (
        " ".join(str(each.__doc__).split()) for each in (table_job.table, table_rounds.follow_table)
    )
    every = f"{table_rounds.EVERY_S:g}", f"{table_rounds.KEYED_EVERY_S:g}"
    kept = publication.KEPT_HOURS, publication.KEYED_KEPT_HOURS
    for text, wanted in (
        (options, f"messages touch (default: {keys.BUCKETS})"),
        (options, f"every SECONDS (default: {every[0]}, with --upsert {every[1]})"),
        (options, f"older versions (default: {kept[0]}, with --upsert {kept[1]})"),
        (options, f"describe the message (default: {table_columns.PREFIX})"),
        (function, f"a new table with a key. None, the default, is {keys.BUCKETS}."),
        (function, f"None, the default, is {kept[0]}, and {kept[1]} for a table with a key."),
        (follow, f"None, the default, is {every[0]}, and {every[1]} for a table with a key."),
        (page, f"Choose `--buckets` (default: {keys.BUCKETS})"),
        (page, f"Every {publication.MAINTAINED_EVERY} commits, with `--upsert` every "),
        (page, f"with `--upsert` every {publication.KEYED_MAINTAINED_EVERY}, the job merges"),
    ):
        assert wanted in text


@pytest.mark.parametrize("given", ["ID", "Id", ["iD"]])
def test_a_key_in_another_case_is_the_same(tmp_path: Path, given: Any) -> None:
    root, to = tmp_path / "data", tmp_path / "orders"
    put(root, {"id": 1, "n": 1})
    table(root, to, upsert="id")
    put(root, {"ID": 1, "n": 2})
    assert table(root, to, upsert=given).key == ("id",)
    assert [row["n"] for row in rows(to)] == [2]
    with pytest.raises(ConfigError, match="the table was made with"):
        table(root, to, upsert="n")


def test_a_table_needs_a_source(tmp_path: Path) -> None:
    to = tmp_path / "orders"
    calls: list[Callable[[], object]] = [
        lambda: table([], to),
        lambda: explain_table(_no_spark, [], "orders", to),
        lambda: verify_table([], to),
    ]
    put(tmp_path / "data", {"id": 1})
    table(tmp_path / "data", to)
    for call in calls:
        with pytest.raises(ConfigError, match=r"^source = .*name at least one"):
            call()


def _no_spark() -> Any:
    raise AssertionError


def test_a_place_may_be_the_url_of_a_local_file(tmp_path: Path) -> None:
    root, to = tmp_path / "my data", tmp_path / "my orders"
    put(root, {"id": 1})
    source, url = (f"file://{quote(str(place))}" for place in (root, to))
    assert table(source, url).table == str(to)  # type: ignore[arg-type]
    assert table(root, to).total_rows == 1
    assert table_status(url).rows == 1
    assert verify_table([source], url).ok
    assert open_folder(url).is_local
    with pytest.raises(LakeError, match="needs a local or mounted folder"):
        table(root, f"s3://{to}")  # type: ignore[arg-type]


@pytest.mark.parametrize("option", ["--option", "--conf"])
def test_an_option_that_is_given_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    command = ["pipeline", "table", str(tmp_path), "orders", "--to", "lake"]
    with pytest.raises(SystemExit):
        main([*command, option, "spark.a=1", option, "spark.b=2", option, "spark.a=3"])
    assert f"argument {option}: spark.a is given twice" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([*command, option, "=1"])
    assert "'=1' is not " in capsys.readouterr().err
