"""Row rules as they are declared: of a stream and of its tables, each mistake with its place and the nearest name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sluice.declarations.rule_declaration import RuleDeclaration

if TYPE_CHECKING:
    from tests.unit.declarations.conftest import Folder

S, T = "silver_flights.stream.yaml", "silver.flights.table.yaml"
BETWEEN = "expect_column_values_to_be_between"


def declare(folder: Folder, *, stream: str = "", table: str = "", quarantine: bool = True, output: str = "") -> None:
    """Add rules to the valid stream and to the table that it writes."""
    file = folder.path / S
    text = file.read_text() + (f"rules:\n  - {stream}\n" if stream else "")
    text = text if quarantine else text.replace("quarantine: true\n", "")
    folder.write(S, text.replace("mode: append}", f"mode: append{output}}}"))
    if table:
        folder.write(T, (folder.path / T).read_text() + f"rules:\n  - {table}\n")


def test_a_stream_has_the_rules_of_its_table_and_its_own(valid: Folder) -> None:
    before = valid.load().stream("silver_flights")
    declare(valid, stream="{name: mine, expression: carrier > 'A'}", table="{name: its, expression: legs IS NOT NULL}")

    loaded = valid.load(only="silver_flights")

    assert loaded.problems == ()
    stream = loaded.stream("silver_flights")
    assert {output: [rule.name for rule in rules] for output, rules in stream.rules.items()} == {
        "main": ["its", "mine"]
    }
    assert before.rules == {}
    assert before.digest != stream.digest


def test_a_share_that_is_met_exactly_is_met() -> None:
    for rows in range(1, 101):
        for met in range(1, rows + 1):
            share = {"column": "a", "mostly": met / rows}
            kind = "expect_column_values_to_not_be_null"
            rule = RuleDeclaration(name="r", type=kind, kwargs=share, on_failure="warn")
            assert not rule.is_broken_by(counted=rows, failed=rows - met)
            assert met == 1 or rule.is_broken_by(counted=rows, failed=rows - met + 1)


def test_a_changed_rule_of_a_table_is_a_changed_stream(valid: Folder) -> None:
    declare(valid, table="{name: its, expression: legs IS NOT NULL}")
    before = valid.load().stream("silver_flights").digest
    valid.write(T, (valid.path / T).read_text().replace("legs IS NOT NULL", "legs IS NULL"))
    assert valid.load().stream("silver_flights").digest != before


def test_a_broken_table_does_not_take_its_rules_from_a_stream(valid: Folder) -> None:
    declare(valid, table="{name: its, expression: legs IS NOT NULL, on_failure: explode}")
    problems = valid.problems()
    assert any(one.startswith(f"{S}:18: `outputs.main.iceberg.table`: {T} has a problem, so that") for one in problems)
    assert "silver_flights" not in valid.load().streams


@pytest.mark.parametrize(
    ("rule", "sentence"),
    [
        ("{name: a}", "`rules[0]`: a rule has either `expression` or `type`."),
        ("{name: a, expression: x > 0, type: y}", "`rules[0]`: a rule has either `expression` or `type`."),
        (
            f"{{name: a, type: {BETWEEN[:-1]}, kwargs: {{column: carrier, min_value: 1}}}}",
            "`rules[0].type`: is not one of the conditions on a row or on a batch. Did you mean "
            f"`{BETWEEN}`?, got '{BETWEEN[:-1]}'.",
        ),
        (
            f"{{name: a, type: {BETWEEN}, kwargs: {{column: carier, min_value: A}}}}",
            "`rules[0].kwargs.column`: silver.flights has no column carier; it has carrier, departure, legs. "
            "Did you mean `carrier`?",
        ),
        (
            f"{{name: a, type: {BETWEEN}, kwargs: {{column: carrier, min: A}}}}",
            f"`rules[0].kwargs`: {BETWEEN} has no argument min; it has column, min_value, max_value, strict_min, "
            "strict_max, mostly.",
        ),
        (
            f"{{name: a, type: {BETWEEN}, kwargs: {{column: carrier}}}}",
            f"`rules[0].kwargs`: {BETWEEN} needs min_value or max_value.",
        ),
        (
            f"{{name: a, type: {BETWEEN}, kwargs: {{column: carrier, min_value: B, max_value: A}}}}",
            "`rules[0].kwargs.min_value`: min_value is at most max_value, got B and A, got 'B'.",
        ),
        (
            "{name: a, type: expect_column_values_to_not_be_null, kwargs: {column: carrier, mostly: 0.9}}",
            "`rules[0].kwargs.mostly`: the share is known when the batch is computed, and a row is rejected by itself: "
            "`on_failure` is `warn`, `fail` or `hold` then, got 0.9.",
        ),
        (
            "{name: a, type: expect_column_values_to_be_in_set, kwargs: {column: carrier, value_set: []}}",
            "`rules[0].kwargs.value_set`: the set has at least one value, and none of them is null.",
        ),
        (
            "{name: a, expression: 'carrier IN (SELECT name FROM airlines)'}",
            "`rules[0].expression`: the condition holds a query: a rule looks at the columns of its row alone, "
            "got 'carrier IN (SELECT name FROM airlines)'.",
        ),
        (
            "{name: a, expression: \"java_method('java.lang.System', 'exit')\"}",
            "`rules[0].expression`: the condition calls java_method, which calls Java: a transformation in SQL reads "
            "its inputs alone, got \"java_method('java.lang.System', 'exit')\".",
        ),
        (
            "{name: a, type: expect_table_row_count_to_be_betwen, kwargs: {min_value: 1}}",
            "`rules[0].type`: is not one of the conditions on a row or on a batch. Did you mean "
            "`expect_table_row_count_to_be_between`?, got 'expect_table_row_count_to_be_betwen'.",
        ),
        (
            "{name: a, type: expect_table_row_count_to_be_between, kwargs: {min_value: 1}, on_failure: quarantine}",
            "`rules[0].on_failure`: a condition on a batch rejects no rows by themselves: it is `warn`, `fail` or "
            "`hold`, got 'quarantine'.",
        ),
        (
            "{name: a, type: column_to_be_fresh, kwargs: {column: carrier, within: 1 hour}}",
            "`rules[0].kwargs.column`: carrier is a string, and column_to_be_fresh is about date or timestamp or "
            "timestamptz.",
        ),
        (
            "{name: a, type: column_to_be_fresh, kwargs: {column: departure, within: soon}}",
            "`rules[0].kwargs.within`: a duration is a whole number and a unit: milliseconds, seconds, minutes, hours "
            "or days, got 'soon'.",
        ),
        (
            "{name: a, type: expect_column_max_to_be_between, kwargs: {column: departure, max_value: late}}",
            "`rules[0].kwargs.column`: departure is a timestamptz, and 'late' is none.",
        ),
        (
            "{name: a, type: expect_compound_columns_to_be_unique, kwargs: {column_list: [carrier, depature]}}",
            "`rules[0].kwargs.column_list[1]`: silver.flights has no column depature; it has carrier, departure, "
            "legs. Did you mean `departure`?",
        ),
        (
            "{name: a, type: column_values_to_exist_in_table, kwargs: {column: carrier, table: reference.airline}}",
            "`rules[0].kwargs.table`: no table reference.airline is declared. Did you mean `reference.airlines`?",
        ),
        (
            "{name: a, type: column_values_to_exist_in_table, "
            "kwargs: {column: carrier, table: reference.airlines, table_column: carier}}",
            "`rules[0].kwargs.table`: reference.airlines has no column carier; it has carrier, departure, legs. Did "
            "you mean `carrier`?",
        ),
        (
            "{name: a, type: expect_column_quantile_values_to_be_between, "
            "kwargs: {column: legs, quantile_ranges: {quantiles: [0.5], value_ranges: [[3, 1]]}}}",
            "`rules[0].kwargs.quantile_ranges`: `{quantiles: [0.5], value_ranges: [[1, 9]]}`: shares, and a range or "
            "null for each.",
        ),
        (
            "{name: a, expression: x > 0, output: mian}",
            "`rules[0].output`: the stream has no such output; it has main, got 'mian'.",
        ),
    ],
)
def test_a_mistake_in_a_rule_has_its_place(valid: Folder, rule: str, sentence: str) -> None:
    declare(valid, stream=rule)
    assert valid.problems() == [f"{S}:21: {sentence}"]


def test_a_rule_about_a_batch_holds_it_unless_it_says_otherwise() -> None:
    rows = {"name": "r", "type": "expect_table_row_count_to_be_between", "kwargs": {"min_value": 1}}
    assert RuleDeclaration.model_validate(rows).on_failure == "hold"
    assert RuleDeclaration.model_validate(rows | {"on_failure": "warn"}).on_failure == "warn"
    assert RuleDeclaration.model_validate({"name": "r", "expression": "a > 0"}).on_failure == "quarantine"


def test_a_rule_of_a_table_about_a_batch_is_checked_there(valid: Folder) -> None:
    declare(valid, table="{name: a, type: expect_column_mean_to_be_between, kwargs: {column: carrier, min_value: 1}}")
    assert [one for one in valid.problems() if one.startswith(T)] == [
        f"{T}:15: `rules[0].kwargs.column`: carrier is a string, and expect_column_mean_to_be_between is about decimal "
        "or double or float or int or long, got 'carrier'."
    ]


def test_a_rule_about_a_batch_needs_a_table(valid: Folder) -> None:
    rule = "{name: a, type: expect_table_row_count_to_be_between, kwargs: {min_value: 1}, on_failure: warn}"
    declare(valid, stream=rule)
    text = (valid.path / S).read_text()
    valid.write(S, text.replace("iceberg: {table: silver.flights, mode: append}", "console: {}"))
    assert (
        f"{S}:21: `rules[0]`: the rule a is about the rows that are staged for a table, and the output is none. Leave "
        "it out." in valid.problems()
    )


def test_a_rule_of_a_table_is_checked_there(valid: Folder) -> None:
    rule = f"{{name: a, type: {BETWEEN}, kwargs: {{column: carier, min_value: A}}, on_failure: warn}}"
    declare(valid, table=rule)
    assert [one for one in valid.problems() if one.startswith(T)] == [
        f"{T}:15: `rules[0].kwargs.column`: the table has no column carier; it has carrier, departure, legs. "
        "Did you mean `carrier`?, got 'carier'."
    ]


def test_what_a_stream_cannot_do_with_a_rule_is_refused(valid: Folder) -> None:
    declare(valid, table="{name: its, expression: legs IS NOT NULL}", quarantine=False)
    assert valid.problems() == [
        f"{S}:17: `outputs.main`: the rule its sends rows to the quarantine, and the stream has none. Write "
        "`quarantine: true`."
    ]


def test_a_merge_has_no_rule_about_the_rows_that_its_table_keeps(valid: Folder) -> None:
    declare(valid, stream="{name: a, type: column_values_to_be_unique_in_table, kwargs: {column: carrier}}")
    text = (valid.path / S).read_text()
    valid.write(S, text.replace("mode: append", "mode: merge, keys: [carrier]"))
    assert valid.problems() == [
        f"{S}:21: `rules[0]`: the rule a compares a batch with the rows that its table keeps, and mode `merge` "
        "replaces rows. Leave it out: a merge keeps one row for each of its `keys`."
    ]


def test_iceberg_s_own_sink_has_no_step_for_rules(valid: Folder) -> None:
    rule = "{name: its, expression: legs IS NOT NULL, on_failure: warn}"
    declare(valid, table=rule, quarantine=False, output=", delivery: direct")
    assert valid.problems() == [
        f"{S}:17: `outputs.main`: the rule its is evaluated before a batch is visible, and Iceberg's own sink makes it "
        "visible at once. Write `delivery: staged`."
    ]


def test_a_name_stands_for_one_rule(valid: Folder) -> None:
    declare(valid, stream="{name: its, expression: carrier > ''}", table="{name: its, expression: legs IS NOT NULL}")
    assert valid.problems() == [f"{S}:21: `rules[0].name`: the table has a rule its, too."]
