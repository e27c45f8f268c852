"""A transformation is loaded from beside its declaration, and what it returns must be what was declared."""

from __future__ import annotations

import pytest
from tests.fixtures.workshop import Workshop

from sluice.declarations.sql_text import query_problem
from sluice.errors import DeclarationError
from sluice_spark.query.logical_plan import is_query
from sluice_spark.query.transformation import transform


def transformed(workshop: Workshop, python: str = "", sql: str = "", *, quarantine: bool = False) -> dict[str, object]:
    """The values that a transformation of the numbers 1 to 3 returns, by output."""
    table = workshop.declare_table("numbers", {"id": "long"})
    target = workshop.declare_table("results", {"id": "long"})
    workshop.declare_stream(
        "numbers",
        python=python,
        sql=sql,
        inputs={"numbers": {"stream": {"iceberg": {"table": table}}}},
        outputs={"main": {"iceberg": {"table": target}}},
        quarantine=quarantine,
    )
    outputs = transform(workshop.spark, workshop.stream("numbers"), {"numbers": workshop.spark.range(1, 4)})
    return {name: sorted(row[0] for row in rows.collect()) for name, rows in outputs.items()}


def test_a_function_may_return_one_dataframe(workshop: Workshop) -> None:
    python = """
        def transform(numbers):
            return numbers.where("id > 1")
    """
    assert transformed(workshop, python) == {"main": [2, 3]}


def test_a_function_reaches_workers_with_everything_its_file_defines(workshop: Workshop) -> None:
    python = """
        from dataclasses import dataclass

        from pyspark.sql.functions import udf

        @dataclass(frozen=True)
        class Factor:
            value: int

        FACTOR = Factor(7)

        @udf("long")
        def times(number):
            return number * FACTOR.value

        def transform(numbers):
            return {"main": numbers.select(times("id"))}
    """
    assert transformed(workshop, python) == {"main": [7, 14, 21]}


def test_a_query_sees_the_inputs_as_views(workshop: Workshop) -> None:
    assert transformed(workshop, sql="SELECT id * 2 FROM numbers") == {"main": [2, 4, 6]}


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT id FROM numbers;",
        "WITH insert AS (SELECT id FROM numbers) SELECT * FROM insert",
        "-- one; two\nSELECT id FROM numbers /* ; /* nested */ */ WHERE 'a;\\'' <> \"b;\"",
        "FROM numbers SELECT id",
        "(SELECT id FROM numbers WHERE id < 2) UNION ALL (SELECT id FROM numbers WHERE id >= 2)",
        "FROM numbers |> WHERE id > 0",
    ],
)
def test_every_form_of_a_query_is_one(workshop: Workshop, sql: str) -> None:
    assert transformed(workshop, sql=sql) == {"main": [1, 2, 3]}


def test_what_is_no_query_is_refused_and_not_executed(workshop: Workshop) -> None:
    table = workshop.declare_table("victim", {"id": "long"})
    spark = workshop.spark
    spark.range(3).createOrReplaceTempView("kept")
    for text in (
        f"DROP TABLE {table}",
        "DROP VIEW kept",
        "CACHE TABLE kept",
        f"WITH a AS (SELECT 1 AS id) INSERT INTO {table} SELECT * FROM a",  # noqa: S608  # parsed only
        f"FROM kept INSERT INTO {table} SELECT id",  # parsed only
        f"CREATE TABLE {table}_more AS SELECT 1",
        "SET spark.sql.ansi.enabled = false",
        "SHOW TABLES",
        "EXPLAIN SELECT 1",
        f"CALL lakehouse.system.expire_snapshots('{table}')",
        "BEGIN DROP VIEW kept; END",
        "EXECUTE IMMEDIATE 'DROP VIEW kept'",
    ):
        assert query_problem(text) is not None, text
        if not text.startswith(("BEGIN", "EXECUTE", "CALL")):  # which Spark's parser does not call commands
            assert not is_query(spark, text), text
    assert spark.table("kept").count() == 3


@pytest.mark.parametrize(
    ("returned", "problem"),
    [
        ("{'other': numbers}", "it returns no main; it returns other"),
        ("{'main': numbers, 'more': numbers}", "it returns more, and declared are main"),
        (
            "{'main': numbers, 'quarantine': numbers}",
            "it returns quarantine, and declared are main; write `quarantine: true` to keep what it refuses",
        ),
        ("{'main': 7}", "its output main is not a DataFrame"),
        ("[numbers]", "it returns list; a DataFrame or a mapping of them is wanted"),
    ],
)
def test_what_it_returns_must_be_what_was_declared(workshop: Workshop, returned: str, problem: str) -> None:
    with pytest.raises(DeclarationError) as refusal:
        transformed(workshop, f"def transform(numbers):\n    return {returned}\n")
    assert refusal.value.problem == f"`transformation.python`: {problem}."
    assert refusal.value.location.line is not None


def test_a_quarantine_that_is_declared_must_be_returned(workshop: Workshop) -> None:
    with pytest.raises(DeclarationError, match="returns one DataFrame, and the stream has the outputs main, quarant"):
        transformed(workshop, "def transform(numbers):\n    return numbers\n", quarantine=True)


def test_a_file_that_cannot_be_loaded_is_named(workshop: Workshop) -> None:
    python = "import no_such_module\n\ndef transform(numbers):\n    return numbers\n"
    with pytest.raises(DeclarationError, match=r"numbers\.py cannot be loaded: ModuleNotFoundError: No module named"):
        transformed(workshop, python)


def test_a_query_that_is_none_is_refused(workshop: Workshop) -> None:
    with pytest.raises(DeclarationError, match=r"numbers\.sql is not a query: .*PARSE_SYNTAX_ERROR"):
        transformed(workshop, sql="SELECT id FRM numbers also")
