"""Takes values of rows out of the text of an error, before it is recorded or shown. Pure.

An error of Spark about a row quotes the row's values: `The value 'ann@example.org' … cannot be cast`. Whoever may read
a DAG reads why its run failed, and that is not the permission to see records. So of such an error the condition, the
types and the place in the query stay; the whole text is in the driver's log, which has a permission of its own.

Which errors are about rows is decided by their SQLSTATE, which Spark puts behind each message of its catalogue; one
without an SQLSTATE counts as being about rows.

Source: https://spark.apache.org/docs/latest/sql-error-conditions-sqlstates.html
"""

from __future__ import annotations

import re

IN_THE_LOG = "the values are in the driver's log alone"

_CONDITION = re.compile(r"\[(?P<name>[A-Z][A-Z0-9]*_[A-Z0-9_]*(?:\.[A-Z0-9_]+)*)\]")
_STATES = re.compile(r"((?:SQLSTATE: [0-9A-Z]{5}\s*)+)(?:[;(]?\s?\(?line \d+,? pos \d+\)?)?[;.]?\s*$")
"""The end of a message: its own SQLSTATE, those of the errors around it, and the place in the query."""

_OF_NO_ROW = ("08", "0A", "42", "46", "51", "53", "54", "55", "56", "57", "58", "KD", "XX")
"""The classes of errors that name queries, tables, files, limits and connections."""

_OF_A_ROW = frozenset({"MALFORMED_RECORD_IN_PARSING", "USER_RAISED_EXCEPTION"})
"""Conditions whose message quotes a row whatever their SQLSTATE says."""

_QUOTES_NO_ROW = re.compile(
    r"(?:AMBIGUOUS|CANNOT_LOAD_STATE_STORE|DATATYPE_MISMATCH|FAILED_READ_FILE|INCOMPATIBLE|KAFKA|MISSING|PARSE|SCHEMA|"
    r"STATE_STORE|STREAMING|TABLE_OR_VIEW|UNRESOLVED|UNSUPPORTED)_?.*"
    r"|DIVIDE_BY_ZERO|REMAINDER_BY_ZERO|MERGE_CARDINALITY_VIOLATION|NOT_NULL_ASSERT_VIOLATION"
    r"|INSERT_COLUMN_ARITY_MISMATCH|NOT_ENOUGH_DATA_COLUMNS|TOO_MANY_DATA_COLUMNS|NUM_COLUMNS_MISMATCH|FIELD_NOT_FOUND"
)
"""Conditions whose messages name queries, tables, files and fields: for a text that was cut before its SQLSTATE."""

_WRAPPERS = frozenset({"STREAM_FAILED", "FOREACH_BATCH_USER_FUNCTION_ERROR", "TASK_WRITE_FAILED"})
"""Conditions whose message holds that of another error, and nothing else but ids."""

_END_OF_MESSAGE = re.compile(r"\n== |\n\tat |\nTraceback |;\n'?[A-Z]")
_TYPE = re.compile(
    r'"((?:STRING|BINARY|BOOLEAN|TINYINT|SMALLINT|INT|BIGINT|FLOAT|DOUBLE|DATE|TIMESTAMP|TIMESTAMP_NTZ|VARIANT)'
    r'|DECIMAL\(\d{1,2},\s?\d{1,2}\))"'
)
_IN_SQL = re.compile(r"== SQL[^\n]{0,200}?\(?line (\d+), position (\d+)\)? ==")
_IN_PYTHON = re.compile(r'== DataFrame ==\n"([^"\n]{1,80})" was called from\n([^\n]{1,300})')

_QUOTES_VALUES = re.compile(
    r"\b(?P<name>(?:[A-Za-z_$][\w$]*\.)*(?:NumberFormatException|DateTimeParseException|DateTimeException|"
    r"DateTimeArithmeticException|JsonParseException|JsonProcessingException|MalformedInputException|PythonException|"
    r"UDFException|ArrowInvalid|UnicodeDecodeError|ValidationError|DecodeError))(?=: )"
)
"""Classes of errors outside of Spark's catalogue that quote what they could not read, or what user code says."""


_SENTENCES = re.compile(
    r"\b(?:For input string|Text '.*could not be parsed|Unparseable|Unrecognized token|Unexpected character|"
    r"could not be converted|Could not convert|invalid literal for|invalid input syntax for|codec can't decode)",
    re.DOTALL,
)
"""How errors outside of Spark's catalogue begin to quote a value, where their class is not in the text."""


def without_row_values(text: str) -> str:
    """The text of an error without values of rows; the text itself when it is about none."""
    conditions = list(_CONDITION.finditer(text))
    for index, found in enumerate(conditions):
        until = conditions[index + 1].start() if index + 1 < len(conditions) else len(text)
        if _is_of_a_row(found["name"], text[found.end() : until]):
            return _cut(text[: found.end()], text[found.end() :])
    if (foreign := _QUOTES_VALUES.search(text)) is not None:
        return f"{text[: foreign.end()]}: {IN_THE_LOG}"
    if (sentence := _SENTENCES.search(text)) is not None:
        return f"{text[: sentence.start()]}{IN_THE_LOG}"
    return text


def _is_of_a_row(condition: str, behind: str) -> bool:
    message = _END_OF_MESSAGE.split(behind, maxsplit=1)[0]
    if condition.partition(".")[0] in _OF_A_ROW:
        return True
    if _QUOTES_NO_ROW.fullmatch(condition) is not None:
        return False
    end = _STATES.search(message)
    if end is None:
        return condition.partition(".")[0] not in _WRAPPERS
    return not all(state.startswith(_OF_NO_ROW) for state in end[1].split()[1::2])


def _cut(before: str, behind: str) -> str:
    """What stays of an error about a row: its condition, the types, and where in the query it is."""
    facts = [f'"{one}"' for one in dict.fromkeys(_TYPE.findall(behind))][:2]
    if (place := _IN_SQL.search(behind)) is not None:
        facts.append(f"line {place[1]}, position {place[2]} of the query")
    if (call := _IN_PYTHON.search(behind)) is not None:
        facts.append(f"`{call[1]}` in {call[2].strip()}")
    return f"{_beginning(before)} {', '.join([*facts, IN_THE_LOG])}"


def _beginning(before: str) -> str:
    """What stands before a condition, without what classes of errors quote there."""
    foreign = _QUOTES_VALUES.search(before)
    # A class of Spark's own stands right before its condition: `SparkNumberFormatException: [CAST_INVALID_INPUT]`.
    return before if foreign is None or before[foreign.end() :].startswith(": [") else f"{before[: foreign.end()]}:"
