"""Decodes values in Spark's Python workers: Spark passes blocks of values, and gets blocks of structs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import Column
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import LongType, StringType, StructType

from sluice.record_values.decoding import ValueDecoder
from sluice.record_values.json_decoding import NO_VALUE, DecodedBlock, JsonBlockDecoder
from sluice.record_values.registry import RegistryLookup
from sluice.record_values.schemas import ValueSchema
from sluice.record_values.wire_format import MAGIC_BYTE, NO_PREFIX, PREFIX_BYTES
from sluice_spark.session.spark_types import spark_schema

if TYPE_CHECKING:
    Block: TypeAlias = pa.Array[Any]
else:
    Block = pa.Array  # Spark evaluates the hints of the function, and at run time this class has no type parameter

_DECODERS_KEPT = 16


REJECTION, NUMBER = "_sluice_rejection", "_sluice_number"
"""The fields of a decoded struct beside its columns: why the value is rejected, null for a decoded one; and the number
of a rejected record that is kept in the driver's memory until the batch is staged, null for all others. A partition
that is computed twice gives the same numbers."""

_MOST_KEPT, _MOST_KEPT_BYTES = 200, 2**18
"""Of each block, which has 10,000 values by default. A batch of a million values keeps at most 20,000 rejected records
and 26 MB in the driver; when there are more, the rejected records of the batch are read once more."""


def decoding_of(schema: ValueSchema) -> Callable[[Column], Column]:
    """Create the function that decodes a column of values into a column of structs.

    Parameters
    ----------
    schema: how the values are read. Its columns are the fields of the structs, before `REJECTION` and `NUMBER`.
    """
    struct = _struct_of(schema)

    def decode(blocks: Iterator[Block]) -> Iterator[Block]:
        first = task_number()
        for block in blocks:
            yield decoded_block(schema, block, first=first)
            first += len(block)

    # Otherwise Spark evaluates it a second time in the condition that separates decoded from rejected rows, and a
    # schema may have been registered in between.
    decoding: Callable[[Column], Column] = arrow_udf(decode, returnType=struct).asNondeterministic()  # type: ignore[call-overload]  # the kind follows from the hints of `decode`
    return decoding


def task_number() -> int:
    """The number of the first value of this task; that of the next task is larger by 2^40."""
    task = TaskContext.get()
    return (task.partitionId() if task is not None else 0) << 40


def decoded_block(schema: ValueSchema, values: Block, *, first: int = 0) -> Block:
    """Decode a block of values. first: the number of its first value."""
    given: list[bytes | None] = values.to_pylist()
    fields = [pa.field(each.name, to_arrow_type(each.dataType)) for each in _struct_of(schema)]
    block = _json_block(schema, given) if schema.format == "json" else _block_of_rows(schema, given, fields[:-2])
    reasons = [block.rejections.get(index) for index in range(len(given))] if block.rejections else None
    rejections = pa.array(reasons, pa.string()) if reasons is not None else pa.nulls(len(given), pa.string())
    numbers = pa.array(kept_numbers(given, block.rejections, first=first), pa.int64())
    columns = [*block.columns, rejections, numbers]
    same = [one if one.type == to.type else one.cast(to.type) for one, to in zip(columns, fields, strict=True)]
    return pa.StructArray.from_arrays(same, fields=fields)


def _json_block(schema: ValueSchema, values: list[bytes | None]) -> DecodedBlock:
    decoder = _json_decoder(schema)
    if schema.registry is None:
        return decoder.decode(values)
    framed = [value is not None and len(value) > PREFIX_BYTES and value.startswith(MAGIC_BYTE) for value in values]
    texts = [
        value[PREFIX_BYTES:] if is_framed and value else None for value, is_framed in zip(values, framed, strict=True)
    ]
    block = decoder.decode(texts)
    unframed = {index: NO_PREFIX for index, value in enumerate(values) if value is not None and not framed[index]}
    return replace(block, rejections={**block.rejections, **unframed})


def _block_of_rows(schema: ValueSchema, values: list[bytes | None], fields: list[pa.Field[Any]]) -> DecodedBlock:
    """A block of values that are decoded one by one."""
    decoded = _decoder(schema).decode_all(values)
    rows = [value.fields or {} for value in decoded]
    columns = [pa.array([row.get(each.name) for row in rows], each.type) for each in fields]
    rejections = {index: value.rejection for index, value in enumerate(decoded) if value.rejection is not None}
    absent = {index: NO_VALUE for index, value in enumerate(values) if value is None}
    return DecodedBlock(columns=columns, rejections=rejections | absent)


def kept_numbers(values: Sequence[bytes | None], rejections: Mapping[int, str], *, first: int) -> list[int | None]:
    """The numbers of the rejected records of a block that are kept."""
    numbers: list[int | None] = [None] * len(values)
    size_bytes = 0
    for index in sorted(rejections)[:_MOST_KEPT]:
        size_bytes += len(values[index] or b"") + len(rejections[index])
        if size_bytes <= _MOST_KEPT_BYTES:
            numbers[index] = first + index
    return numbers


def _struct_of(schema: ValueSchema) -> StructType:
    return spark_schema(schema.columns).add(REJECTION, StringType()).add(NUMBER, LongType())


@lru_cache(maxsize=_DECODERS_KEPT)
def _json_decoder(schema: ValueSchema) -> JsonBlockDecoder:
    return JsonBlockDecoder(schema.columns)


@lru_cache(maxsize=_DECODERS_KEPT)
def _decoder(schema: ValueSchema) -> ValueDecoder:
    """The decoder of this worker process, which outlives tasks: a schema is looked up and parsed once."""
    lookup = RegistryLookup(schema.registry) if schema.registry is not None else None
    return ValueDecoder(schema, lookup=lookup)
