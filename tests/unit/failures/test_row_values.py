"""No value of a row leaves by the text of an error; what helps to find the fault stays."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sluice.failures.error_chains import IN_THE_LOG, without_row_values

CAST = (
    '[CAST_INVALID_INPUT] The value \'{}\' of the type "STRING" cannot be cast to "INT" because it is malformed. '
    "Correct the value as per the syntax, or change its target type. SQLSTATE: 22018"
)
SQL = "\n== SQL (line 3, position 8) ==\nselect cast(email as int) from rows\n       ^^^^^^^^^^^^\n"
CALL = '\n== DataFrame ==\n"cast" was called from\n/pipelines/orders.py:12\n'
STREAM = "[STREAM_FAILED] Query [id = 1a, runId = 2b] terminated with exception: {} SQLSTATE: XXKST"
TASK = "Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times: org.apache.spark.{}"
ANN = "ann@planted.org"


@pytest.mark.parametrize(
    "value", [ANN, f"{ANN}\n== x", f"{ANN} SQLSTATE: 42703", f"[UNRESOLVED_COLUMN] {ANN} SQLSTATE: 42703"]
)
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (CAST, f'[CAST_INVALID_INPUT] "STRING", "INT", {IN_THE_LOG}'),
        (CAST + SQL, f'[CAST_INVALID_INPUT] "STRING", "INT", line 3, position 8 of the query, {IN_THE_LOG}'),
        (CAST + CALL, f'[CAST_INVALID_INPUT] "STRING", "INT", `cast` in /pipelines/orders.py:12, {IN_THE_LOG}'),
        (
            STREAM.format(CAST),
            "[STREAM_FAILED] Query [id = 1a, runId = 2b] terminated with exception: [CAST_INVALID_INPUT] "
            f'"STRING", "INT", {IN_THE_LOG}',
        ),
        (
            TASK.format(f"SparkNumberFormatException: {CAST}"),
            TASK.format(f'SparkNumberFormatException: [CAST_INVALID_INPUT] "STRING", "INT", {IN_THE_LOG}'),
        ),
        ("[USER_RAISED_EXCEPTION] bad {} SQLSTATE: P0001", f"[USER_RAISED_EXCEPTION] {IN_THE_LOG}"),
        ("[USER_RAISED_EXCEPTION] bad {}", f"[USER_RAISED_EXCEPTION] {IN_THE_LOG}"),
        (
            "[CANNOT_PARSE_TIMESTAMP] Text '{}' could not be parsed at index 0. SQLSTATE: 22007",
            f"[CANNOT_PARSE_TIMESTAMP] {IN_THE_LOG}",
        ),
        ("[A_NEW_CONDITION] of {} without a state", f"[A_NEW_CONDITION] {IN_THE_LOG}"),
        ('java.lang.NumberFormatException: For input string: "{}"', f"java.lang.NumberFormatException: {IN_THE_LOG}"),
        (
            'It cannot be written: [TASK_WRITE_FAILED] It failed. SQLSTATE: 58030: For input string: "{}"',
            f"It cannot be written: [TASK_WRITE_FAILED] It failed. SQLSTATE: 58030: {IN_THE_LOG}",
        ),
        ("a: invalid literal for int() with base 10: '{}'", f"a: {IN_THE_LOG}"),
        ("PythonException: ValueError: bad {}", f"PythonException: {IN_THE_LOG}"),
        ("PythonException: bad {}: [CAST_INVALID_INPUT] It is. SQLSTATE: 22018", f"PythonException: {IN_THE_LOG}"),
    ],
)
def test_a_value_of_a_row_is_left_out(text: str, shown: str, value: str) -> None:
    assert without_row_values(text.format(value)) == shown


def test_of_the_failures_that_were_seen_only_those_about_rows_are_cut() -> None:
    corpus = Path(__file__).parent / "corpus"
    cut = {
        file.stem
        for file in corpus.glob("*.json")
        for link in json.loads(file.read_text())["chain"]
        if without_row_values(link.get("message", "")) != link.get("message", "")
    }

    assert cut == CUT


CUT = {
    *("malformed_record", "raised_on_purpose", "value_refused"),
    *("function_cannot_reach", "function_raises", "no_space_for_python", "python_out_of_memory"),
}
"""Failures that quote a row, and those of user code in Spark's workers, which may."""


@pytest.mark.parametrize(
    "text",
    [
        "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column `emai` cannot be resolved. Did you mean `email`? SQLSTATE: 42703",
        STREAM.format("The table bronze.x was dropped."),
        "[FAILED_READ_FILE.FILE_NOT_EXIST] s3a://lake/x.parquet does not exist. SQLSTATE: KD001",
        "org.postgresql.util.PSQLException: FATAL: no such user",
        "The catalog does not answer.",
        "",
    ],
)
def test_an_error_about_no_row_stays(text: str) -> None:
    assert without_row_values(text) == text
