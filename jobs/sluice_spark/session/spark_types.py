"""Spark's types for declared column types.

Source: https://iceberg.apache.org/docs/latest/spark-getting-started/#iceberg-type-to-spark-type
"""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import types

from sluice.declarations.column_types import (
    ColumnType,
    DecimalType,
    FixedType,
    ListType,
    MapType,
    PrimitiveType,
    StructType,
)
from sluice.declarations.value_declaration import Column
from sluice.errors import UsageError

_PRIMITIVES: dict[str, types.DataType] = {
    "boolean": types.BooleanType(),
    "int": types.IntegerType(),
    "long": types.LongType(),
    "float": types.FloatType(),
    "double": types.DoubleType(),
    "date": types.DateType(),
    "timestamp": types.TimestampNTZType(),
    "timestamptz": types.TimestampType(),
    "string": types.StringType(),
    "uuid": types.StringType(),
    "binary": types.BinaryType(),
}


def spark_schema(columns: Iterable[Column]) -> types.StructType:
    """The schema for reading declared columns. All fields are nullable, because external data can always lack values.

    Raises
    ------
    UsageError: when Spark has no such type.
    """
    return types.StructType([types.StructField(column.name, spark_type(column.column_type)) for column in columns])


def spark_type(column_type: ColumnType) -> types.DataType:
    """Spark's type for a declared type.

    Raises
    ------
    UsageError: for `time`, which Spark cannot read into an Iceberg table.
    """
    match column_type:
        case PrimitiveType(name) if name in _PRIMITIVES:
            return _PRIMITIVES[name]
        case PrimitiveType(name):
            raise UsageError(f"Spark has no type for a column of type {name}.", next_step="Declare it as a string.")
        case DecimalType(precision=precision, scale=scale):
            return types.DecimalType(precision, scale)
        case FixedType():
            return types.BinaryType()
        case ListType(element):
            return types.ArrayType(spark_type(element))
        case MapType(key=key, value=value):
            return types.MapType(spark_type(key), spark_type(value))
        case StructType(fields):
            return types.StructType([types.StructField(name, spark_type(inner)) for name, inner in fields])
