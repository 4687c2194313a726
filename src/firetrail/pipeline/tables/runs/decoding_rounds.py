"""The rounds of decoding of a run, until all rows have one schema.

Tasks that find more columns, or wider types, write nothing and return the wider schema. The driver
merges these, and runs the tasks again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import pyarrow as pa

from firetrail.errors import ConfigError, PipelineError
from firetrail.pipeline.decoding.schema.table_schema import EMPTY, TableSchema, merged
from firetrail.pipeline.lakes.lake_folder import LakeFolder
from firetrail.pipeline.tables.files.table_manifest import TableManifest
from firetrail.pipeline.tables.keyed.bucket_change import changes_types, checked_key
from firetrail.pipeline.tables.messages.table_sources import SourcePart
from firetrail.pipeline.tables.row_task import TableTask, TaskResult, sample_bodies, write_rows
from firetrail.pipeline.tables.runs.task_runner import TaskRunner
from firetrail.pipeline.tables.table_options import decoder_spec

SAMPLE = 2000
"""Messages from which the columns of a new table are inferred."""
ROUNDS_MAX = 20
"""Each round of decoding adds columns; more rounds than this mean that a decoder is wrong."""


class DecodingRounds:
    """Decodes the messages of a run.

    Args:
        runner: Runs the tasks.
        lakes: The folders of the tables by MAIN and REJECTED.
        file_schemas: Returns the columns of the files of these tables, for a next manifest.
        token: The token of the run, which is part of the names of its files.
        given: The columns that the user gives, as DDL; None without them.
        strict: Whether a message that does not fit is an error.
    """

    def __init__(
        self,
        runner: TaskRunner,
        lakes: dict[str, LakeFolder],
        file_schemas: Callable[[TableManifest], dict[str, pa.Schema]],
        token: str,
        *,
        given: str | None,
        strict: bool,
    ) -> None:
        self._runner = runner
        self._lakes = lakes
        self._file_schemas = file_schemas
        self._token = token
        self._given = given
        self._strict = strict

    def first_schema(self, manifest: TableManifest, parts: Sequence[SourcePart]) -> TableSchema:
        """Return the columns of the table, and for a new table those of its first messages."""
        if self._given is not None:
            given = TableSchema.from_ddl(self._given)
            wider = manifest.schema.widened(given)
            if wider.conflicts:
                raise ConfigError("schema", self._given, "; ".join(wider.conflicts))
            return wider.schema
        if manifest.schema != EMPTY:
            return manifest.schema
        spec = decoder_spec(manifest.options)
        own = spec.own_schema()
        if own is not None:
            return own
        bodies = [body for some in sample_bodies(parts, SAMPLE) for body in some]
        return merged([EMPTY, *spec.infer(bodies).values()]).schema

    def decode(
        self,
        manifest: TableManifest,
        parts: Sequence[SourcePart],
        schema: TableSchema,
        inline: bool,
        base: TableSchema | None = None,
    ) -> tuple[list[TaskResult], TableSchema]:
        """Write the rows of all parts with one schema, and return it with the results."""
        spec = decoder_spec(manifest.options)
        key = tuple(checked_key(manifest, schema)) if parts else ()
        done: dict[int, TaskResult] = {}
        for _ in range(ROUNDS_MAX):
            next_one = replace(manifest, schema=schema)
            written = self._file_schemas(next_one) if base is None else {}
            tasks = [
                TableTask(
                    part,
                    number,
                    spec,
                    manifest.columns_of(schema),
                    self._lakes,
                    written,
                    key,
                    manifest.options["buckets"],
                    inline,
                    manifest.sequence + 1,
                    self._token,
                    base,
                )
                for number, part in enumerate(parts)
                if number not in done
            ]
            results: list[TaskResult] = self._runner.run(write_rows, tasks, inline)
            done |= {result.number: result for result in results if result.wider is None}
            self._check_strict(manifest.topic, done.values())
            wider = [result.wider for result in results if result.wider is not None]
            if not wider:
                return [done[number] for number in sorted(done)], schema
            before, schema = schema, merged([schema, *wider]).schema
            checked_key(manifest, schema)
            if changes_types(before, schema):
                done.clear()
        raise PipelineError(
            f"{manifest.topic}: the messages show new columns again and again; give the columns "
            "with --schema"
        )

    def _check_strict(self, topic: str, results: Iterable[TaskResult]) -> None:
        for result in results:
            if self._strict and result.first_reject:
                raise PipelineError(
                    f"{topic}: a message does not fit, so nothing was added: "
                    f"{result.first_reject}; correct the schema, or run without --strict"
                )
