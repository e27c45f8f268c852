"""Decodes values in Spark's Python workers, a block of them at a time, each by itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import StringType

from sluice.record_values.decoding import ValueDecoder
from sluice.record_values.fitting import arrow_type
from sluice.record_values.registry import SchemasOfValues
from sluice.record_values.schemas import ValueSchema
from sluice_spark.session.spark_types import spark_schema

if TYPE_CHECKING:
    Block: TypeAlias = pa.Array[Any]
else:
    Block = pa.Array  # Spark reads the hints of the function, and at run time this class takes no parameter

_DECODERS_KEPT = 16


def decoding_of(schema: ValueSchema, *, unfit: str) -> Callable[[Column], Column]:
    """What turns a column of values into one of structs: the schema's columns, and why there are none.

    Parameters
    ----------
    unfit: the name of the last field, null for a value that could be decoded.
    """
    type_ = spark_schema(schema.columns).add(unfit, StringType())

    def decode(values: Block) -> Block:
        return decoded_block(schema, values, unfit=unfit)

    # Spark would run it a second time in the condition that divides what was decoded from what was refused, and the
    # registry may have learned something in between.
    decoding: Callable[[Column], Column] = arrow_udf(decode, returnType=type_).asNondeterministic()  # type: ignore[call-overload]  # its hints tell the kind
    return decoding


def decoded_block(schema: ValueSchema, values: Block, *, unfit: str) -> Block:
    """The values of a block, decoded; a value that is null is a row of nulls."""
    done = _decoder(schema).decode_all(values.to_pylist())
    fields = [pa.field(column.name, arrow_type(column.column_type)) for column in schema.columns]
    rows = [{**(one.fields or {}), unfit: one.unfit} for one in done]
    return pa.array(rows, pa.struct([*fields, pa.field(unfit, pa.string())]))


@lru_cache(maxsize=_DECODERS_KEPT)
def _decoder(schema: ValueSchema) -> ValueDecoder:
    """Of this worker process, which outlives its tasks: a schema is looked up and parsed once."""
    lookup = SchemasOfValues(schema.registry) if schema.registry is not None else None
    return ValueDecoder(schema, lookup=lookup)
