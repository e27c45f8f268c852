"""The small values that declarations are made of: names, durations, sizes, and the frozen model they all share."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, PlainSerializer, StringConstraints
from pydantic_core import PydanticCustomError

_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")
_COLUMN = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_DURATION = re.compile(r"([0-9]{1,13})\s*(millisecond|second|minute|hour|day)s?")

_UNITS_MS = {"millisecond": 1, "second": 1_000, "minute": 60_000, "hour": 3_600_000, "day": 86_400_000}
LONGEST_DURATION_MS = 36_500 * 86_400_000
"""A century: longer than anything that is kept or waited for, and short enough for every library's arithmetic."""


class Declared(BaseModel):
    """A part of a declaration: frozen, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def _checked_name(text: str) -> str:
    """A name reaches SQL, paths and process arguments: hence the small alphabet. `__` separates stream and output."""
    if not is_name(text):
        raise ValueError(
            "a name starts with a lower-case letter, goes on with lower-case letters, digits and single underscores, "
            "and has at most 63 characters"
        )
    return text


def is_name(text: str) -> bool:
    """Whether a text is the name of a stream, an input or an output."""
    return _NAME.fullmatch(text) is not None and "__" not in text


def is_table_name(text: str) -> bool:
    """Whether a text is `<namespace>.<table>`."""
    namespace, dot, table = text.partition(".")
    return bool(dot) and all(_NAME.fullmatch(part) for part in (namespace, table))


def _checked_table_name(text: str) -> str:
    if not is_table_name(text):
        raise ValueError(
            "a table is named <namespace>.<table>, each part of lower-case letters, digits and underscores"
        )
    return text


def _checked_column(text: str) -> str:
    if not _COLUMN.fullmatch(text):
        raise ValueError("a column is named with letters, digits and underscores, and does not start with a digit")
    return text


def parse_duration(value: object) -> timedelta:
    """Read a duration such as `2 seconds`, `6 hours` or `1 day`.

    Raises
    ------
    ValueError: when it has another form, is zero, or is longer than `LONGEST_DURATION_MS`.
    """
    if isinstance(value, timedelta):
        return value
    match = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    milliseconds = int(match[1]) * _UNITS_MS[match[2]] if match is not None else 0
    if not 0 < milliseconds <= LONGEST_DURATION_MS:
        raise ValueError("a duration is a whole number and a unit: milliseconds, seconds, minutes, hours or days")
    return timedelta(milliseconds=milliseconds)


def duration_text(duration: timedelta) -> str:
    """The duration in the words of Spark and of the declarations, for example `90000 milliseconds`."""
    return f"{round(duration.total_seconds() * 1000)} milliseconds"


def _checked_path(text: str) -> str:
    if text.startswith("/") or ".." in text.split("/"):
        raise ValueError("a path lies below its connection's folder: no leading slash, no `..`")
    return text


def _checked_cron(text: str) -> str:
    from croniter import croniter  # here, because most declarations have no cron and DAG files should parse quickly

    if len(text.split()) not in (1, 5) or not croniter.is_valid(text):
        raise ValueError("a cron has the five fields minute, hour, day, month, weekday, or is a preset such as @hourly")
    return text


Name = Annotated[str, AfterValidator(_checked_name)]
TableName = Annotated[str, AfterValidator(_checked_table_name)]
ColumnName = Annotated[str, AfterValidator(_checked_column)]
RelativePath = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_=*./-]*$"), AfterValidator(_checked_path)]
FunctionReference = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9_]+(/[A-Za-z0-9_]+)*\.py:[A-Za-z_][A-Za-z0-9_]*$")
]
SqlFile = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_]+(/[A-Za-z0-9_]+)*\.sql$")]
SchemaFile = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9_-]+(/[A-Za-z0-9_-]+)*(\.schema)?\.(avsc|json|proto)$")
]
Cron = Annotated[str, AfterValidator(_checked_cron)]
Duration = Annotated[timedelta, BeforeValidator(parse_duration), PlainSerializer(duration_text, return_type=str)]


def wrong(problem: str, *at: str | int) -> PydanticCustomError:
    """An error about a key below the model that raises it.

    Parameters
    ----------
    problem: what was got and what is allowed.
    at: the way from the model to the key.
    """
    return PydanticCustomError("declared", "{problem}", {"problem": problem, "at": at})


def one_of(model: BaseModel, *fields: str) -> str:
    """The name of the one field among `fields` that is set.

    Raises
    ------
    ValueError: when none or more than one is set.
    """
    given = [field for field in fields if getattr(model, field) is not None]
    if len(given) != 1:
        raise ValueError(f"exactly one of {', '.join(fields)} is needed, got {', '.join(given) or 'none'}")
    return given[0]
