"""Carries several outputs through one streaming query: their rows are tagged, united, and parted again in each batch.

Why one query and not one for each output: `docs/decisions/several-outputs-in-one-query.md`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn

_TAG = "_sluice_output"


def unite(outputs: Mapping[str, DataFrame]) -> DataFrame:
    """One DataFrame that holds the rows of all outputs: a tag, and a column for each output of which one is filled.

    A single output stays as it is.
    """
    if len(outputs) == 1:
        return next(iter(outputs.values()))
    tagged = [
        rows.select(
            fn.lit(name).alias(_TAG),
            *(
                fn.struct("*").alias(other) if other == name else fn.lit(None).cast(outputs[other].schema).alias(other)
                for other in outputs
            ),
        )
        for name, rows in outputs.items()
    ]
    return reduce(DataFrame.union, tagged)


def part(united: DataFrame, output: str) -> DataFrame:
    """The rows of one output, out of what `unite` made."""
    if _TAG not in united.columns:
        return united
    return united.where(fn.col(_TAG) == output).select(fn.col(f"{output}.*"))


def row_counts(united: DataFrame, outputs: Mapping[str, object]) -> list[Column]:
    """An aggregate for each output that counts its rows while they pass by, for `DataFrame.observe`."""
    if _TAG not in united.columns:
        return [fn.count(fn.lit(1)).alias(name) for name in outputs]
    return [fn.count_if(fn.col(_TAG) == name).alias(name) for name in outputs]
