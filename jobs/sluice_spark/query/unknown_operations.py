"""Lets changes of a feed whose operation nobody declared go to the stream's quarantine instead of ending the run."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn
from pyspark.sql.types import StringType, StructField, StructType

from sluice.declarations.stream_declaration import QUARANTINE_OUTPUT
from sluice_spark.query.united_outputs import field, move
from sluice_spark.sinks.iceberg import IcebergTarget, has_known_operation, unknown_operation

REFUSED_ROW = StructType([StructField(name, StringType()) for name in ("reason", "position", "payload")])
"""A row of the quarantine, as a transformation hands it over."""


def refuse_unknown_operations(united: DataFrame, targets: Iterable[IcebergTarget]) -> DataFrame:
    """The rows of all outputs, with the changes that say no known operation among those of the quarantine.

    The position of such a row is its keys and its ordering, its payload the whole row.

    Parameters
    ----------
    united: from `unite`, with the quarantine among its outputs.
    """
    feeds = (target for target in targets if target.declared.operation_column is not None)
    return reduce(_refuse, feeds, united)


def _refuse(united: DataFrame, target: IcebergTarget) -> DataFrame:
    declared, output = target.declared, target.output
    operation = field(output, declared.operation_column or "")
    places = dict.fromkeys((*declared.keys, *([declared.ordering_column] if declared.ordering_column else ())))
    refused = fn.struct(
        unknown_operation(operation, declared).alias("reason"),
        fn.to_json(fn.struct(*(field(output, name).alias(name) for name in places))).alias("position"),
        fn.to_json(fn.col(output)).alias("payload"),
    )
    is_unknown = ~has_known_operation(operation, declared)
    return move(united, output=output, where=is_unknown, into=QUARANTINE_OUTPUT, row=refused)
