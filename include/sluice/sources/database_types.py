"""The types of PostgreSQL that Spark reads as another value, or not at all.

Spark gives `numeric` without a scale 18 digits behind the point and rounds the rest, and takes `money` and a time of
day for other things. Source: `org.apache.spark.sql.jdbc.PostgresDialect` of Spark 4.1.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

LARGEST_PRECISION = 38

_NUMERIC = re.compile(r"numeric(?:\((\d+),(-?\d+)\))?")
_TIME_OF_DAY = re.compile(r"time(?:\(\d\))? with(?:out)? time zone")


def unreadable_type(kind: str) -> str | None:
    """Why a column of a type cannot be read, as half a sentence; none when it can.

    Parameters
    ----------
    kind: as PostgreSQL's `format_type` gives it, of a domain that of its base; with `[]` behind it of an array.
    """
    element = kind.removesuffix("[]")
    if (found := _NUMERIC.fullmatch(element)) is not None:
        if found[1] is None:
            return "has no scale, and Spark would round it to 18 digits behind the point"
        if int(found[1]) > LARGEST_PRECISION or int(found[2]) < 0:
            return f"has more than {LARGEST_PRECISION} digits or a negative scale, which no column holds"
    if element == "money":
        return "is an amount in the words of a country"
    if _TIME_OF_DAY.fullmatch(element):
        return "is a time of day, which Spark does not have"
    return None


_TIME = re.compile(r"date|timestamp(?:\(\d\))? with(?:out)? time zone")


def checked_columns(columns: Mapping[str, str]) -> Iterator[str]:
    """The terms of a query for columns, in which PostgreSQL refuses a value that no column holds: `infinity`, which
    Spark reads as a time in the year 9999 or long ago, and a numeric `NaN`, at which it fails without a name.

    Parameters
    ----------
    columns: the type of each, as for `unreadable_type`.
    """
    for name, kind in columns.items():
        quoted = '"' + name.replace('"', '""') + '"'
        words = name.replace("'", "''")
        refusal = f"CAST({quoted}::text || ' in column {words}' AS {kind})"
        if _TIME.fullmatch(kind):
            is_value = f"isfinite({quoted})"
        elif _NUMERIC.fullmatch(kind):
            is_value = f"({quoted} <> 'NaN')"
        else:
            yield quoted
            continue
        # The cast around it keeps the scale, which a domain does not hand on.
        yield f"CAST(CASE WHEN {is_value} IS NOT FALSE THEN {quoted} ELSE {refusal} END AS {kind}) AS {quoted}"


def unreadable_columns(columns: Mapping[str, str]) -> Iterator[str]:
    """A phrase for each column that cannot be read. columns: the type of each, as for `unreadable_type`."""
    for name, kind in columns.items():
        if (why := unreadable_type(kind)) is not None:
            yield f"column {name} of type {kind} {why}"
