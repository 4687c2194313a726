"""Statements of MySQL that add columns."""

import pytest

from firetrail.pipeline.decoding import TableSchema
from firetrail.pipeline.decoding.events.alter_table import added_columns
from firetrail.pipeline.decoding.values.text_values import BodyError


@pytest.mark.parametrize(
    ("sql", "columns"),
    [
        ("ALTER TABLE orders ADD COLUMN note varchar(20)", "note string"),
        ("alter table `shop`.`orders` add `a b` int unsigned not null default 5;", "`a b` bigint"),
        (
            "ALTER TABLE o ADD (a int, b decimal(12, 4) NOT NULL), ADD KEY k (a, b)",
            "a int, b decimal(12,4)",
        ),
        (
            "ALTER TABLE o ADD COLUMN IF NOT EXISTS e enum('a,b','c)') COMMENT 'unsigned, x' FIRST",
            "e string",
        ),
        (
            "/* tool */ ALTER IGNORE TABLE o\n ADD COLUMN t datetime(3) -- now\n AFTER id,"
            "ADD\tCOLUMN u bigint(20) unsigned",
            "t timestamp_ntz, u decimal(20,0)",
        ),
        ("ALTER TABLE o ADD COLUMN c int COMMENT 'unsigned'", "c int"),
        ("ALTER TABLE o ADD COLUMN c int DEFAULT 1, ADD UNIQUE INDEX (c)", "c int"),
        ("CREATE TABLE o (a int)", "a int"),
        (
            "create temporary table if not exists `shop`.`o` (\n"
            " `id` bigint(20) unsigned NOT NULL AUTO_INCREMENT COMMENT 'x, (',\n"
            " `key` decimal(10,2) DEFAULT '0.00', PRIMARY KEY (`id`), KEY k (`key`, `id`),\n"
            " CONSTRAINT f FOREIGN KEY (id) REFERENCES p (id)) ENGINE=InnoDB COMMENT='as SELECT'",
            "id decimal(20,0), key decimal(10,2)",
        ),
    ],
)
def test_added_columns(sql: str, columns: str) -> None:
    assert TableSchema.of(added_columns(sql)).ddl == columns


@pytest.mark.parametrize(
    "sql",
    [
        *(
            "",
            ";",
            "ALTER",
            "ALTER TABLE",
            "ALTER TABLE o",
            "ALTER TABLE o ADD",
            "ADD COLUMN c int",
        ),
        *("ALTER TABLE o ADD COLUMN", "ALTER TABLE o ADD COLUMN c", "CREATE TABLE o"),
        *("CREATE TABLE o LIKE p", "CREATE TABLE o (LIKE p)", "CREATE TABLE o AS SELECT 1"),
        *("CREATE TABLE o (a int) AS SELECT 1 a", "CREATE TABLE o ()", "CREATE TABLE o (a"),
        *("CREATE VIEW v (a) AS SELECT 1", "CREATE INDEX i ON t (c)", "CREATE DATABASE d"),
        *("ALTER TABLE o ADD COLUMN c int, DROP COLUMN d", "ALTER TABLE o RENAME TO p"),
        *("ALTER TABLE o MODIFY c bigint", "TRUNCATE TABLE o", "ALTER TABLE o ADD INDEX (c)"),
        *("ALTER TABLE o ADD COLUMN (", "ALTER TABLE o ADD (c int", "ALTER TABLE o ADD COLUMN (c"),
        "ALTER TABLE o ADD PARTITION (PARTITION p1 VALUES LESS THAN (5))",
    ],
)
def test_other_statements_are_refused(sql: str) -> None:
    with pytest.raises(BodyError):
        print(added_columns(sql))
