"""A transformation in SQL reads its inputs alone: no Java, no program, no file by its path, no environment."""

from __future__ import annotations

import pytest

from sluice.declarations.sql_text import query_problem

REACHING = [
    "SELECT reflect('java.lang.System', 'getenv', 'SLUICE_LEDGER_URL')",
    "SELECT Java_Method /* of */ ('java.lang.System', 'getenv', 'X')",
    "SELECT try_reflect('java.lang.System', 'getenv', 'X') FROM rows",
    "SELECT `reflect`('java.lang.System', 'getenv', 'X')",
    "SELECT system.builtin.reflect('java.lang.System', 'getenv', 'X')",
    "SELECT * FROM rows WHERE id IN (SELECT reflect('java.lang.System', 'getenv', 'X'))",
    "SELECT from_avro(a, NULL, map('avroSchemaUrl', 'file:///etc/passwd')) FROM rows",
    "SELECT `from_protobuf`(a, 'M', '/etc/passwd') FROM rows",
    "SELECT from_xml(a, 'x INT', map('rowValidation' || 'XSDPath', '/etc/passwd')) FROM rows",
    "SELECT schema_of_xml('<a/>', map('rowValidationXSDPath', '/etc/passwd'))",
    "SELECT xpath_string(a, 'a') FROM rows",
    "SELECT `xpath`('<!DOCTYPE a SYSTEM \"file:///etc/passwd\"><a>&e;</a>', 'a')",
    "SELECT 1, --\r reflect('java.lang.System', 'getenv', 'X')",
    "SELECT IDENTIFIER('refl' || 'ect')('java.lang.System', 'getenv', 'X')",
    "SELECT TRANSFORM(a) USING 'id -un' FROM rows",
    "SELECT TRANSFORM(a) ROW FORMAT DELIMITED FIELDS TERMINATED BY ',' USING \"cat\" AS (b) FROM rows",
    "FROM rows MAP a USING 'cat'",
    "FROM rows REDUCE a USING 'cat' AS (b)",
    "MAP a USING 'cat' FROM rows",
    "REDUCE a USING 'cat' FROM rows",
    "SELECT * FROM text.`file:///etc/passwd`",
    "SELECT * FROM rows, `csv`.`/etc/passwd`",
    "SELECT * FROM rows JOIN parquet.files ON true",
    "SELECT * FROM rows, `org.apache.spark.sql.execution.datasources.text.TextFileFormat`.`/etc/passwd`",
    "TABLE binaryFile.`/etc/passwd`",
    "SELECT '${env:SLUICE_LEDGER_URL}'",
    "SELECT '${system:user.home}' FROM rows",
    "SELECT re${none:-flect}('java.lang.System', 'getenv', 'X')",
]

HARMLESS = [
    "SELECT transform(list, x -> x + 1) FROM rows",
    "SELECT reflect, java_method, from_avro, map(1, 2), reduce(list, 0, (a, b) -> a + b) FROM rows",
    "SELECT a.x FROM rows AS a JOIN names AS b USING (id)",
    "SELECT json.a, text.b, json . c FROM rows",
    "SELECT t.`odd / name`, `a.b` FROM rows AS t",
    "SELECT 'reflect(1)', \"text.`x`\", '$', '{a}' FROM rows -- TRANSFORM(a) USING 'x', reflect(1)",
]


@pytest.mark.parametrize("sql", REACHING)
def test_a_query_that_reaches_beyond_its_inputs_is_refused(sql: str) -> None:
    assert query_problem(sql) is not None


@pytest.mark.parametrize("sql", HARMLESS)
def test_other_queries_are_not(sql: str) -> None:
    assert query_problem(sql) is None
