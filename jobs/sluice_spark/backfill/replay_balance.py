"""What rejected records give today, and what of it can be traced back to each of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as fn
from pyspark.sql.types import (
    DateType,
    DecimalType,
    IntegralType,
    StringType,
    StructField,
    TimestampNTZType,
    TimestampType,
)

from sluice.errors import UnpublishableError
from sluice.record_values.rejection import RejectionKind
from sluice_spark.backfill.table_rows import is_between
from sluice_spark.session.columns import quoted
from sluice_spark.session.row_content import row_hashes

_NUMBERED = (DateType, TimestampType, TimestampNTZType, IntegralType)
_ORDERED = (*_NUMBERED, DecimalType, StringType)
"""Of these types Iceberg knows between which values those of a file lie."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Computed:
    """What records give today. again: the places of those that are rejected again, by their kind."""

    rows: DataFrame
    count: int
    again: Mapping[str, str]


def require_positions(stream: str, rejected: Sequence[Row]) -> None:
    """Refuse what is rejected again and cannot be identified by its position: a row that breaks a rule has none.

    Raises
    ------
    UnpublishableError: with the rules, or the kinds.
    """
    times = Counter(row["position"] for row in rejected)
    unknown = [row for row in rejected if row["position"] is None or times[row["position"]] > 1]
    if unknown:
        kinds = {
            row["reason"] if row["kind"] == RejectionKind.RULE else row["kind"] or "by the transformation"
            for row in unknown
        }
        raise UnpublishableError(
            f"{len(unknown)} records of {stream} are rejected again without a position of their own "
            f"({'; '.join(sorted(kinds))}), so it is unknown which they are. Nothing was published.",
            next_step="Correct the transformation or the rule, or replay the other records by `--position`.",
        )


def require_balance(stream: str, computed: Computed, places: frozenset[str], records: int) -> None:
    """Refuse what cannot be traced back to records.

    Raises
    ------
    UnpublishableError: when a record is rejected under another place, or gives more than a row.
    """
    if elsewhere := computed.again.keys() - places:
        raise UnpublishableError(
            f"{len(elsewhere)} records of {stream} are rejected again under another position, so it is unknown which "
            "they are. Nothing was published.",
            next_step="Correct the transformation, or replay the other records by `--position`.",
        )
    if computed.count + len(computed.again) > records:
        raise UnpublishableError(
            f"{records} records of {stream} give {computed.count} rows and {len(computed.again)} rejections: a record "
            "gives several, and some of them may be visible already. Nothing was published.",
            next_step="Backfill the interval of these records, or refresh the table.",
        )


def require_apart(stream: str, together: Computed, alone: Computed) -> None:
    """Refuse rows of records that are rejected too: the records would stay open, and give these rows once more.

    Parameters
    ----------
    alone: what those records give that are not rejected.

    Raises
    ------
    UnpublishableError: when others gave rows.
    """
    if alone.again or alone.count != together.count:
        raise UnpublishableError(
            f"Records of {stream} give rows and are rejected, both at once, or give something else each time: "
            f"{together.count} rows of all, {alone.count} of those that are not rejected. Nothing was published.",
            next_step="Backfill the interval of these records, or refresh the table.",
        )


def require_not_visible(stream: str, computed: Computed, held: DataFrame, *, allows_repeated: bool) -> int:
    """Refuse rows that the target holds already: code that published a record and rejected it, both at once, leaves an
    open row, and nothing else says that its record is visible. Records may also give equal rows rightfully, which only
    a person knows.

    Parameters
    ----------
    held: the rows of the target. allows_repeated: whether a person has said so.

    Returns
    -------
    How many there are.

    Raises
    ------
    UnpublishableError: with their number, when they are not allowed.
    """
    if not computed.count:
        return 0
    new = computed.rows.select(*(fn.col(quoted(one.name)).cast(one.dataType).alias(one.name) for one in held.schema))
    hashed, old = new.select(*row_hashes(new)), _near(new, held)
    found = hashed.join(old.select(*row_hashes(old)).distinct(), hashed.columns, "left_semi").count()
    if found and not allows_repeated:
        raise UnpublishableError(
            f"{found} of the {computed.count} rows that the records of {stream} give are in its table already: what "
            "rejected a record may have published it, too. Nothing was published.",
            next_step="Replay the other records by `--position`. Of these, discard what is visible, or backfill their "
            "interval. Where other records gave the rows that are there, repeat it with `--allow-repeated`.",
        )
    return found


def _near(rows: DataFrame, held: DataFrame) -> DataFrame:
    """The rows of a table whose times, numbers and texts lie where those of some rows do: Iceberg leaves most files out
    by them."""
    ordered = [one for one in rows.schema if isinstance(one.dataType, _ORDERED)]
    ends = [end(value) for value in map(_comparable, ordered) for end in (fn.min, fn.max)]
    if not ends:
        return held
    (found,) = rows.agg(*ends).collect()
    for n, one in enumerate(ordered):
        least, most = found[2 * n], found[2 * n + 1]
        value = fn.col(quoted(one.name))
        if least is None:
            held = held.where(value.isNull())
        elif isinstance(one.dataType, _NUMBERED):
            held = held.where(is_between(held, one.name, (least, most)))
        else:
            held = held.where(value.between(fn.lit(least), fn.lit(most)) | value.isNull())
    return held


def _comparable(value: StructField) -> Column:
    """A value, or the number by which Iceberg knows a time."""
    column = fn.col(quoted(value.name))
    if isinstance(value.dataType, DateType):
        return fn.unix_date(column)
    is_time = isinstance(value.dataType, TimestampType | TimestampNTZType)
    return fn.unix_micros(column.cast("timestamp")) if is_time else column
