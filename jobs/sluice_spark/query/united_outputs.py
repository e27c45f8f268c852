"""Carries several outputs through one streaming query: rows are tagged and united, and separated in each batch.

Why one query and not one for each output: decision 0015.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn
from pyspark.sql.types import StructType

_TAG = "_sluice_output"


def unite(outputs: Mapping[str, DataFrame], *, besides: Mapping[str, StructType] | None = None) -> DataFrame:
    """One DataFrame that holds the rows of all outputs: a tag, and a column for each output of which one is filled.

    A single output stays as it is.

    Parameters
    ----------
    besides: the schemas of outputs without rows of their own, into which `move` brings some.
    """
    schemas = {name: rows.schema for name, rows in outputs.items()} | dict(besides or {})
    if len(schemas) == 1:
        return next(iter(outputs.values()))
    tagged = [
        rows.select(
            fn.lit(name).alias(_TAG),
            *(
                fn.struct("*").alias(other) if other == name else fn.lit(None).cast(schema).alias(other)
                for other, schema in schemas.items()
            ),
        )
        for name, rows in outputs.items()
    ]
    return reduce(DataFrame.union, tagged)


def move(united: DataFrame, *, output: str, where: Column, into: str, row: Mapping[str, Column]) -> DataFrame:
    """The same rows, with some rows moved to another output. No part of the plan is computed a second time.

    Parameters
    ----------
    where: which rows of `output` move, in terms of `field`.
    row: what each row becomes, the columns of `into` by their names.
    """
    goes, kind = (fn.col(_TAG) == output) & where, united.select(f"{into}.*").schema
    moved = fn.struct(*(row[name] for name in kind.names)).cast(kind)
    columns = {
        _TAG: fn.when(goes, fn.lit(into)).otherwise(fn.col(_TAG)),
        output: fn.when(~goes, fn.col(output)),
        into: fn.when(goes, moved).otherwise(fn.col(into)),
    }
    return united.select(*(columns.get(name, fn.col(name)).alias(name) for name in united.columns))


def field(output: str, name: str) -> Column:
    """A column of the rows of an output, in the result of `unite`."""
    return fn.col(output).getField(name)


def part(united: DataFrame, output: str) -> DataFrame:
    """The rows of one output, from the result of `unite`."""
    if _TAG not in united.columns:
        return united
    return united.where(fn.col(_TAG) == output).select(fn.col(f"{output}.*"))


def only(united: DataFrame, outputs: Collection[str]) -> DataFrame:
    """The rows of some outputs, as they are in the result of `unite`."""
    return united.where(fn.col(_TAG).isin(*outputs)) if _TAG in united.columns else united


def row_counts(united: DataFrame, outputs: Mapping[str, object]) -> list[Column]:
    """An aggregate for each output that counts its rows, for `DataFrame.observe`."""
    if _TAG not in united.columns:
        return [fn.count(fn.lit(1)).alias(name) for name in outputs]
    return [fn.count_if(fn.col(_TAG) == name).alias(name) for name in outputs]
