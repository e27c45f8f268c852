"""Decodes values in Spark's Python workers: Spark passes blocks, and each value is decoded on its own."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StringType, StructType

from sluice.record_values.decoding import ValueDecoder
from sluice.record_values.registry import RegistryLookup
from sluice.record_values.schemas import ValueSchema
from sluice_spark.session.spark_types import spark_schema

if TYPE_CHECKING:
    Block: TypeAlias = pa.Array[Any]
else:
    Block = pa.Array  # Spark evaluates the hints of the function, and at run time this class has no type parameter

_DECODERS_KEPT = 16


def decoding_of(schema: ValueSchema, *, rejection: str) -> Callable[[Column], Column]:
    """Create the function that decodes a column of values into a column of structs.

    Parameters
    ----------
    schema: how the values are read. Its columns are the fields of the structs.
    rejection: the name of an additional last field: the reason of a rejection, null for a decoded value.
    """
    struct = _struct_of(schema, rejection=rejection)

    def decode(values: Block) -> Block:
        return decoded_block(schema, values, rejection=rejection)

    # Otherwise Spark evaluates it a second time in the condition that separates decoded from rejected rows, and a
    # schema may have been registered in between.
    decoding: Callable[[Column], Column] = arrow_udf(decode, returnType=struct).asNondeterministic()  # type: ignore[call-overload]  # the kind follows from the hints of `decode`
    return decoding


def decoded_block(schema: ValueSchema, values: Block, *, rejection: str) -> Block:
    """Decode a block of values. A null value becomes a struct of nulls."""
    decoded = _decoder(schema).decode_all(values.to_pylist())
    rows = [{**(value.fields or {}), rejection: value.rejection} for value in decoded]
    return pa.array(rows, to_arrow_type(_struct_of(schema, rejection=rejection)))


def _struct_of(schema: ValueSchema, *, rejection: str) -> StructType:
    return spark_schema(schema.columns).add(rejection, StringType())


@lru_cache(maxsize=_DECODERS_KEPT)
def _decoder(schema: ValueSchema) -> ValueDecoder:
    """The decoder of this worker process, which outlives tasks: a schema is looked up and parsed once."""
    lookup = RegistryLookup(schema.registry) if schema.registry is not None else None
    return ValueDecoder(schema, lookup=lookup)
