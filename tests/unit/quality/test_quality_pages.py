"""The pages that an analyst reads: what was checked, when, on which snapshot; escaped, bounded, from plain files."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from sluice.ledger.quality_checks import ExpectationObservation, QualityObservation, QualityVerdict
from sluice.quality.quality_pages import KEPT_CHECKS, QualityPages, quality_sentence

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


def written(root: Path, *checks: QualityObservation) -> str:
    """The page of the table of the first check."""
    pages = QualityPages(root=root)
    pages.write(checks, [checks[0]])
    return pages.page(checks[0].table).read_text()


def test_the_page_says_what_was_checked_when_and_on_which_snapshot(tmp_path: Path) -> None:
    page = written(tmp_path, CHECK)

    for text in (
        "silver.flights",
        "2026-11-20 12:00:00 UTC",
        "<code>4611686018427387904</code>, committed 2026-11-20 11:57:00 UTC",
        "9,872",
        "carrier is not null",
        "origin is one of EWR",
        "1,234 unexpected (12.5 %)",
    ):
        assert text in page


def test_what_comes_from_data_is_escaped(tmp_path: Path) -> None:
    page = written(tmp_path, CHECK)

    assert "<script>" not in page
    assert "&lt;script&gt;" in page


def test_a_long_value_is_cut(tmp_path: Path) -> None:
    found = replace(IN_SET, observed={"samples": ["x" * 100_000]})

    assert len(written(tmp_path, replace(CHECK, details=(found,)))) < 20_000


def test_the_pages_need_nothing_from_elsewhere(tmp_path: Path) -> None:
    page, index = written(tmp_path, CHECK), QualityPages(root=tmp_path).index.read_text()

    for text in (page, index):
        assert "http:" not in text
        assert "https:" not in text
        assert "Content-Security-Policy\" content=\"default-src 'none';" in text
        assert "<script" not in text
        assert "src=" not in text


def test_the_index_leads_to_every_table(tmp_path: Path) -> None:
    other = replace(CHECK, table="gold.delays", verdict=QualityVerdict.PASSED, failed_expectations=())

    QualityPages(root=tmp_path).write([CHECK], [CHECK, other])

    index = QualityPages(root=tmp_path).index.read_text()
    assert index.index('href="gold.delays/index.html"') < index.index('href="silver.flights/index.html"')


def test_the_newest_data_docs_stay_and_are_linked(tmp_path: Path) -> None:
    pages = QualityPages(root=tmp_path)
    checks = [replace(CHECK, checked_at=NOON - timedelta(hours=age)) for age in range(KEPT_CHECKS + 2)]
    for check in checks:
        folder = pages.data_docs(check.table, check.checked_at) / "validations" / "a suite"
        folder.mkdir(parents=True)
        (folder / "result.html").write_text("the result")
    (tmp_path / CHECK.table / "notes").mkdir()

    pages.write(checks, [checks[0]])

    kept = [pages.data_docs(check.table, check.checked_at) for check in checks[:KEPT_CHECKS]]
    assert sorted(path for path in (tmp_path / CHECK.table).iterdir() if path.is_dir()) == [
        *sorted(kept),
        tmp_path / CHECK.table / "notes",
    ]
    page = pages.page(CHECK.table).read_text()
    assert f'href="{kept[0].name}/validations/a suite/result.html"' in page, "the result, and not the list of results"
    assert page.count("Great Expectations</a>") == KEPT_CHECKS
    assert page.count("no longer kept") == 2


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


def test_a_table_without_a_snapshot_has_a_page_too(tmp_path: Path) -> None:
    nothing = replace(
        CHECK, verdict=QualityVerdict.NOTHING_TO_CHECK, snapshot_id=None, snapshot_committed_at=None, details=()
    )

    assert "none yet" in written(tmp_path, nothing)
