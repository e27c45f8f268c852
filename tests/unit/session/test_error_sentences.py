"""What is said of a chain of Java's errors: the file that Spark names, and why it could not be read."""

from __future__ import annotations

import pytest

from sluice_spark.session.jvm import sentence_of

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
