"""The chain of errors behind a failure, read from an exception and from the stack traces of Java and Python.

An exception of Spark's JVM carries only a text; its causes are in the stack trace. Both languages write one line for
each error (`Caused by: java.net.ConnectException: Connection refused`, `KeyError: 'a'`), and only those lines are read:
the JVM itself may be gone, so it is not asked.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from dataclasses import dataclass

from sluice.messages.redaction import redacted


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
