"""The page of a table: what is drawn and said of its debt, and that hostile words stay words."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from tests.unit.maintenance.test_maintenance_records import NOON, run, step
from tests.unit.pages.test_page_templates import HOSTILE

from sluice.declarations.maintenance_declaration import MaintenanceDeclaration
from sluice.ledger.maintenance_runs import KeptSnapshot, MaintenanceStep, StepOutcome, TableFigures
from sluice.pages.page_templates import render
from sluice.pages.svg_charts import BAR_HEIGHT, bars_of, bars_path
from sluice.pages.table_lines import TableLine, debt_of
from sluice.pages.table_page import TablePage, charts_of_runs, outlooks_of

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
    line = replace(LINE, file_sizes=(12, 30, 3, 1, 4, 0, 0), debt_history=tuple(range(20)), held_for=timedelta(hours=3))
    lines = [replace(line, table=f"silver.table_{number:03}_of_the_shop") for number in range(200)]

    assert len(render("tables", {"base": "/sluice", "lines": lines}).encode()) < 300_000


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
        (MaintenanceStep.REWRITE_DATA_FILES, {}, "due once a partition has 5 small files"),
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


def page_of(line: TableLine, page: TablePage) -> str:
    """The page as HTML."""
    values = {
        "base": "/sluice",
        "airflow": "/",
        "line": line,
        "page": page,
        "outlook": None,
        "maintenance_dag": "table_maintenance",
        "checks": (),
        "may_see_quality": True,
        "reports": {},
        "done": None,
        "may_maintain": False,
    }
    return render("table", values)


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
    assert "7 batches of its streams" in shown


def test_a_table_that_was_never_maintained_says_so() -> None:
    empty = TablePage(bars=(), charts=(), runs=(), kept=(), outlooks=(), batches_since=0, events=())
    line = TableLine(table="silver.clicks", now=NOON, owner="web", writers=(), readers=())

    shown = page_of(line, empty)

    assert "No maintenance run is recorded" in shown
    assert "Snapshots kept" not in shown
