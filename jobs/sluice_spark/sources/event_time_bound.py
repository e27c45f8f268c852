"""The bound of event times: a row whose time is far ahead of the clock would make every later row late, for good."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn

from sluice.declarations.input_declaration import InputDeclaration


def ahead_reason(declared: InputDeclaration, event_time: Column) -> Column:
    """Why a row is rejected by its event time; null for a row within the bound, and for one without a time.

    The clock is that of the batch, which Spark keeps with the batch's offsets: a batch that runs again rejects the same
    rows.
    """
    watermark = declared.watermark
    if watermark is None:
        return fn.lit(None).cast("string")
    seconds = watermark.max_ahead.total_seconds()
    latest = fn.expr(f"current_timestamp() + make_dt_interval(0, 0, 0, {seconds:.6f})")
    text = f" of `{watermark.column}` is more than {watermark.max_ahead} ahead of the clock"
    message = fn.concat(fn.lit("the event time "), event_time.cast("string"), fn.lit(text))
    return fn.when(event_time.cast("timestamp") > latest, message)


def bounds_without_quarantine(declared: InputDeclaration) -> bool:
    """Whether a row that is too far ahead stops a stream that has no quarantine: only if the bound is declared."""
    return declared.watermark is not None and "max_ahead" in declared.watermark.model_fields_set


def stopping_ahead(rows: DataFrame, declared: InputDeclaration) -> DataFrame:
    """The same rows; one that is too far ahead stops the stream with the reason."""
    if declared.watermark is None or not bounds_without_quarantine(declared):
        return rows
    reason = ahead_reason(declared, fn.col(declared.watermark.column))
    is_sound = fn.when(reason.isNotNull(), fn.raise_error(reason).cast("boolean")).otherwise(fn.lit(True))
    return rows.where(is_sound)
