"""Rejections as columns of Spark, in the form in which the quarantine table holds them."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn

from sluice.declarations.quarantine_table import REASON_COLUMNS, REJECTED_COLUMNS
from sluice.record_values.rejection import RejectionKind, around_detail
from sluice_spark.session.spark_types import spark_schema, spark_type

REJECTION_ROW = spark_schema(REASON_COLUMNS)
"""Why a row is rejected."""

REJECTED_ROW = spark_schema(REJECTED_COLUMNS)
"""A row of the quarantine without its batch."""


def rejection_of(kind: RejectionKind, *, path: str, detail: Column) -> Column:
    """A `REJECTION_ROW` for rows that Spark itself rejects. detail: as it quotes the row."""
    before, behind = around_detail(kind, path)
    reason = fn.concat(fn.lit(f"{before}: "), detail, fn.lit(behind))
    given = {"reason": reason, "kind": fn.lit(str(kind)), "path": fn.lit(path), "quotes_data": fn.lit(True)}
    return fn.struct(*(given[name].alias(name) for name in REJECTION_ROW.names))


def rejected_row(rejection: Column, *, position: Column, payload: Column) -> Mapping[str, Column]:
    """The columns of a `REJECTED_ROW` by their names. rejection: a `REJECTION_ROW`."""
    given = {"position": position, "payload": payload}
    return {name: given.get(name, rejection.getField(name)).alias(name) for name in REJECTED_ROW.names}


def with_unknown_reasons(rows: DataFrame) -> DataFrame:
    """The rows that a transformation rejects, with null for what it does not say about its reasons."""
    unsaid = [one for one in REASON_COLUMNS if not one.required and one.name not in rows.columns]
    return rows.select("*", *(fn.lit(None).cast(spark_type(one.column_type)).alias(one.name) for one in unsaid))
