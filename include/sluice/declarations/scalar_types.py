"""The small values that declarations are made of: names, durations, sizes, and the frozen model they all share."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Annotated, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    PlainSerializer,
    Strict,
    StringConstraints,
    model_validator,
)
from pydantic_core import PydanticCustomError

from sluice.messages import one_line

_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")
_COLUMN = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_COLUMN_PATH = re.compile(r"[^\s.]{1,128}(\.[^\s.]{1,128}){0,7}")
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ].{1,40}")
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
            "a name starts with a lower-case letter, continues with lower-case letters, digits and single underscores, "
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


def _checked_column_path(text: str) -> str:
    if not _COLUMN_PATH.fullmatch(text) or text != one_line(text):
        raise ValueError(
            "a column is masked by its name, or a field of it by a path such as `address.street`, of at most 8 names"
        )
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


def duration_words(duration: timedelta) -> str:
    """The duration for a person, in its largest whole unit: `3 days`, `90 minutes`."""
    milliseconds = round(duration.total_seconds() * 1000)
    unit, size = next((unit, size) for unit, size in reversed(_UNITS_MS.items()) if milliseconds % size == 0)
    count = milliseconds // size
    return f"{count} {unit}{'s' * (count != 1)}"


def _checked_path(text: str) -> str:
    if text.startswith("/") or ".." in text.split("/"):
        raise ValueError("a path lies below its connection's folder: no leading slash, no `..`")
    return text


LONGEST_DESCRIPTION = 10_000
LONGEST_OWNER = 100
LONGEST_TAG = 100
"""The characters of a tag in Airflow's database."""

MOST_TAGS = 50
_LONGEST_CRON = 100
"""Airflow stores a cron in words, of at most 1,000 characters."""

_CRON_WORDS = "L|JAN|FEB|MAR|APR|MAY|JUN|JUL|AUG|SEP|OCT|NOV|DEC|MON|TUE|WED|THU|FRI|SAT|SUN"
_CRON_CHARACTERS = re.compile(rf"(?:[0-9*/,# -]|{_CRON_WORDS})*", re.IGNORECASE)
_CRON_PRESETS = ("@hourly", "@daily", "@midnight", "@weekly", "@monthly", "@quarterly", "@yearly", "@annually")
_A_CRON = "a cron has the five fields minute, hour, day, month, weekday, or is a preset such as @hourly"


LARGEST_INT = 2**31 - 1
LARGEST_LONG = 2**63 - 1
"""The largest numbers of Java, which Spark, Kafka and Iceberg count with."""

_FIRST_YEAR = 1970


def _no_boolean(value: object) -> object:
    """Python takes `true` for 1."""
    if isinstance(value, bool):
        raise PydanticCustomError("int_type", "Input should be a valid integer")
    return value


def _as_written_time(value: object) -> object:
    """A number would be taken for seconds since 1970, a date for its midnight."""
    if not isinstance(value, str | datetime) or (isinstance(value, str) and not _TIME.fullmatch(value)):
        raise PydanticCustomError("datetime_type", "Input should be a valid datetime")
    return value


def _checked_time(time: datetime) -> datetime:
    """A time without a zone would be another one on another machine."""
    if time.utcoffset() is None or time.year < _FIRST_YEAR:
        raise PydanticCustomError("datetime_type", "Input should be a valid datetime")
    return time


def _checked_description(text: str) -> str:
    if len(text) > LONGEST_DESCRIPTION:
        raise ValueError(f"a text for readers has at most {LONGEST_DESCRIPTION} characters, got {len(text)}")
    return text


def _checked_owner(text: str) -> str:
    if not text.strip() or len(text) > LONGEST_OWNER or text != one_line(text):
        raise ValueError(f"an owner is named in one line of 1 to {LONGEST_OWNER} characters")
    return text


def _checked_tag(text: str) -> str:
    if not text.strip() or len(text) > LONGEST_TAG or text != one_line(text):
        raise ValueError(f"a tag is one line of 1 to {LONGEST_TAG} characters")
    return text


def _checked_cron(text: str) -> str:
    if text in _CRON_PRESETS:
        return text
    from croniter import croniter  # here, because most declarations have no cron and DAG files should parse quickly

    is_written_well = len(text.split()) == 5 and len(text) <= _LONGEST_CRON and _CRON_CHARACTERS.fullmatch(text)
    if not is_written_well or not croniter.is_valid(text):
        raise ValueError(_A_CRON)
    if not _ever_comes(text):
        raise ValueError("this time never comes: no month has that day")
    return text


def _ever_comes(cron: str) -> bool:
    from croniter import CroniterBadDateError, croniter

    try:
        croniter(cron, datetime(2000, 1, 1, tzinfo=UTC)).get_next()
    except CroniterBadDateError:
        return False
    return True


Name = Annotated[str, AfterValidator(_checked_name)]
TableName = Annotated[str, AfterValidator(_checked_table_name)]
ColumnName = Annotated[str, AfterValidator(_checked_column)]
ColumnPath = Annotated[str, AfterValidator(_checked_column_path)]
RelativePath = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_=*./-]*$"), AfterValidator(_checked_path)]
FunctionReference = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9_]+(/[A-Za-z0-9_]+)*\.py:[A-Za-z_][A-Za-z0-9_]*$")
]
SqlFile = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_]+(/[A-Za-z0-9_]+)*\.sql$")]
SchemaFile = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9_-]+(/[A-Za-z0-9_-]+)*(\.schema)?\.(avsc|json|proto)$")
]
Cron = Annotated[str, AfterValidator(_checked_cron)]
Flag = Annotated[bool, Strict()]
WholeNumber = Annotated[int, BeforeValidator(_no_boolean)]
Time = Annotated[datetime, BeforeValidator(_as_written_time), AfterValidator(_checked_time)]
Description = Annotated[str, AfterValidator(_checked_description)]
Owner = Annotated[str, AfterValidator(_checked_owner)]
Tag = Annotated[str, AfterValidator(_checked_tag)]
Duration = Annotated[timedelta, BeforeValidator(parse_duration), PlainSerializer(duration_text, return_type=str)]


_MOST_LISTED = 30


def listed(names: Iterable[str]) -> str:
    """Names for a sentence, the first thirty of them, and how many there are beside."""
    known = list(names)
    more = f" and {len(known) - _MOST_LISTED} more" if len(known) > _MOST_LISTED else ""
    return f"{', '.join(known[:_MOST_LISTED])}{more}"


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
    values = model.__dict__
    given = [field for field in fields if values[field] is not None]
    if len(given) != 1:
        raise ValueError(f"exactly one of {', '.join(fields)} is needed, got {', '.join(given) or 'none'}")
    return given[0]


class OneOfKinds(Declared):
    """A part of a declaration that is one of several kinds: each of its fields is a kind, and exactly one is set."""

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        one_of(self, *type(self).model_fields)
        return self

    @cached_property
    def kind(self) -> str:
        """The kind: the key that the part was written under."""
        return one_of(self, *type(self).model_fields)
