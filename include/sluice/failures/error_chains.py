"""The chain of errors behind a failure, read from an exception and from the texts in which Java and Python tell theirs.

An exception that came out of Spark's JVM tells only its text; who caused it stands in the stack trace. Both languages
write one line for each error (`Caused by: java.net.ConnectException: Connection refused`, `KeyError: 'a'`), and those
lines are all that is read here: nobody asks a JVM that may be gone.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorLink:
    """One error of a chain.

    kind: the class of the error with its package, as Java or Python names it; Python's own without one.
    message: what it said, shortened.
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


_LONGEST_MESSAGE = 500
_LONGEST_CHAIN = 24
"""A chain of more has been wrapped again and again; its innermost errors are kept."""

_ERROR_LINE = re.compile(
    r"^(?:Caused by: |: |Exception in thread \"[^\"]*\" |.*?\b(?:ERROR|FATAL)\b.*?: )?"
    r"(?P<kind>(?:[A-Za-z_$][\w$]*\.)*[A-Z][\w$]*(?:Exception|Error|Failure|Fault|Interrupt|OutOfRange|Exit))"
    r"(?::(?: (?P<message>.*))?)?$"
)
"""A line that begins an error: a class whose name says that it is one, alone or followed by its message."""

_CONDITION = re.compile(r"^\[(?P<condition>[A-Z][A-Z0-9_]*(?:\.[A-Z0-9_]+)*)\]")
"""How every error of Spark's catalogue begins: https://spark.apache.org/docs/latest/sql-error-conditions.html"""

_NO_PART_OF_A_MESSAGE = ("\n=== ", "\n\tat ", "\nTraceback ")
"""Where Spark repeats the query, whose words say nothing of the failure, and where Java and Python list their calls."""

_ERRNO = re.compile(r"^\[Errno (?P<number>\d+)\]")
"""How Python begins an error of the system."""


def chain_of(error: BaseException) -> ErrorChain:
    """The chain behind an exception of this process, the causes in Spark's JVM and in its Python workers included."""
    links: list[ErrorLink] = []
    for one in _with_causes(error):
        links += _links_of(one)
    return _bounded(links)


def chain_in(text: str) -> ErrorChain:
    """The chain told by a stack trace, a traceback or the end of a log, in the order of its lines."""
    links = []
    for line in text.splitlines():
        found = _ERROR_LINE.match(line.strip() if line.startswith("  ") else line)
        if found is not None:
            links.append(_link(found["kind"], found["message"] or ""))
    return _bounded(links)


def _with_causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)


def _links_of(error: BaseException) -> list[ErrorLink]:
    """One exception, and what the text of a foreign one tells of its own causes."""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    trace = getattr(error, "_stackTrace", None)  # what PySpark keeps of the JVM's exception
    is_foreign = isinstance(trace, str)
    message = str(getattr(error, "_desc", "")) if is_foreign else _text_of(error)
    own = _link(name, message.strip(), condition=_condition_of(error))
    told = f"{message}\n{trace}" if is_foreign else "\n".join(message.splitlines()[1:])
    return [own, *chain_in(told)]


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001  # py4j asks the JVM for its text, and the JVM may be what has failed
        return ""


def _condition_of(error: BaseException) -> str:
    """The code that libraries keep beside their message: of the system, of PostgreSQL, of S3."""
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
        message=message[:_LONGEST_MESSAGE],
        condition=condition or (found["condition"] if found is not None else ""),
    )


def _bounded(links: list[ErrorLink]) -> ErrorChain:
    """Each error once in a row, and the innermost of a long chain."""
    kept: list[ErrorLink] = []
    for link in links:
        if not kept or kept[-1] != link:
            kept.append(link)
    return tuple(kept[-_LONGEST_CHAIN:])
