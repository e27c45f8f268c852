"""What is said of a chain of Java's errors: the file that Spark names, and why it could not be read."""

from __future__ import annotations

import pytest

from sluice.errors import DeliveryError
from sluice.failures.error_chains import IN_THE_LOG
from sluice_spark.run.job import reason_of
from sluice_spark.session.jvm import said_by, sentence_of

ABORTED = "Writing job aborted"
FILE = (
    "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:///in/cut.json.gz.  SQLSTATE: KD001"
    "\n\tat org.apache.spark"
)


@pytest.mark.parametrize(
    ("messages", "sentence"),
    [
        (
            [ABORTED, FILE, "Unexpected end of input stream."],
            "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:///in/cut.json.gz.  SQLSTATE: KD001: "
            "Unexpected end of input stream",
        ),
        (
            ["[TASK_WRITE_FAILED] Task failed while writing rows to /x.", "[DIVIDE_BY_ZERO] Division by zero."],
            "[DIVIDE_BY_ZERO] Division by zero",
        ),
        ([ABORTED, "a", "Connection refused"], "Connection refused"),
        (["[DIVIDE_BY_ZERO] Division by zero."], "[DIVIDE_BY_ZERO] Division by zero"),
        ([], ""),
    ],
    ids=["file", "wrapped", "plain", "alone", "nothing"],
)
def test_the_sentence_names_what_it_is_about(messages: list[str], sentence: str) -> None:
    assert sentence_of(messages) == sentence


@pytest.mark.parametrize(
    ("error", "message", "recorded"),
    [
        (
            "java.time.DateTimeException: Invalid value for MonthOfYear (valid values 1 - 12): 1971",
            "Invalid value for MonthOfYear (valid values 1 - 12): 1971",
            f"java.time.DateTimeException: {IN_THE_LOG}",
        ),
        (
            'java.lang.NumberFormatException: Value out of range. Value:"1971" Radix:10',
            'Value out of range. Value:"1971" Radix:10',
            f"java.lang.NumberFormatException: {IN_THE_LOG}",
        ),
        ('java.lang.NumberFormatException: For input string: "1971"', 'For input string: "1971"', IN_THE_LOG),
        ("java.io.IOException: The disk is full", "The disk is full", "The disk is full"),
        ("java.lang.NullPointerException", None, "java.lang.NullPointerException"),
    ],
)
def test_what_java_says_of_a_row_is_recorded_without_its_value(error: str, message: str | None, recorded: str) -> None:
    outer = ("org.apache.spark.SparkException: Job aborted.", "Job aborted.")

    said = sentence_of([said_by(*outer), said_by(error, message)])

    failed = reason_of(DeliveryError(f"Rejected records of s cannot be computed: {said}."))
    assert "1971" not in failed
    assert failed.removesuffix(".") == f"DeliveryError: Rejected records of s cannot be computed: {recorded}"
