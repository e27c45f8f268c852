"""Columns in a form that Spark can compare, sort and hash. It refuses all three for maps, also inside other columns.

A map becomes the array of its entries, sorted by key: two maps with the same entries are equal, whatever their order.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from sluice_spark.session.identifiers import quoted


def comparable_columns(rows: DataFrame) -> list[Column]:
    """Every column of some rows, in a form that can be compared and hashed; most columns as they are."""
    return [comparable(fn.col(quoted(field.name)), field.dataType).alias(field.name) for field in rows.schema]


def comparable(value: Column, kind: DataType) -> Column:
    """A value in a form that can be compared and hashed; null stays null.

    Parameters
    ----------
    kind: the type of the value.
    """
    if not holds_map(kind):
        return value
    match kind:
        case MapType(valueType=of_value):

            def entry(one: Column) -> Column:
                return fn.struct(one["key"].alias("key"), comparable(one["value"], of_value).alias("value"))

            return fn.array_sort(fn.transform(fn.map_entries(value), entry))
        case ArrayType(elementType=element):
            return fn.transform(value, lambda one: comparable(one, element))
        case StructType() as struct:
            parts = (comparable(value.getField(part.name), part.dataType).alias(part.name) for part in struct)
            return fn.when(value.isNotNull(), fn.struct(*parts))
    raise TypeError(f"{kind.simpleString()} holds a map in a way that is unknown")


def holds_map(kind: DataType) -> bool:
    """Whether a type is a map, or has one inside."""
    match kind:
        case MapType():
            return True
        case ArrayType(elementType=element):
            return holds_map(element)
        case StructType() as struct:
            return any(holds_map(part.dataType) for part in struct)
    return False
