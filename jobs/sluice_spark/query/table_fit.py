"""Compares the rows of an output with their table: the same columns by name, of the same types."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from sluice.errors import ColumnDifference, SchemaError


def require_fit(
    rows: StructType, table: StructType, *, stream: str, output: str, table_name: str, next_step: str
) -> None:
    """Check that rows fit a table. The order of columns is free; a null in a required column is found when the row is
    written.

    Raises
    ------
    SchemaError: with every difference.
    """
    if differences := tuple(find_differences(rows, table)):
        raise SchemaError(
            f"The output {output} of stream {stream} does not fit the table {table_name}:",
            differences=differences,
            next_step=next_step,
        )


def find_differences(rows: StructType, table: StructType, *, within: str = "") -> Iterator[ColumnDifference]:
    """The columns that are missing, of another type or unknown, in the order of the columns of the table.

    Parameters
    ----------
    within: the path of the enclosing columns, each name followed by a dot.
    """
    given = {field.name: field.dataType for field in rows}
    wanted = {field.name: field.dataType for field in table}
    for name in sorted({name for name in rows.names if rows.names.count(name) > 1}):
        kinds = (field.dataType.simpleString() for field in rows if field.name == name)
        declared = wanted[name].simpleString() if name in wanted else ""
        yield ColumnDifference(column=f"{within}{name}", declared=declared, got=f"it twice: {', '.join(kinds)}")
    for name, kind in wanted.items():
        if name in given:
            yield from _type_differences(given[name], kind, column=f"{within}{name}")
        else:
            yield ColumnDifference(column=f"{within}{name}", declared=kind.simpleString(), got="")
    for name, kind in given.items():
        if name not in wanted:
            yield ColumnDifference(column=f"{within}{name}", declared="", got=kind.simpleString())


def _type_differences(given: DataType, wanted: DataType, *, column: str) -> Iterator[ColumnDifference]:
    """The places inside a column at which two types differ. Nullability is not compared: the two sides define it
    differently.
    """
    match given, wanted:
        case StructType(), StructType():
            yield from find_differences(given, wanted, within=f"{column}.")
        case ArrayType(), ArrayType():
            yield from _type_differences(given.elementType, wanted.elementType, column=f"{column}.element")
        case MapType(), MapType():
            yield from _type_differences(given.keyType, wanted.keyType, column=f"{column}.key")
            yield from _type_differences(given.valueType, wanted.valueType, column=f"{column}.value")
        case _ if given.simpleString() != wanted.simpleString():
            yield ColumnDifference(column=column, declared=wanted.simpleString(), got=given.simpleString())
