"""Whether a text is one query, found out by reading its words: nothing is executed, and no JVM is started.

Spark's own parser has the last word on that (`sluice validate --plan`, and every start): it knows strings, names in
backticks and comments, and otherwise words and brackets. This reading also refuses what makes a query more than that: a
call of Java, a program, a file by its path, and a text that Spark fills with variables of its environment. A driver
holds the deployment's secrets, and what is written as SQL is read as data.

Source: https://spark.apache.org/docs/4.1.0/sql-ref-syntax.html
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

_QUERY_BEGINS = frozenset({"SELECT", "WITH", "FROM", "VALUES", "TABLE"})
_CHANGES = frozenset({"INSERT", "MERGE", "DELETE", "UPDATE"})

_CALLS = frozenset({"REFLECT", "JAVA_METHOD", "TRY_REFLECT"})
"""Functions that call a static method of Java."""

_SCHEMA_READS = frozenset(
    {"FROM_AVRO", "TO_AVRO", "SCHEMA_OF_AVRO", "FROM_PROTOBUF", "TO_PROTOBUF", "FROM_XML", "SCHEMA_OF_XML"}
)
"""Functions that take a schema by its address or path, XML as an option: Spark reads it, and quotes it."""

_FORMATS = frozenset(
    {
        "AVRO",
        "BINARYFILE",
        "CSV",
        "DELTA",
        "ICEBERG",
        "IMAGE",
        "JDBC",
        "JSON",
        "LIBSVM",
        "ORC",
        "PARQUET",
        "TEXT",
        "XML",
    }
)
"""What Spark takes for the format of files in `format.path`, in the place of a table."""

_TOKEN = re.compile(
    r"""(?P<space>\s+|--[^\r\n]*)
      | (?P<comment>/\*)
      | (?P<text>[rR](?:'[^']*'|"[^"]*") | '(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.|"")*")
      | (?P<name>`(?:[^`]|``)*`)
      | (?P<word>\w+)
      | (?P<open>[\'"`])
      | (?P<sign>.)""",
    re.VERBOSE | re.DOTALL,
)
_COMMENT_EDGE = re.compile(r"/\*|\*/")


def query_problem(text: str) -> str | None:
    """Why a text is not one query, as the end of a sentence about it; none when it looks like one."""
    try:
        words = list(_words(text))
    except _UnclosedError as error:
        return str(error)
    while words and words[-1] == ";":
        words.pop()
    if not words:
        return "holds no query"
    if ";" in words:
        return "holds more than one statement"
    first = next((word for word in words if word != "("), "")
    if first not in _QUERY_BEGINS:
        return f"begins with {first[:40]}, which begins no query: a transformation is one SELECT"
    return _change_problem(words, first) or _reach_problem(text, words)


def condition_problem(text: str) -> str | None:
    """Why a text is not one condition on a row, as the end of a sentence about it; none when it looks like one."""
    try:
        words = list(_words(text))
    except _UnclosedError as error:
        return str(error)
    if not words:
        return "is empty"
    if ";" in words:
        return "holds more than one statement"
    depth = 0
    for word in words:
        depth += (word == "(") - (word == ")")
        if depth < 0:
            return "closes a bracket that it does not open"
    if _QUERY_BEGINS.intersection(words) & {"SELECT", "FROM"}:
        return "holds a query: a rule looks at the columns of its row alone"
    return _reach_problem(text, words)


def _reach_problem(text: str, words: Sequence[str]) -> str | None:
    """What a query must not reach for."""
    if "${" in text:
        return "holds ${, which Spark replaces by settings and variables of its environment: write the value itself"
    padded = ["", *words, "", ""]
    for before, word, sign, behind in zip(padded, padded[1:], padded[2:], padded[3:], strict=False):
        name = word.strip("`")
        if sign == "(" and name in _CALLS:
            return f"calls {name.lower()}, which calls Java: a transformation in SQL reads its inputs alone"
        if sign == "(" and name in _SCHEMA_READS:
            return f"calls {name.lower()}, which reads schemas from files: declare the format, or decode it in Python"
        if sign == "(" and name.startswith("XPATH"):
            return f"calls {name.lower()}, whose document may name files and addresses to read: parse it in Python"
        if sign == "(" and word == "IDENTIFIER":
            return "calls identifier, whose text becomes a name: write the name itself"
        if word == "USING" and sign == "''":
            return "runs a program (USING): a transformation in SQL reads its inputs alone"
        is_relation = before in ("FROM", "JOIN") or behind.startswith("`")
        if sign == "." and is_relation and (name in _FORMATS or ("." in name and word != name)):
            return f"reads files by their path ({name.lower()}.…): declare them as an input"
    return None


def _change_problem(words: Sequence[str], first: str) -> str | None:
    """A statement that begins like a query, and changes a table all the same."""
    verb = _verb_after_with(words) if first == "WITH" else None
    if verb is None:
        verb = next((one for one, two in pairwise(words) if one == "INSERT" and two in ("INTO", "OVERWRITE")), None)
    return f"is {verb}, which changes a table: a transformation is one SELECT" if verb in _CHANGES else None


def _verb_after_with(words: Sequence[str]) -> str | None:
    """What follows the named queries: the first word outside of brackets after a closing one, but for their own."""
    depth = 0
    for previous, word in pairwise(words):
        depth += (word == "(") - (word == ")")
        if depth == 0 and previous == ")" and word not in (")", "(", ",", "AS"):
            return word
    return None


class _UnclosedError(ValueError):
    """A comment, a string or a name that has no end."""


def _words(text: str) -> Iterator[str]:
    """Words in capitals, signs as they are, `''` for a string, and a name in backticks with them."""
    position = 0
    while (found := _TOKEN.match(text, position)) is not None:
        position = found.end()
        match found.lastgroup:
            case "comment":
                position = _end_of_comment(text, position)
            case "open":
                raise _UnclosedError("holds a string or a name that is not closed")
            case "text":
                yield "''"
            case "name" | "word" | "sign":
                yield found[0].upper()


def _end_of_comment(text: str, position: int) -> int:
    """Comments may hold comments."""
    depth = 1
    while depth:
        found = _COMMENT_EDGE.search(text, position)
        if found is None:
            raise _UnclosedError("holds a comment that is not closed")
        depth += 1 if found[0] == "/*" else -1
        position = found.end()
    return position
