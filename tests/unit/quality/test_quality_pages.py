"""The result of a check as a sentence, and which Data Docs are kept."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from sluice.ledger.quality_checks import ExpectationObservation, QualityObservation, QualityVerdict
from sluice.quality.check_results import KEPT_CHECKS, QualityPages, quality_sentence

NOON = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
NOT_NULL = ExpectationObservation(
    expectation="expect_column_values_to_not_be_null",
    arguments={"column": "carrier"},
    success=True,
    unexpected_rows=0,
    unexpected_percent=0.0,
)
IN_SET = ExpectationObservation(
    expectation="expect_column_values_to_be_in_set",
    arguments={"column": "origin", "value_set": ["EWR"]},
    success=False,
    observed={"samples": ["<script>alert(1)</script>", "LGA"]},
    unexpected_rows=1234,
    unexpected_percent=12.5,
)
CHECK = QualityObservation(
    table="silver.flights",
    checked_at=NOON,
    launched_by="airflow",
    verdict=QualityVerdict.FAILED,
    snapshot_id=4611686018427387904,
    snapshot_committed_at=NOON - timedelta(minutes=3),
    rows=9872,
    expectations=2,
    failed_expectations=("expect_column_values_to_be_in_set",),
    report="ignored",
    details=(NOT_NULL, IN_SET),
)


def test_the_newest_data_docs_stay_and_are_linked(tmp_path: Path) -> None:
    pages = QualityPages(root=tmp_path)
    checks = [replace(CHECK, checked_at=NOON - timedelta(hours=age)) for age in range(KEPT_CHECKS + 2)]
    for check in checks:
        folder = pages.data_docs(check.table, check.checked_at) / "validations" / "a suite"
        folder.mkdir(parents=True)
        (folder / "result.html").write_text("the result")
    (tmp_path / CHECK.table / "notes").mkdir()

    pages.drop_old(CHECK.table)

    kept = [pages.data_docs(check.table, check.checked_at) for check in checks[:KEPT_CHECKS]]
    assert sorted(path for path in (tmp_path / CHECK.table).iterdir() if path.is_dir()) == [
        *sorted(kept),
        tmp_path / CHECK.table / "notes",
    ]
    shown = [pages.result_page(CHECK.table, check.checked_at) for check in checks]
    assert shown[0] == f"{kept[0].name}/validations/a suite/result.html", "the result, and not the list of results"
    assert [bool(page) for page in shown] == [True] * KEPT_CHECKS + [False] * 2


@pytest.mark.parametrize(
    ("check", "sentence"),
    [
        (
            CHECK,
            "1 of 2 expectations do not hold on 9,872 rows of snapshot 4611686018427387904: origin is one of EWR: "
            "1,234 rows break it, for example <script>alert(1)</script>, LGA.",
        ),
        (
            replace(
                CHECK,
                verdict=QualityVerdict.UNDECIDED,
                details=(replace(IN_SET, success=None, problem="no such column"),),
            ),
            "1 of 2 expectations could not be evaluated on 9,872 rows of snapshot 4611686018427387904: origin is one "
            "of EWR: could not be evaluated: no such column.",
        ),
        (
            replace(CHECK, details=()),
            "1 of 2 expectations do not hold on 9,872 rows of snapshot 4611686018427387904: "
            "expect_column_values_to_be_in_set.",
        ),
        (
            replace(CHECK, verdict=QualityVerdict.PASSED, failed_expectations=()),
            "All 2 expectations hold on 9,872 rows of snapshot 4611686018427387904.",
        ),
        (
            replace(CHECK, verdict=QualityVerdict.PASSED, failed_expectations=(), rows=0),
            "All 2 expectations hold, but on 0 rows of snapshot 4611686018427387904: an empty table says little.",
        ),
        (
            replace(CHECK, verdict=QualityVerdict.NOTHING_TO_CHECK, snapshot_id=None, details=()),
            "silver.flights has no snapshot yet, so there was nothing to check.",
        ),
    ],
    ids=["failed", "undecided", "without details", "passed", "empty", "no snapshot"],
)
def test_the_sentence_of_a_check(check: QualityObservation, sentence: str) -> None:
    assert quality_sentence(check) == sentence
