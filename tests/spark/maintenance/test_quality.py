"""Great Expectations on a committed snapshot: green, red, undecided, and where there is nothing to check."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyspark.sql import SparkSession
from tests.fixtures.sample_declarations import write_continuous_stream, write_table
from tests.fixtures.upkeep import check
from tests.fixtures.workshop import Workshop

from sluice.errors import UsageError
from sluice.ledger.recorded_checks import QualityVerdict, newest_quality
from sluice.quality.check_results import QualityPages

NOT_NULL = {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "id"}}
UNIQUE = {"type": "expect_column_values_to_be_unique", "kwargs": {"column": "id"}}
BETWEEN = {"type": "expect_column_values_to_be_between", "kwargs": {"column": "id", "min_value": 0, "max_value": 2}}
LATE = {  # as `sluice quality suggest` writes it
    "type": "expect_column_values_to_be_between",
    "kwargs": {"column": "at", "min_value": "2026-01-02 03:00:00+00:00"},
}
ROWS = {"type": "expect_table_row_count_to_be_between", "kwargs": {"min_value": 1}}

pytestmark = pytest.mark.filterwarnings(
    # pyspark fetches the rows of `collect` through a socket that it leaves to the garbage collector.
    "ignore:unclosed <socket:ResourceWarning",
    # Great Expectations and what it imports warn of their own ways; in a job that goes to the log.
    "ignore::DeprecationWarning",
    "ignore::UserWarning",
)


def declare(workshop: Workshop, expectations: Sequence[Any]) -> str:
    """Declare and create a table with expectations; its full name."""
    name = workshop.table_name("rows")
    columns = [
        {"name": "id", "type": "long"},
        {"name": "word", "type": "string"},
        {"name": "at", "type": "timestamptz"},
    ]
    declared: dict[str, Any] = {"table": name, "description": "rows", "owner": "me", "columns": columns}
    if expectations:
        declared["quality"] = {"expectations": list(expectations)}
    (workshop.folder / f"{name}.table.yaml").write_text(yaml.safe_dump(declared))
    workshop.create_tables()
    return name


def rows(*ids: int) -> list[dict[str, Any]]:
    """Rows with these ids."""
    at = datetime(2026, 1, 2, 3, tzinfo=UTC)
    return [{"id": number, "word": f"word {number}", "at": at} for number in ids]


@pytest.fixture
def working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in."""
    folder = tmp_path / "working"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def test_all_expectations_hold(workshop: Workshop, working_folder: Path) -> None:
    table = declare(workshop, [NOT_NULL, UNIQUE, BETWEEN, ROWS, LATE])
    workshop.append(table, rows(0, 1, 2))

    seen = check(workshop, table)

    assert (seen.verdict, seen.expectations, seen.failed_expectations) == (QualityVerdict.PASSED, 5, ())
    assert (seen.snapshot_id, seen.rows) == (workshop.table(table).metadata.current_snapshot_id, 3)
    assert [found.expectation for found in seen.details] == [
        declared["type"] for declared in (NOT_NULL, UNIQUE, BETWEEN, ROWS, LATE)
    ]
    recorded = newest_quality(workshop.ledger, table)
    assert recorded is not None
    assert (recorded.verdict, recorded.details) == (seen.verdict, seen.details)
    assert list(working_folder.iterdir()) == []


@pytest.mark.full  # every run: pages with a row in them
def test_the_pages_are_built(workshop: Workshop) -> None:
    table = declare(workshop, [NOT_NULL])
    workshop.append(table, rows(1))

    seen = check(workshop, table)

    pages = QualityPages(root=workshop.settings.reports)
    data_docs = pages.data_docs(table, seen.checked_at)
    assert seen.report == str(data_docs / "index.html")
    assert (data_docs / "index.html").is_file()
    assert [page for page in data_docs.rglob("*.html") if f"{table} at snapshot {seen.snapshot_id}" in page.read_text()]


def test_markup_in_a_row_is_text_on_every_page(workshop: Workshop) -> None:
    among = {"type": "expect_column_values_to_be_in_set", "kwargs": {"column": "word", "value_set": ["a"]}}
    distinct = {"type": "expect_column_distinct_values_to_be_in_set", "kwargs": {"column": "word", "value_set": ["b"]}}
    table = declare(workshop, [among, distinct])
    workshop.append(table, [{"id": 1, "word": "<script>alert('of a row')</script><img src=x onerror=alert(1)>"}])

    seen = check(workshop, table)

    assert seen.details[0].observed["samples"] == ["<script>alert('of a row')</script><img src=x onerror=alert(1)>"]
    pages = [page.read_text() for page in workshop.settings.reports.joinpath(table).rglob("*.html")]
    assert len(pages) >= 3
    assert any("&lt;script&gt;alert(" in page for page in pages), "the value is shown"
    assert [page for page in pages if "<script>alert(" in page or "<img src=x" in page] == []
    assert [page for page in pages if "Content-Security-Policy\" content=\"default-src 'none'; " not in page] == []


def test_of_a_masked_column_no_value_is_recorded_or_shown(workshop: Workshop) -> None:
    among = {"type": "expect_column_values_to_be_in_set", "kwargs": {"column": "word", "value_set": ["a"]}}
    distinct = {"type": "expect_column_distinct_values_to_be_in_set", "kwargs": {"column": "word", "value_set": ["b"]}}
    table = declare(workshop, [among, distinct, BETWEEN])
    workshop.append(table, [{"id": 7, "word": "a planted address"}])
    mask(workshop, table, "word")

    seen = check(workshop, table)

    assert [found.success for found in seen.details] == [False, False, False]
    assert seen.details[0].unexpected_rows == 1
    recorded = newest_quality(workshop.ledger, table)
    assert recorded is not None
    assert "planted" not in str(recorded.details)
    assert recorded.details[2].observed["samples"] == [7], "the other column is not masked"
    pages = [page.read_text() for page in workshop.settings.reports.joinpath(table).rglob("*.html")]
    assert len(pages) >= 3
    assert [page for page in pages if "planted" in page] == []


def mask(workshop: Workshop, table: str, column: str) -> None:
    """Declare a stream that writes a table and masks one of its columns."""
    source = workshop.table_name("source")
    write_table(workshop.folder, source)
    more = f"quarantine: true\nmasked_columns: [{column}]\n"
    stream = write_continuous_stream(workshop.folder, "masking", reads=source, writes=table, more=more)
    (workshop.folder / "rows.py").write_text("def rows(**inputs):\n    pass\n")
    stream.write_text(stream.read_text().replace("sql: rows.sql", "python: rows.py:rows"))


def test_an_expectation_that_does_not_hold_is_named_and_counted(workshop: Workshop) -> None:
    table = declare(workshop, [NOT_NULL, UNIQUE, BETWEEN])
    workshop.append(table, rows(1, 1, 7, *range(100, 200)))

    seen = check(workshop, table)

    assert seen.verdict is QualityVerdict.FAILED
    assert seen.failed_expectations == (UNIQUE["type"], BETWEEN["type"])
    between = seen.details[2]
    assert (between.success, between.unexpected_rows) == (False, 101)
    assert len(between.observed["samples"]) == 10


def test_expectations_of_one_type_on_one_column_are_all_checked(workshop: Workshop) -> None:
    """Also the one that is declared twice."""
    wider = {"type": BETWEEN["type"], "kwargs": {"column": "id", "min_value": 0, "max_value": 9}}
    table = declare(workshop, [BETWEEN, wider, NOT_NULL, deepcopy(BETWEEN)])
    workshop.append(table, rows(1, 7))

    seen = check(workshop, table)

    assert [found.success for found in seen.details] == [False, True, True, False]
    assert [found.arguments for found in seen.details[:2]] == [BETWEEN["kwargs"], wider["kwargs"]]


def test_an_expectation_that_cannot_be_evaluated_is_another_news_than_bad_data(workshop: Workshop) -> None:
    of_words = {"type": "expect_column_mean_to_be_between", "kwargs": {"column": "word", "min_value": 1}}
    table = declare(workshop, [NOT_NULL, of_words])
    workshop.append(table, rows(1))

    seen = check(workshop, table)

    assert (seen.verdict, seen.failed_expectations) == (QualityVerdict.UNDECIDED, (of_words["type"],))
    assert seen.details[1].success is None
    assert seen.details[1].problem


def test_what_is_committed_later_is_not_looked_at(workshop: Workshop) -> None:
    table = declare(workshop, [BETWEEN])
    workshop.append(table, rows(1))

    def commit_first() -> SparkSession:
        workshop.append(table, rows(9))
        return workshop.spark

    seen = check(workshop, table, open_session=commit_first)

    assert (seen.verdict, seen.rows) == (QualityVerdict.PASSED, 1)
    assert seen.snapshot_id != workshop.table(table).metadata.current_snapshot_id


def test_an_empty_snapshot_is_checked_and_said(workshop: Workshop) -> None:
    table = declare(workshop, [NOT_NULL, BETWEEN, ROWS])
    workshop.append(table, rows(1))
    workshop.table(table).delete("id = 1")

    seen = check(workshop, table)

    assert (seen.verdict, seen.rows, seen.failed_expectations) == (QualityVerdict.FAILED, 0, (ROWS["type"],))


def test_a_table_without_a_snapshot_needs_no_spark(workshop: Workshop) -> None:
    table = declare(workshop, [NOT_NULL])

    def unneeded() -> SparkSession:
        raise AssertionError("a Spark session was opened")

    seen = check(workshop, table, open_session=unneeded)

    assert (seen.verdict, seen.snapshot_id) == (QualityVerdict.NOTHING_TO_CHECK, None)
    assert seen.report is None


def test_a_table_without_expectations_is_a_wrong_question(workshop: Workshop) -> None:
    table = declare(workshop, [])

    with pytest.raises(UsageError, match="declares no expectations"):
        check(workshop, table)
