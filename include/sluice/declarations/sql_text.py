"""Whether a text is one query, found out by reading its words: nothing is executed, and no JVM is started.

Spark's own parser has the last word (`sluice validate --plan`, and every start). This reading only has to see what is
no query at all: it knows strings, names in backticks and comments, and otherwise words and brackets.

Source: https://spark.apache.org/docs/4.1.0/sql-ref-syntax.html
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

_QUERY_BEGINS = frozenset({"SELECT", "WITH", "FROM", "VALUES", "TABLE", "MAP", "REDUCE"})
_CHANGES = frozenset({"INSERT", "MERGE", "DELETE", "UPDATE"})

_TOKEN = re.compile(
    r"""(?P<space>\s+|--[^\n]*)
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
    return _change_problem(words, first)


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
    """Words in capitals, signs as they are, `''` for a string, and one word for a name in backticks."""
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
            case "name":
                yield "``"
            case "word" | "sign":
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
