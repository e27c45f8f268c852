"""The outputs of a stream: their tables and sinks, whether the rows fit, and all their rows in one DataFrame.

Several outputs go through one streaming query: rows are tagged and united, and separated in each batch. Why one query
and not one for each output: decision 0015.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType

from sluice.declarations.loaded_declarations import LoadedStream
from sluice.declarations.output_declaration import IcebergOutput
from sluice.declarations.rule_declaration import RuleDeclaration, row_rules
from sluice.declarations.stream_declaration import QUARANTINE_OUTPUT
from sluice.errors import ColumnDifference, DeliveryError, SchemaError
from sluice.settings import Settings
from sluice_spark.query.row_rules import breaks, counts_of, is_rejected, marks_of, no_marks, rejection, rejects
from sluice_spark.session.columns import REJECTED_ROW, TIMES, rejected_row
from sluice_spark.sinks import Sink, open_sink
from sluice_spark.sinks.iceberg import IcebergTarget, has_known_operation, unknown_operation

_TAG, _JUDGED = "_sluice_output", "_sluice_judged"
"""The output of a row; the output by whose rules it was judged, also when it was rejected."""


def unite(
    outputs: Mapping[str, DataFrame],
    *,
    besides: Mapping[str, StructType] | None = None,
    marks: Mapping[str, Sequence[Column]] | None = None,
) -> DataFrame:
    """One DataFrame that holds the rows of all outputs: a tag, and a column for each output of which one is filled.

    A single output without rules stays as it is.

    Parameters
    ----------
    besides: the schemas of outputs without rows of their own, into which `move` brings some.
    marks: what the rules of each output say of its rows; see `marks_of`.
    """
    schemas = {name: rows.schema for name, rows in outputs.items()} | dict(besides or {})
    if len(schemas) == 1 and not marks:
        return next(iter(outputs.values()))
    nothing = no_marks()

    def beside(name: str) -> list[Column]:
        if not marks:
            return []
        judged = fn.lit(name) if name in marks else fn.lit(None).cast("string")
        return [judged.alias(_JUDGED), *marks.get(name, nothing)]

    tagged = [
        rows.select(
            fn.lit(name).alias(_TAG),
            *(
                fn.struct("*").alias(other) if other == name else fn.lit(None).cast(schema).alias(other)
                for other, schema in schemas.items()
            ),
            *beside(name),
        )
        for name, rows in outputs.items()
    ]
    return reduce(DataFrame.union, tagged)


def count_rejected_by_rules(united: DataFrame) -> int:
    """How many rows the rules have moved to the quarantine, from the result of `unite_outputs`."""
    if _JUDGED not in united.columns:
        return 0
    return united.where((fn.col(_TAG) == QUARANTINE_OUTPUT) & fn.col(_JUDGED).isNotNull()).count()


def judged_counts(united: DataFrame, rules: Mapping[str, Sequence[RuleDeclaration]]) -> Iterator[Column]:
    """Aggregates that count the rows which the row rules of each output judge, in the order of outputs; none where the
    rows are not judged."""
    if (judged := row_rules(rules)) and _JUDGED in united.columns:
        yield from (fn.count_if(fn.col(_JUDGED) == output) for output in judged)


def rule_counts(rules: Mapping[str, Sequence[RuleDeclaration]]) -> Iterator[Column]:
    """Aggregates that count what the row rules of each output say of its judged rows, in the order of outputs and
    rules: how many break a rule, and how many do not count."""
    judged = row_rules(rules)
    for output, declared in judged.items():
        yield from counts_of(declared, of=fn.col(_JUDGED) == output if len(judged) > 1 else None)


def broken_rows(united: DataFrame, output: str, place: int) -> DataFrame:
    """The rows of an output that break the rule in a place, without those that another rule rejects; none where the
    rows are not judged."""
    if _JUDGED not in united.columns:
        return part(united, output).where(fn.lit(False))
    is_broken = (fn.col(_TAG) == output) & (fn.col(_JUDGED) == output) & breaks(place)
    return united.where(is_broken).select(fn.col(f"{output}.*"))


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


def open_targets(
    spark: SparkSession, stream: LoadedStream, outputs: Mapping[str, DataFrame], *, catalog: str
) -> tuple[IcebergTarget, ...]:
    """The tables that outputs go into, the quarantine among them.

    Parameters
    ----------
    outputs: the rows of each output. catalog: the name of the catalog in Spark.

    Raises
    ------
    SchemaError: when an output does not fit its table.
    """
    targets = tuple(_targets(stream, catalog=catalog))
    for target in targets:
        if target.output == QUARANTINE_OUTPUT:
            _require_quarantine_fit(spark, stream, target, outputs.get(target.output))
        elif target.output in outputs:
            _require_table_fit(spark, stream, target, outputs[target.output])
    return targets


def open_sinks(stream: LoadedStream, outputs: Mapping[str, DataFrame], settings: Settings) -> tuple[Sink, ...]:
    """The sinks of the outputs that are not Iceberg tables.

    Raises
    ------
    DeclarationError, SettingsError: as `open_sink` raises them.
    DeliveryError: when an output does not fit its sink.
    """
    names = (name for name, declared in stream.declaration.outputs.items() if declared.iceberg is None)
    sinks = tuple(open_sink(stream, name, settings) for name in names)
    for sink in sinks:
        _require_sink_fit(stream, sink, outputs[sink.output])
    return sinks


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitedOutputs:
    """All outputs in one DataFrame, and which outputs have rows in it."""

    rows: DataFrame
    outputs: frozenset[str]


def unite_outputs(
    stream: LoadedStream, outputs: Mapping[str, DataFrame], targets: Iterable[IcebergTarget]
) -> UnitedOutputs:
    """All outputs in one DataFrame. Rows that break a rule, and changes of a feed whose operation is not declared, go
    to the quarantine, if there is one; it may have no other rows.
    """
    feeds = [target for target in targets if target.declared.operation_column is not None]
    tables = {target.output: target.declared for target in targets}
    judged = {name: rules for name, rules in row_rules(stream.rules).items() if name in outputs}
    marks = {name: marks_of(rules, tables.get(name)) for name, rules in judged.items()}
    rejecting = {name: rules for name, rules in judged.items() if rejects(rules)}
    if not stream.declaration.quarantine or not (feeds or rejecting):
        return UnitedOutputs(rows=unite(outputs, marks=marks), outputs=frozenset(outputs))
    besides = {} if QUARANTINE_OUTPUT in outputs else {QUARANTINE_OUTPUT: REJECTED_ROW}
    united = reduce(_reject_unknown_operations, feeds, unite(outputs, besides=besides, marks=marks))
    for name, rules in rejecting.items():
        row = rejected_row(rejection(rules), position=fn.lit(None).cast("string"), payload=payload_of(fn.col(name)))
        united = move(united, output=name, where=is_rejected(rules), into=QUARANTINE_OUTPUT, row=row)
    return UnitedOutputs(rows=united, outputs=frozenset((*outputs, QUARANTINE_OUTPUT)))


def payload_of(row: Column) -> Column:
    """The whole row, as the quarantine has it."""
    return fn.to_json(row, dict(TIMES))


def _targets(stream: LoadedStream, *, catalog: str) -> Iterator[IcebergTarget]:
    for name, declared in stream.declaration.outputs.items():
        if isinstance(declared.output, IcebergOutput):
            yield IcebergTarget(stream=stream.name, output=name, declared=declared.output, catalog=catalog)
    if stream.declaration.quarantine:
        table = IcebergOutput(table=stream.declaration.quarantine_table)
        yield IcebergTarget(stream=stream.name, output=QUARANTINE_OUTPUT, declared=table, catalog=catalog)


def _require_table_fit(spark: SparkSession, stream: LoadedStream, target: IcebergTarget, rows: DataFrame) -> None:
    table = spark.table(target.identifier).schema
    if target.declared.operation_column is not None:
        table = StructType([*table, StructField(target.declared.operation_column, StringType())])
    name = target.declared.table
    next_step = (
        f"Correct the transformation, or declare the columns in {name}.table.yaml and run `sluice table create {name}`."
    )
    require_fit(rows.schema, table, stream=stream.name, output=target.output, table_name=name, next_step=next_step)


def _require_quarantine_fit(
    spark: SparkSession, stream: LoadedStream, target: IcebergTarget, own: DataFrame | None
) -> None:
    """Check the quarantine for the rows that Sluice rejects too. own: those that the transformation rejects."""
    name, table = target.declared.table, spark.table(target.identifier).schema
    table = StructType([column for column in table if column.name in REJECTED_ROW.names])
    fits = partial(require_fit, table=table, stream=stream.name, output=target.output, table_name=name)
    fits(REJECTED_ROW, next_step=f"Run `sluice table create {name}`: it adds the columns that are new in this version.")
    if own is not None:
        fits(own.schema, next_step="Correct the transformation.")


def _require_sink_fit(stream: LoadedStream, sink: Sink, rows: DataFrame) -> None:
    if mismatches := list(sink.mismatches(rows.schema)):
        kind = stream.declaration.outputs[sink.output].kind
        raise DeliveryError(
            f"The output {sink.output} of stream {stream.name} does not fit {sink.place}: {'; '.join(mismatches)}.",
            next_step=f"Correct the transformation, or `outputs.{sink.output}.{kind}` in {stream.file.name}.",
        )


def _reject_unknown_operations(united: DataFrame, target: IcebergTarget) -> DataFrame:
    """Move the changes without a known operation to the quarantine: their position is their keys and their ordering,
    their payload the whole row.
    """
    declared, output = target.declared, target.output
    operation = field(output, declared.operation_column or "")
    places = dict.fromkeys((*declared.keys, *declared.ordering))
    rejected = rejected_row(
        unknown_operation(operation, declared),
        position=fn.to_json(fn.struct(*(field(output, name).alias(name) for name in places)), dict(TIMES)),
        payload=payload_of(fn.col(output)),
    )
    is_unknown = ~has_known_operation(operation, declared)
    return move(united, output=output, where=is_unknown, into=QUARANTINE_OUTPUT, row=rejected)


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
