"""The results of checks in words, the folder of their pages, and what those may run."""

from __future__ import annotations

import base64
import hashlib
import html
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from sluice.ledger.recorded_checks import ExpectationObservation, QualityObservation, QualityVerdict
from sluice.quality.check_results import (
    KEPT_CHECKS,
    SHOWN_SAMPLES,
    QualityPages,
    escaped,
    expectation_sentence,
    protect_pages,
    protected,
    quality_sentence,
    rule_words,
    without_masked_values,
)

STRONGEST = ExpectationObservation(
    expectation="expect_column_values_to_be_between",
    arguments={"column": "strongest", "min_value": 0, "max_value": 5},
    success=False,
    observed={"element_count": 318, "samples": [5.3, 5.3, 6.1, 7.0, 5.9]},
    unexpected_rows=16,
    unexpected_percent=5.03,
)


def test_a_sentence_has_the_column_the_bounds_the_count_and_three_different_values() -> None:
    assert SHOWN_SAMPLES == 3
    assert expectation_sentence(STRONGEST) == (
        "strongest is between 0 and 5: 16 of 318 rows break it, for example 5.3, 6.1, 7.0"
    )


@pytest.mark.parametrize(
    ("kind", "arguments", "said"),
    [
        ("column_values_to_be_between", {"column": "x", "min_value": 1}, "x is at least 1"),
        ("column_values_to_be_between", {"column": "x", "min_value": 0, "strict_min": True}, "x is more than 0"),
        (
            "column_values_to_be_between",
            {"column": "x", "min_value": 0, "max_value": 1, "strict_max": True},
            "x is at least 0 and less than 1",
        ),
        ("column_values_to_be_between", {"column": "x", "min_value": None, "max_value": None}, "x is without bounds"),
        (
            "column_values_to_not_be_null",
            {"column": "x", "mostly": 0.9},
            "x is not null, in at least 90 % of the rows",
        ),
        ("column_values_to_be_in_set", {"column": "x", "value_set": ["a", "b"]}, "x is one of a, b"),
        ("compound_columns_to_be_unique", {"column_list": ["a", "b"]}, "a, b together are unique"),
        (
            "column_pair_values_a_to_be_greater_than_b",
            {"column_A": "flights", "column_B": "delayed", "or_equal": True},
            "flights is at least delayed",
        ),
        ("column_pair_values_a_to_be_greater_than_b", {"column_A": "a", "column_B": "b"}, "a is greater than b"),
        ("column_values_to_be_unique", {"column": "x", "row_condition": "y > 1"}, "x is unique (row_condition y > 1)"),
        ("column_values_to_be_json_parseable", {"column": "x"}, "column values to be json parseable (column x)"),
        ("table_row_count_to_be_between", {"min_value": 1}, "the number of rows is at least 1"),
    ],
)
def test_rules_in_words(kind: str, arguments: dict[str, Any], said: str) -> None:
    assert rule_words(f"expect_{kind}", arguments) == said


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"success": None, "problem": "no such column"}, "could not be evaluated: no such column"),
        ({"success": True, "unexpected_rows": 0}, "holds"),
        ({"unexpected_rows": None, "observed": {"observed_value": 0}}, "found 0"),
        ({"unexpected_rows": None, "observed": {}}, "does not hold"),
        ({"observed": {}}, "16 rows break it"),
        ({"observed": {"samples": ["", " ", "a\nb"]}}, "16 rows break it, for example '', ' ', a b"),
    ],
)
def test_what_was_found(changed: dict[str, Any], said: str) -> None:
    assert expectation_sentence(replace(STRONGEST, **changed)) == f"strongest is between 0 and 5: {said}"


def test_a_long_value_is_cut() -> None:
    assert len(expectation_sentence(replace(STRONGEST, observed={"samples": ["x" * 10_000]}))) < 200


@pytest.mark.parametrize("column", ["strongest", "Strongest", "strongest.value"])
def test_of_a_masked_column_no_value_is_left(column: str) -> None:
    found = replace(STRONGEST, arguments={**STRONGEST.arguments, "column": column}, problem="cannot cast '5.3'")

    hidden = without_masked_values(found, {"strongest"})

    assert "5.3" not in str(hidden)
    assert hidden.unexpected_rows == 16
    assert without_masked_values(found, {"place"}) == found
    pair = replace(found, arguments={"column_A": "a", "column_B": "strongest"})
    assert "5.3" not in str(without_masked_values(pair, {"strongest"}))
    several = replace(found, arguments={"column_list": ["a", "strongest"]})
    assert "5.3" not in str(without_masked_values(several, {"strongest"}))


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


OWN = "function showAllValidations() { return 1; }"
PAGE = (
    "<html><head><title>x</title></head><body>"
    '<script src="https://code.example/jquery.js"></script>'
    f"<script>{OWN}</script>"
    '<button onclick="showAllValidations()">all</button>'
    "<script>alert(1)</script>"
    '<script src="https://evil.example/x.js"></script>'
    '<b onclick="showAllValidations();alert(1)">x</b>'
    "</body></html>"
)
TEMPLATE = f'<script src="https://code.example/jquery.js"></script> <script>{OWN}</script>'


def digest(text: str) -> str:
    """The word by which a policy allows a script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def policy_of(page: str) -> str:
    """The policy of a page, which stands before everything else in its head."""
    found = re.search(r'<head>\n<meta http-equiv="Content-Security-Policy" content="([^"]*)">', page)
    assert found is not None
    return html.unescape(found[1])


def test_every_text_of_a_value_is_escaped_and_nothing_else_is_changed() -> None:
    value = {"<k>": ["<b>", 1, None, True, 2.5, {"x": ("'", '"&"')}]}
    assert escaped(value) == {"&lt;k&gt;": ["&lt;b&gt;", 1, None, True, 2.5, {"x": ["&#x27;", "&quot;&amp;&quot;"]}]}


def test_a_page_runs_the_scripts_of_its_templates_alone() -> None:
    policy = policy_of(protected(PAGE, known_scripts=TEMPLATE))
    scripts = next(part for part in policy.split("; ") if part.startswith("script-src"))
    assert scripts.split() == [
        "script-src", "'unsafe-hashes'", "https://code.example/jquery.js", digest(OWN), digest("showAllValidations()")
    ]  # fmt: skip
    assert "default-src 'none'" in policy
    assert "form-action 'none'" in policy
    assert "base-uri 'none'" in policy


def test_every_page_of_a_check_gets_a_policy(tmp_path: Path) -> None:
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates" / "page.j2").write_text(TEMPLATE)
    for name in ("index.html", "validations/a.html"):
        page = tmp_path / "docs" / name
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(PAGE)
    protect_pages(tmp_path / "docs", templates=tmp_path / "templates")
    start, check = (policy_of((tmp_path / "docs" / name).read_text()) for name in ("index.html", "validations/a.html"))
    assert digest("alert(1)") in start, "the start page has no value of a row, and its tables are scripts"
    assert digest("alert(1)") not in check
