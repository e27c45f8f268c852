"""The chain of errors behind a failure, from an exception or stack traces, and its texts without values of rows.

An exception of Spark's JVM carries only a text; its causes are in the stack trace. Both languages write one line for
each error (`Caused by: java.net.ConnectException: Connection refused`, `KeyError: 'a'`), and only those lines are read:
the JVM itself may be gone, so it is not asked.

An error of Spark about a row quotes the row's values: `The value 'ann@example.org' … cannot be cast`. Whoever may read
a DAG reads why its run failed, and that is not the permission to see records. So of such an error the condition, the
types and the place in the query stay; the whole text is in the driver's log, which has a permission of its own.

Which errors are about rows is decided by their SQLSTATE, which Spark puts behind each message of its catalogue; one
without an SQLSTATE counts as being about rows.

Source: https://spark.apache.org/docs/latest/sql-error-conditions-sqlstates.html
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from dataclasses import dataclass

from sluice.messages import redacted

IN_THE_LOG = "the values are in the driver's log alone"

_NAMED_CONDITION = re.compile(r"\[(?P<name>[A-Z][A-Z0-9]*_[A-Z0-9_]*(?:\.[A-Z0-9_]+)*)\]")
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorLink:
    """One error of a chain.

    kind: the class of the error with its package, as Java or Python names it; Python's own without one.
    message: its message, shortened.
    condition: Spark's error condition, an SQLSTATE, the name of an errno, an S3 error code; empty without one.
    """

    kind: str
    message: str = ""
    condition: str = ""

    @property
    def name(self) -> str:
        """The class of the error without its package."""
        return self.kind.rpartition(".")[2]


ErrorChain = tuple[ErrorLink, ...]
"""The errors of one failure, the outermost first, each caused by the next."""


_MESSAGE_CHARACTERS = 500
_CHAIN_LINKS = 24
"""Of a longer chain the innermost errors are kept: the outer ones only wrap them."""

_ERROR_LINE = re.compile(
    r"^(?:Caused by: |: |Exception in thread \"[^\"]*\" |.*?\b(?:ERROR|FATAL)\b.*?: )?"
    r"(?P<kind>(?:[A-Za-z_$][\w$]*\.)*[A-Z][\w$]*(?:Exception|Error|Failure|Fault|Interrupt|OutOfRange|Exit))"
    r"(?::(?: (?P<message>.*))?)?$"
)
"""A line that begins an error: the name of an error class, alone or followed by its message."""

_CONDITION = re.compile(r"^\[(?P<condition>[A-Z][A-Z0-9_]*(?:\.[A-Z0-9_]+)*)\]")
"""The beginning of every error of Spark's catalogue: https://spark.apache.org/docs/latest/sql-error-conditions.html"""

_NO_PART_OF_A_MESSAGE = ("\n=== ", "\n\tat ", "\nTraceback ", ": Traceback (most recent call last)")
"""Where Spark repeats the query, and where Java and Python list their calls; neither explains the failure."""

_ERRNO = re.compile(r"^\[Errno (?P<number>\d+)\]")
"""The beginning of an error of the operating system in Python."""


def chain_of(error: BaseException) -> ErrorChain:
    """Return the chain of an exception of this process, with its causes in Spark's JVM and in its Python workers."""
    links: list[ErrorLink] = []
    for one in with_causes(error):
        links += _links_of(one)
    return _bounded(links)


def chain_in(text: str) -> ErrorChain:
    """Return the chain in a stack trace, a traceback or the end of a log, in the order of its lines."""
    links = []
    for line in text.splitlines():
        found = _ERROR_LINE.match(line.strip() if line.startswith("  ") else line)
        if found is not None:
            links.append(_link(found["kind"], found["message"] or ""))
    return _bounded(links)


def with_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception, the one that it was raised from or while handling, and so on."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)


def _links_of(error: BaseException) -> list[ErrorLink]:
    """The link of one exception, and those in the text of an exception that came from the JVM or a worker."""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    trace = getattr(error, "_stackTrace", None)  # the stack trace of the JVM's exception, in PySpark
    is_foreign = isinstance(trace, str)
    message = str(getattr(error, "_desc", "")) if is_foreign else text_of(error)
    own = _link(name, message.strip(), condition=_condition_of(error))
    causes = f"{message}\n{trace}" if is_foreign else "\n".join(message.splitlines()[1:])
    return [own, *chain_in(causes)]


def text_of(error: BaseException) -> str:
    """The text of an exception; empty when it has none any more, as py4j's has after its JVM has ended."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001  # py4j asks the JVM for the text, and the JVM may have failed
        return ""


def _condition_of(error: BaseException) -> str:
    """The code that libraries have in addition to their message: an errno, an SQLSTATE, an error code of S3."""
    if isinstance(error, OSError) and error.errno is not None:
        return errno.errorcode.get(error.errno, str(error.errno))
    state = getattr(getattr(error, "orig", None), "sqlstate", None) or getattr(error, "sqlstate", None)
    if isinstance(state, str):
        return state
    response = getattr(error, "response", None)
    if isinstance(response, dict):  # botocore's ClientError
        return str(response.get("Error", {}).get("Code", ""))
    return ""


def _link(kind: str, message: str, *, condition: str = "") -> ErrorLink:
    for below in _NO_PART_OF_A_MESSAGE:
        message = message.partition(below)[0]
    found = _CONDITION.match(message)
    number = _ERRNO.match(message)
    if number is not None:
        condition = condition or errno.errorcode.get(int(number["number"]), "")
    return ErrorLink(
        kind=kind.replace("$", "."),
        message=redacted(message)[:_MESSAGE_CHARACTERS],
        condition=condition or (found["condition"] if found is not None else ""),
    )


def _bounded(links: list[ErrorLink]) -> ErrorChain:
    """Drop repeated errors, and the outer ones of a long chain."""
    kept: list[ErrorLink] = []
    for link in links:
        if not kept or kept[-1] != link:
            kept.append(link)
    return tuple(kept[-_CHAIN_LINKS:])


def without_row_values(text: str) -> str:
    """The text of an error without values of rows; the text itself when it is about none."""
    conditions = list(_NAMED_CONDITION.finditer(text))
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
