"""What one declaration says of another: tables, columns, names, and the transformation's file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.unit.declarations.conftest import Folder

S = "silver_flights.stream.yaml"

CHANGES = [
    (
        "table: bronze.flights}",
        "table: bronze.flihgts}",
        [
            f"{S}:9: `inputs.flights.stream.iceberg.table`: no file declares the table bronze.flihgts. "
            "Did you mean `bronze.flights`?"
        ],
    ),
    (
        "table: reference.airlines}",
        "table: elsewhere.x}",
        [
            f"{S}:13: `inputs.airlines.static.iceberg.table`: no file declares the table elsewhere.x. "
            "Declare it in elsewhere.x.table.yaml."
        ],
    ),
    (
        "table: silver.flights,",
        "table: quarantine.silver_flights,",
        [
            f"{S}:18: `outputs.main.iceberg.table`: quarantine.silver_flights is the platform's; a stream writes into "
            "tables of its own."
        ],
    ),
    (
        "mode: continuous\ntrigger: {processing_time: 2 seconds}",
        "mode: incremental\nschedule: {tables: [bronze.none]}",
        [f"{S}:5: `schedule.tables[0]`: no file declares the table bronze.none. Declare it in bronze.none.table.yaml."],
    ),
    (
        "quarantine: true",
        "  again:\n    iceberg: {table: silver.flights}",
        [
            f"{S}:20: `outputs.again.iceberg.table`: the output main already writes into silver.flights, and a batch "
            "marks a table once. Unite the rows in the transformation."
        ],
    ),
    (
        "quarantine: true",
        "  one:\n    files: {connection: lake, path: a/b}\n  two:\n    files: {connection: lake, path: a/b}",
        [
            f"{S}:22: `outputs.two.files.path`: the output one already writes into the folder a/b of lake. Give each "
            "output a folder of its own, or unite the rows in the transformation."
        ],
    ),
    (
        "mode: append",
        "mode: merge, keys: [carrier], ordering_columns: [departure, flight]",
        [
            f"{S}:18: `outputs.main.iceberg.ordering_columns[1]`: silver.flights has no column flight; it has carrier, "
            "departure, legs."
        ],
    ),
    (
        "mode: append",
        "mode: merge, keys: [carrier, flight]",
        [
            f"{S}:18: `outputs.main.iceberg.keys[1]`: silver.flights has no column flight; it has carrier, departure, "
            "legs."
        ],
    ),
    (
        "mode: append",
        "mode: merge, keys: [carrier], operation_column: legs",
        [
            f"{S}:18: `outputs.main.iceberg.operation_column`: legs is a column of silver.flights, and the operation "
            "is never published. Give the operation another name in the transformation."
        ],
    ),
    (
        "column: departure",
        "column: departed",
        [
            f"{S}:10: `inputs.flights.watermark.column`: bronze.flights has no column departed; it has carrier, "
            "departure, legs. Did you mean `departure`?"
        ],
    ),
    (
        "column: departure",
        "column: carrier",
        [
            f"{S}:10: `inputs.flights.watermark.column`: event time is a timestamp or timestamptz, and carrier is a "
            "string."
        ],
    ),
    ("stream: silver_flights", "stream: flights", None),
    (
        "transformations.py",
        "transform.py",
        [
            f"{S}:15: `transformation.python`: there is no file transform.py beside the declaration. "
            "Create transform.py, or correct the name."
        ],
    ),
    (
        ":silver_flights",
        ":silver_flight",
        [
            f"{S}:15: `transformation.python`: transformations.py has no function silver_flight; it has "
            "silver_flights. Did you mean `silver_flights`?"
        ],
    ),
    (
        "  airlines:",
        "  carriers:",
        [
            f"{S}:15: `transformation.python`: the function silver_flights in transformations.py:1 has no parameter "
            "for the input carriers. A function's parameters are the stream's inputs, by name."
        ],
    ),
]


@pytest.mark.parametrize(("old", "new", "sentences"), CHANGES, ids=lambda value: str(value)[:40])
def test_a_stream_that_fits_nothing_else(valid: Folder, old: str, new: str, sentences: list[str] | None) -> None:
    file = valid.path / S
    assert old in file.read_text()
    valid.write(S, file.read_text().replace(old, new, 1))
    expected = sentences or [
        f"{S}:1: `stream`: the name is the file's name, got 'flights' in {S}. "
        "Rename the file to flights.stream.yaml, or correct the name."
    ]
    assert valid.problems() == expected
    assert valid.load().streams == {}


@pytest.mark.parametrize(
    ("signature", "problem"),
    [
        ("(flights, airlines)", None),
        ("(airlines, flights)", None),
        ("(*, flights, airlines)", None),
        ("(flights, **others)", None),
        ("(flights, airlines, hours=6)", None),
        ("(flights, airlines, *, hours=6)", None),
        ("(flights)", "has no parameter for the input airlines"),
        (
            "(flights, airlines, planes)",
            "needs planes, and the stream has no such input; it has airlines, flights",
        ),
        (
            "(flights, airlines, *, planes)",
            "needs planes, and the stream has no such input; it has airlines, flights",
        ),
        ("(flights, /, airlines)", "takes flights by position only, and inputs are passed by name"),
    ],
)
def test_the_parameters_of_a_function_are_the_inputs(valid: Folder, signature: str, problem: str | None) -> None:
    valid.write("transformations.py", f"def silver_flights{signature}:\n    pass\n")
    place = f"{S}:15: `transformation.python`: the function silver_flights in transformations.py:1"
    assert valid.problems() == (
        [] if problem is None else [f"{place} {problem}. A function's parameters are the stream's inputs, by name."]
    )


@pytest.mark.parametrize("text", ["def silver_flights(:\n", "a = '\x00'", "-" * 100_000 + "1"])
def test_a_transformation_that_is_not_python_is_not_executed(valid: Folder, text: str) -> None:
    valid.write("transformations.py", text)
    (problem,) = valid.problems()
    assert problem.startswith(f"{S}:15: `transformation.python`: transformations.py")
    assert " is not Python: " in problem


def test_one_name_in_two_files_breaks_both_and_names_both(valid: Folder) -> None:
    valid.write(f"other/{S}", (valid.path / S).read_text())
    valid.write("other/transformations.py", (valid.path / "transformations.py").read_text())
    valid.write("other/silver.flights.table.yaml", (valid.path / "silver.flights.table.yaml").read_text())
    advice = "Keep one of them, or give them different names."
    assert valid.problems() == [
        f"other/silver.flights.table.yaml:1: `table`: silver.flights is also declared in "
        f"silver.flights.table.yaml:1. {advice}",
        f"other/{S}:1: `stream`: silver_flights is also declared in {S}:1. {advice}",
        f"silver.flights.table.yaml:1: `table`: silver.flights is also declared in "
        f"other/silver.flights.table.yaml:1. {advice}",
        f"{S}:1: `stream`: silver_flights is also declared in other/{S}:1. {advice}",
    ]


def test_a_stream_does_not_read_a_table_that_is_merged_into(valid: Folder) -> None:
    merging = (valid.path / S).read_text().replace("mode: append", "mode: merge, keys: [carrier]")
    valid.write(S, merging)
    reader = (
        (valid.path / S)
        .read_text()
        .replace("stream: silver_flights", "stream: gold")
        .replace("bronze.flights", "silver.flights")
        .replace("table: silver.flights, mode: merge, keys: [carrier]", "table: gold.flights")
    )
    valid.write("gold.stream.yaml", reader)
    valid.write(
        "gold.flights.table.yaml",
        (valid.path / "silver.flights.table.yaml").read_text().replace("silver.flights", "gold.flights"),
    )
    assert valid.problems() == [
        "gold.stream.yaml:9: `inputs.flights.stream.iceberg.table`: silver_flights writes silver.flights in mode "
        "merge, which rewrites rows, and a stream reads only rows that are appended: it would stop there, or leave "
        "new rows out. Read the table as a static input, or read the table it is made from."
    ]


def test_a_stream_may_read_what_another_one_refused(valid: Folder) -> None:
    reader = (valid.path / S).read_text().replace("stream: silver_flights", "stream: retry")
    reader = reader.replace("table: bronze.flights", "table: quarantine.silver_flights").replace(
        "    watermark: {column: departure, delay: 6 hours}\n", ""
    )
    valid.write("retry.stream.yaml", reader)
    assert valid.problems() == []


@pytest.mark.parametrize("namespace", ["backfill_staging", "quarantine", "staging"])
def test_tables_of_the_platform_are_not_declared(valid: Folder, namespace: str) -> None:
    file = f"{namespace}.x.table.yaml"
    valid.write(
        file, (valid.path / "silver.flights.table.yaml").read_text().replace("silver.flights", f"{namespace}.x")
    )
    assert valid.problems() == [
        f"{file}:1: `table`: tables in {namespace} are the platform's and come with their streams. "
        "Use another namespace."
    ]


NOTES = "list<struct<notes: map<string, long>>>"


@pytest.mark.parametrize(
    ("mode", "place"),
    [
        ("keys: [carrier, legs]", "keys[1]"),
        ("keys: [carrier], ordering_column: legs", "ordering_column"),
        ("keys: [carrier], ordering_columns: [departure, legs]", "ordering_columns[1]"),
    ],
)
def test_a_map_is_neither_a_key_nor_an_ordering(valid: Folder, mode: str, place: str) -> None:
    """Also inside of other columns: Spark would refuse every batch."""
    table, stream = valid.path / "silver.flights.table.yaml", valid.path / S
    valid.write(table.name, table.read_text().replace("list<string>", f"{NOTES!r}"))
    valid.write(S, stream.read_text().replace("mode: append", f"mode: merge, {mode}"))

    assert valid.problems() == [
        f"{S}:18: `outputs.main.iceberg.{place}`: legs is a {NOTES}, and maps are not compared with each other."
    ]


def test_rows_are_not_sorted_by_a_map(valid: Folder) -> None:
    table = valid.path / "silver.flights.table.yaml"
    text = table.read_text().replace("list<string>", "'map<string, long>'")
    valid.write(table.name, text.replace("  - {column: carrier}", "  - {column: legs}"))

    assert [problem for problem in valid.problems() if "sort_order" in problem] == [
        f"{table.name}:11: `sort_order[0].column`: rows cannot be sorted by a column of type map, got 'legs'."
    ]
