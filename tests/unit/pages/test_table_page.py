"""The page of a table: what is drawn and said of its debt, and that hostile words stay words."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest
from pydantic import SecretStr
from tests.unit.maintenance.test_maintenance_records import NOON, run, step
from tests.unit.pages.test_page_templates import HOSTILE

from sluice.declarations.maintenance_declaration import MaintenanceDeclaration
from sluice.declarations.table_declaration import TableDeclaration
from sluice.ledger.maintenance_runs import KeptSnapshot, MaintenanceStep, StepOutcome, TableFigures
from sluice.ledger.recorded_checks import QualityVerdict
from sluice.ledger.stream_troubles import StreamTrouble
from sluice.pages.line_selection import TableSelection, counts_of
from sluice.pages.page_figures import BAR_HEIGHT, bars_of, bars_path
from sluice.pages.page_templates import render
from sluice.pages.table_lines import TableLine, debt_of
from sluice.pages.table_looks import LookedColumn, TableLook
from sluice.pages.table_page import TablePage, charts_of_runs, columns_shown, outlooks_of, queries_of
from sluice.quality.rule_results import report_of
from sluice.settings import CatalogSettings

POLICY = MaintenanceDeclaration()
LINE = TableLine(
    table="silver.clicks",
    now=NOON,
    owner="web",
    writers=("clicks",),
    readers=(),
    rows=100,
    files=1,
    bytes=10,
    file_sizes=(1, 0, 0, 0, 0, 0, 0),
    debt=1,
    snapshots=1,
    holders=("silver",),
    maintained_at=NOON,
)


def outlook_of(kind: MaintenanceStep, *, outcome: StepOutcome = StepOutcome.SKIPPED, **changed: Any) -> str:
    """What is said of one step."""
    seen = replace(run(replace(step(outcome), step=kind)), **changed)
    (outlook,) = outlooks_of(seen, POLICY, now=NOON)
    return outlook.outlook


def test_the_bars_of_files_by_size() -> None:
    bars = bars_of((0, 1, 1000, 0, 0, 0, 500))

    assert [bar.words for bar in bars][:3] == ["< 64 KiB", "< 512 KiB", "< 4 MiB"]
    assert bars[-1].words == "≥ 512 MiB"
    assert [bar.height for bar in bars] == [0.0, 2.0, BAR_HEIGHT, 0.0, 0.0, 0.0, BAR_HEIGHT / 2], "one file is seen too"
    assert bars_of(()) == ()
    assert bars_of((1, 2, 3)) == (), "counts between other edges would be read wrongly"


def test_the_bars_of_a_list_are_one_path() -> None:
    assert bars_path(bars_of((0, 1, 1000, 0, 0, 0, 500))) == "M13 22v-0.7h10v0.7zM25 22v-22h10v22zM73 22v-11h10v11z"
    assert bars_path(bars_of((0,) * 7)) == ""


def test_two_hundred_tables_are_a_page_of_less_than_300_kilobytes() -> None:
    line = replace(LINE, file_sizes=(12, 30, 3, 1, 4, 0, 0), held_for=timedelta(hours=3))
    lines = [replace(line, table=f"silver.table_{number:03}_of_the_shop") for number in range(200)]

    assert len(tables_page(*lines).encode()) < 300_000


def tables_page(*lines: TableLine, **query: str) -> str:
    """The page of all tables as HTML."""
    selection = TableSelection.of(query)
    values = {
        "base": "/sluice",
        "airflow": "/",
        "lines": selection.select(lines),
        "counts": counts_of(lines),
        "selection": selection,
        "paused": (),
        "may_see_quality": True,
        "link_to_sort": lambda key: f"sort={key}",
        "link_to_show": lambda kind: f"show={kind}",
    }
    return render("tables", values)


def test_a_table_without_rules_is_not_one_that_was_not_checked() -> None:
    without, unchecked = replace(LINE, rules=0), replace(LINE, rules=2)

    assert "no rules" in tables_page(without)
    assert "not checked" not in tables_page(without)
    assert "not checked yet" in tables_page(unchecked)


@pytest.mark.parametrize(
    ("query", "shown"),
    [
        ({}, ["gold.sums", "silver.clicks"]),
        ({"show": "all"}, ["gold.sums", "quarantine.clicks", "silver.clicks"]),
        ({"show": "quarantines"}, ["quarantine.clicks"]),
        ({"show": "failed"}, ["gold.sums"]),
        ({"q": "hourly SUMS"}, ["gold.sums"]),
        ({"q": "web clicks"}, ["silver.clicks"]),
        ({"sort": "fresh", "desc": "1"}, ["silver.clicks", "gold.sums"]),
        ({"sort": "rows"}, ["gold.sums", "silver.clicks"]),
        ({"sort": "quality"}, ["gold.sums", "silver.clicks"]),
        ({"sort": "no such column", "show": "nothing"}, ["gold.sums", "silver.clicks"]),
    ],
)
def test_tables_are_searched_and_sorted(query: dict[str, str], shown: list[str]) -> None:
    clicks = replace(LINE, fresh_at=NOON)
    sums = replace(
        LINE,
        table="gold.sums",
        writers=("sums",),
        description="Hourly sums",
        fresh_at=NOON - timedelta(days=1),
        rows=3,
        verdict=QualityVerdict.FAILED,
    )

    selected = TableSelection.of(query).select((clicks, replace(LINE, table="quarantine.clicks"), sums))

    assert [line.table for line in selected] == shown


def test_a_column_turns_round_when_it_is_chosen_again() -> None:
    assert TableSelection(sort="table").direction("fresh") == "1", "the freshest first"
    assert TableSelection(sort="fresh", descending=True).direction("fresh") == "0"
    assert TableSelection(sort="table").direction("table") == "1"


def test_debt_is_small_files_and_delete_files_and_unknown_where_they_were_not_counted() -> None:
    assert debt_of(3, 2) == 5
    assert debt_of(0, None) == 0
    assert debt_of(None, 2) is None


def test_the_charts_begin_with_the_oldest_run() -> None:
    older = run(step(StepOutcome.DONE))
    newer = replace(older, before=replace(older.before, small_files=3))

    debt, files, *_ = charts_of_runs([newer, older])

    assert debt.figure == "3 small files · 0 delete files"
    assert debt.summary == "Debt found by each run: now 3 small files, 0 delete files; at most 12."
    assert files.figure == "12 before · 1 after"
    assert charts_of_runs([]) == ()


@pytest.mark.parametrize(
    ("kind", "changed", "said"),
    [
        (
            MaintenanceStep.REWRITE_DATA_FILES,
            {},
            "due once a partition has 5 small files, or delete files hide 30% of its rows",
        ),
        (MaintenanceStep.REWRITE_MANIFESTS, {"after": TableFigures(manifests=40)}, "due after 60 more manifests"),
        (MaintenanceStep.REWRITE_MANIFESTS, {"after": TableFigures(manifests=100)}, "due now"),
        (
            MaintenanceStep.EXPIRE_SNAPSHOTS,
            {"after": TableFigures(snapshots=20)},
            "due once there are more than 20 snapshots",
        ),
        (
            MaintenanceStep.EXPIRE_SNAPSHOTS,
            {"after": TableFigures(snapshots=21), "oldest_snapshot_at": NOON - timedelta(days=4, hours=22)},
            "due in 2 h, by the oldest snapshot",
        ),
        (
            MaintenanceStep.EXPIRE_SNAPSHOTS,
            {"after": TableFigures(snapshots=21), "oldest_snapshot_at": NOON - timedelta(days=6)},
            "due now",
        ),
        (MaintenanceStep.EXPIRE_SNAPSHOTS, {"oldest_snapshot_at": None}, ""),
        (MaintenanceStep.PIN_SNAPSHOTS, {}, "due when a reader has moved on"),
    ],
)
def test_what_is_due_next(kind: MaintenanceStep, changed: dict[str, Any], said: str) -> None:
    assert outlook_of(kind, **changed) == said


def test_a_step_that_was_not_done_is_tried_again() -> None:
    assert outlook_of(MaintenanceStep.REWRITE_DATA_FILES, outcome=StepOutcome.YIELDED) == "the next run tries it again"


DECLARED = TableDeclaration.model_validate(
    {
        "table": "silver.clicks",
        "description": "A row is a click.",
        "owner": "web",
        "columns": [
            {"name": "id", "type": "long", "required": True, "doc": "names the click"},
            {"name": "strongest", "type": "double"},
            {"name": "at", "type": "timestamptz"},
        ],
        "quality": {
            "expectations": [
                {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "id"}},
                {
                    "type": "expect_column_values_to_be_between",
                    "kwargs": {"column": "strongest", "min_value": 0, "max_value": 5},
                },
            ]
        },
    }
)
CATALOG = CatalogSettings(uri="http://catalog", warehouse="s3://lakehouse", credential=SecretStr("id:secret"))
LOOK = TableLook(exists=True, columns=(), snapshot_id=7, committed_at=NOON, operation="append", snapshots=3)
EMPTY = TablePage(bars=(), charts=(), runs=(), kept=(), outlooks=(), batches_since=0, events=())


def page_of(line: TableLine, page: TablePage, **changed: Any) -> str:
    """The page as HTML."""
    look = changed.get("look", LOOK)
    values = {
        "base": "/sluice",
        "airflow": "/",
        "line": line,
        "look": look,
        "columns": columns_shown(DECLARED, look),
        "queries": queries_of(DECLARED, CATALOG),
        "page": page,
        "outlooks": {},
        "paused": (),
        "maintenance_dag": "table_maintenance",
        "quality_dag": "data_quality",
        "report": report_of(DECLARED, (), ()),
        "done": None,
        "unusual": (),
        "may_maintain": False,
    }
    return render("table", values | changed)


def test_rows_that_are_unusual_in_number_are_said_first() -> None:
    unusual = StreamTrouble(
        stream="rows of bronze.clicks",
        reason="unusual rows",
        explanation="Too few rows since noon.",
        since=NOON - timedelta(hours=2),
        observed_at=NOON,
    )

    shown = page_of(LINE, EMPTY, unusual=(unusual,))

    assert "<b>▲ unusual rows</b> <span>for 2 h. Too few rows since noon.</span>" in shown


def test_an_analyst_finds_columns_with_their_meaning_and_those_that_a_change_added() -> None:
    known = TableLook(
        exists=True,
        columns=(
            LookedColumn(path="id", type="long", is_required=True, doc=""),
            LookedColumn(path="place.felt", type="long", is_required=False, doc="", added_in=1, added_at=NOON),
        ),
        partitions=("day(at)",),
    )

    shown = page_of(LINE, EMPTY, look=known)

    assert [column.doc for column in columns_shown(DECLARED, known)] == ["names the click", ""]
    assert "names the click" in shown
    assert '<code>place.felt</code> <span class="tag" title="by schema 1; rows have it since 2026-' in shown
    assert "<code>day(at)</code>" in shown


def test_before_the_table_is_created_its_declaration_is_shown() -> None:
    shown = page_of(LINE, EMPTY, look=TableLook())

    assert "not created yet" in shown
    assert "names the click" in shown
    away = page_of(LINE, EMPTY, look=TableLook(problem="Connection refused"))
    assert "the catalog was not read" in away
    assert "not created yet" not in away


def test_a_query_can_be_copied_and_holds_no_secret() -> None:
    command, sql, python = queries_of(DECLARED, CATALOG)

    assert sql.text == (
        "SELECT *\nFROM lakehouse.silver.clicks\n"
        "WHERE `at` >= (SELECT max(`at`) FROM lakehouse.silver.clicks) - INTERVAL 1 DAY\n"
        "ORDER BY `at` DESC\nLIMIT 20"
    )
    assert command.text.startswith(
        "sluice sql 'SELECT *\nFROM silver.clicks\n"
        'WHERE "at" >= (SELECT max("at") FROM silver.clicks) - INTERVAL 1 DAY\n'
    )
    assert 'load_table("silver.clicks")' in python.text
    shown = page_of(LINE, EMPTY)
    assert "secret" not in shown
    assert 'data-copy="query-1"' in shown


def test_what_is_missed_while_a_dag_is_paused_is_said_with_the_way_out() -> None:
    @dataclass(frozen=True)
    class Paused:
        dag: str = "data_quality"
        is_missed: str = "No table is checked against its expectations."
        token: str = ""

    shown = page_of(LINE, EMPTY, paused=(Paused(),))
    with_button = page_of(LINE, EMPTY, paused=(Paused(token="signed"),))  # noqa: S106  # of no real form

    assert "is paused" in shown
    assert "No table is checked against its expectations." in shown
    assert 'href="/dags/data_quality" data-airflow>data_quality</a>' in shown
    assert "<button" not in shown[: shown.index("<h2>")], "for who may not edit the DAG"
    assert 'action="/sluice/dags/data_quality/do/unpause"' in with_button
    assert '<input type="hidden" name="token" value="signed">' in with_button
    assert '<input type="hidden" name="here" value="tables/silver.clicks">' in with_button


def test_hostile_words_stay_words_and_holders_that_may_not_be_seen_are_only_counted() -> None:
    kept = KeptSnapshot(stream=HOSTILE, endpoint=HOSTILE, kind=HOSTILE, snapshot_id=5, committed_at=NOON)
    done = replace(run(replace(step(StepOutcome.DONE), explanation=HOSTILE)), launched_by=HOSTILE)
    page = TablePage(
        bars=bars_of(LINE.file_sizes),
        charts=charts_of_runs([done]),
        runs=(done,),
        kept=(kept,),
        outlooks=tuple(outlooks_of(done, POLICY, now=NOON)),
        batches_since=7,
        events=(),
    )

    shown = page_of(replace(LINE, holders=(HOSTILE,), others_hold=2, owner=HOSTILE), page)

    assert "<img" not in shown
    assert " style=" not in shown
    assert "2 more that you may not see" in shown
    assert "7 batches of its streams since" in shown


def test_a_table_that_was_never_maintained_says_so() -> None:
    line = TableLine(table="silver.clicks", now=NOON, owner="web", writers=(), readers=())

    shown = page_of(line, EMPTY)

    assert "No maintenance run is recorded" in shown
    assert "Snapshots kept" not in shown
