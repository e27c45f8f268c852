"""Decodes values in Spark's Python workers: Spark passes blocks of values, and gets blocks of structs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import Column
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import LongType, StringType, StructType

from sluice.declarations.value_declaration import Column as DeclaredColumn
from sluice.declarations.value_declaration import as_sent
from sluice.record_values.arrow_columns import DecodedBlock
from sluice.record_values.block_decoding import BinaryBlockDecoder
from sluice.record_values.block_facts import BlockFacts, facts_text, written_by_id
from sluice.record_values.column_validation import without_unavailable
from sluice.record_values.decoding_apart import Decode, Values, decode_apart, decode_within
from sluice.record_values.json_columnar import ColumnarJson, is_columnar
from sluice.record_values.json_decoding import JsonBlockDecoder
from sluice.record_values.registry import RegistryLookup
from sluice.record_values.rejection import Rejection, rejection_row
from sluice.record_values.schemas import MAGIC_BYTE, NO_SCHEMA_ID, PREFIX_BYTES, DecodingLimits, ValueSchema
from sluice_spark.session.columns import REJECTION_ROW, spark_schema

if TYPE_CHECKING:
    Block: TypeAlias = pa.Array[Any]
else:
    Block = pa.Array  # Spark evaluates the hints of the function, and at run time this class has no type parameter

BoundedDecoding = Callable[[Decode, Values, DecodingLimits], DecodedBlock]
_DECODERS_KEPT = 16


REJECTION, NUMBER = "_sluice_rejection", "_sluice_number"
"""The fields of a decoded struct beside its columns: why the value is rejected, a `REJECTION_ROW` that is null for a
decoded one; and the number of a rejected record that is kept in the driver's memory until the batch is staged, null for
all others. A partition that is computed twice gives the same numbers."""

BLOCK_FACTS = "_sluice_facts"
"""The last field of a decoded struct: in the first of each block what is known of its values beside their columns, as
`facts_text` writes it; null in all others."""

_MOST_KEPT, _MOST_KEPT_BYTES = 200, 2**18
"""Of each block, which has 10,000 values by default. A batch of a million values keeps at most 20,000 rejected records
and 26 MB in the driver; when there are more, the rejected records of the batch are read once more."""


def decoding_of(schema: ValueSchema) -> Callable[[Column], Column]:
    """Create the function that decodes a column of values into a column of structs.

    Parameters
    ----------
    schema: how the values are read. Its columns are the fields of the structs, before `REJECTION` and `NUMBER`.
    """
    struct, names = decoded_struct(schema.columns), [column.name for column in as_sent(schema.columns)]

    def decode(blocks: Iterator[Block]) -> Iterator[Block]:
        first, decode_bounded = task_number(), bounded_decoding()
        for block in blocks:
            decoded = None if decode_bounded is decode_apart else block_at_once(schema, block)
            if decoded is None:
                decoded = decode_bounded(partial(judged, schema), block.to_pylist(), schema.limits)
            yield _structs(schema, block, without_unavailable(decoded, names), first=first)
            first += len(block)

    # Otherwise Spark evaluates it a second time in the condition that separates decoded from rejected rows, and a
    # schema may have been registered in between.
    decoding: Callable[[Column], Column] = arrow_udf(decode, returnType=struct).asNondeterministic()  # type: ignore[call-overload]  # the kind follows from the hints of `decode`
    return decoding


def task_number() -> int:
    """The number of the first value of this task; that of the next task is larger by 2^40."""
    task = TaskContext.get()
    return (task.partitionId() if task is not None else 0) << 40


def bounded_decoding() -> BoundedDecoding:
    """How this task decodes: in this process, and in processes of their own when it has failed before."""
    task = TaskContext.get()
    return decode_apart if task is not None and task.attemptNumber() > 0 else decode_within


def judged(schema: ValueSchema, values: Values) -> DecodedBlock:
    """The columns of some values, and which are rejected."""
    return _json_block(schema, values) if schema.format == "json" else _binary_decoder(schema).decode(values)


def _structs(schema: ValueSchema, values: Block, block: DecodedBlock, *, first: int) -> Block:
    """A decoded block as structs. values: that were decoded. first: the number of the first of them."""
    fields, length = _fields_of(schema), len(values)
    rejections, numbers = rejection_column(block.rejections, length), pa.nulls(length, pa.int64())
    if block.rejections:
        numbers = pa.array(kept_numbers(values.to_pylist(), block.rejections, first=first), pa.int64())
    written_as = written_by_id(values, block.rejections) if schema.registry is not None else {}
    facts = facts_column(BlockFacts(undeclared=block.undeclared, written_as=written_as), length)
    columns = [*block.columns, rejections, numbers, facts]
    same = [one if one.type == to.type else one.cast(to.type) for one, to in zip(columns, fields, strict=True)]
    return pa.StructArray.from_arrays(same, fields=fields)


def facts_column(facts: BlockFacts, length: int) -> Any:
    """The facts of a block at its first row."""
    return at_first(facts_text(facts), length)


def at_first(text: str | None, length: int) -> Any:
    """A text at the first of some places; null at all others."""
    if text is None or not length:
        return pa.nulls(length, pa.string())
    return pa.concat_arrays([pa.array([text], pa.string()), pa.nulls(length - 1, pa.string())])


def block_at_once(schema: ValueSchema, block: Block) -> DecodedBlock | None:
    """The columns of a block that is read column by column, and which values are rejected; None when it has to be
    decoded value by value.
    """
    if schema.format == "json":
        return flawless_block(schema, block) if is_columnar(schema.columns) else None
    decoder, limits = _binary_decoder(schema), schema.limits
    found = decode_within(lambda _: decoder.columnar(block), (), limits)
    return decoder.completed(found, block, lambda values: decode_within(decoder.decode_values, values, limits))


def flawless_block(schema: ValueSchema, block: Block) -> DecodedBlock | None:
    """The columns of a block of JSON in which nothing is wrong; None when it has to be decoded value by value."""
    texts = block if schema.registry is None else _without_prefix(block)
    if texts is None:
        return None
    return decode_within(lambda _: _columnar_json(schema).decode(texts), (), schema.limits)


def _without_prefix(block: Block) -> Block | None:
    """The values behind the id of their schema; None when one does not begin with an id."""
    values: Any = block  # of bytes, which the types of these functions leave out
    prefix: Any = MAGIC_BYTE
    least: Any = pa.scalar(PREFIX_BYTES)
    are_framed: Any = pc.and_(pc.starts_with(values, prefix), pc.greater(pc.binary_length(values), least))
    if block.null_count or not pc.all(are_framed).as_py():
        return None
    texts: Block = pc.binary_slice(values, PREFIX_BYTES, stop=block.nbytes)  # without an end, Arrow 26 fails
    return texts


def _json_block(schema: ValueSchema, values: Values) -> DecodedBlock:
    decoder = _json_decoder(schema)
    if schema.registry is None:
        return decoder.decode(values)
    framed = [value is not None and len(value) > PREFIX_BYTES and value.startswith(MAGIC_BYTE) for value in values]
    texts = [
        value[PREFIX_BYTES:] if is_framed and value else None for value, is_framed in zip(values, framed, strict=True)
    ]
    block = decoder.decode(texts)
    unframed = {index: NO_SCHEMA_ID for index, value in enumerate(values) if value is not None and not framed[index]}
    return replace(block, rejections={**block.rejections, **unframed})


def rejection_column(rejections: Mapping[int, Rejection], length: int) -> Any:
    """The rejections of a block at their places, as `REJECTION`; null for the values that are decoded."""
    kind: Any = to_arrow_type(REJECTION_ROW)
    if not rejections:
        return pa.nulls(length, kind)
    rows = [rejection_row(rejection) for rejection in rejections.values()]
    columns = [pa.array([row[name] for row in rows], kind.field(name).type) for name in REJECTION_ROW.names]
    found = pa.StructArray.from_arrays(columns, fields=list(kind))
    place: list[int | None] = [None] * length
    for number, index in enumerate(rejections):
        place[index] = number
    return found.take(pa.array(place, pa.int64()))


def kept_numbers(
    values: Sequence[bytes | None], rejections: Mapping[int, Rejection], *, first: int
) -> list[int | None]:
    """The numbers of the rejected records of a block that are kept."""
    numbers: list[int | None] = [None] * len(values)
    size_bytes = 0
    for index in sorted(rejections)[:_MOST_KEPT]:
        size_bytes += len(values[index] or b"") + len(rejections[index].sentence)
        if size_bytes <= _MOST_KEPT_BYTES:
            numbers[index] = first + index
    return numbers


def _fields_of(schema: ValueSchema) -> list[pa.Field[Any]]:
    return [pa.field(each.name, to_arrow_type(each.dataType)) for each in decoded_struct(schema.columns)]


def decoded_struct(columns: Sequence[DeclaredColumn]) -> StructType:
    """The struct of a decoded value: its columns, and what is said of it."""
    decoded = spark_schema(columns).add(REJECTION, REJECTION_ROW).add(NUMBER, LongType())
    return decoded.add(BLOCK_FACTS, StringType())


@lru_cache(maxsize=_DECODERS_KEPT)
def _json_decoder(schema: ValueSchema) -> JsonBlockDecoder:
    return JsonBlockDecoder(as_sent(schema.columns), rejects_undeclared=schema.rejects_undeclared)


@lru_cache(maxsize=_DECODERS_KEPT)
def _columnar_json(schema: ValueSchema) -> ColumnarJson:
    return ColumnarJson(as_sent(schema.columns), rejects_undeclared=schema.rejects_undeclared)


@lru_cache(maxsize=_DECODERS_KEPT)
def _binary_decoder(schema: ValueSchema) -> BinaryBlockDecoder:
    """The decoder of this worker process, which outlives tasks: a schema is looked up and parsed once."""
    lookup = RegistryLookup(schema.registry) if schema.registry is not None else None
    return BinaryBlockDecoder(replace(schema, columns=as_sent(schema.columns)), lookup=lookup)
