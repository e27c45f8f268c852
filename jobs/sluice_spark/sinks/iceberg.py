"""Iceberg tables as outputs: their names, and the form in which rows are staged for a MERGE."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as fn

from sluice.declarations.output_declaration import IcebergOutput, OperationsDeclaration
from sluice.publication.staged_batch import StagedBatch, StagedMode, StagedOutput
from sluice.record_values.rejection import RejectionKind
from sluice.stored_keys import OPERATION_COLUMN
from sluice_spark.session.columns import comparable_columns, quoted, quoted_table, rejection_of

DELETE = "delete"
"""The operation of a staged row whose key is deleted from the table."""

_PLACE = "_sluice_place"
_IS_NEWEST = "_sluice_is_newest"
_IS_SAME = "_sluice_is_same"


@dataclass(frozen=True, slots=True, kw_only=True)
class IcebergTarget:
    """The target table of an Iceberg output.

    stream, output: the names of the stream and of the output.
    declared: the declaration of the output.
    catalog: the name of the catalog in Spark.
    """

    stream: str
    output: str
    declared: IcebergOutput
    catalog: str

    @property
    def names(self) -> StagedOutput:
        """The names of the output and its tables, as the publication uses them."""
        return StagedOutput(stream=self.stream, output=self.output, target=self.declared.table)

    @property
    def mode(self) -> StagedMode:
        """How its batches are published, for those that are staged now."""
        return StagedMode.of(self.declared)

    def as_staged(self, batch: StagedBatch) -> IcebergTarget:
        """The target as it was declared when a batch was staged."""
        return replace(self, declared=batch.summary.mode.applied_to(self.declared))

    @property
    def identifier(self) -> str:
        """The quoted name of the target table."""
        return quoted_table(self.catalog, self.declared.table)

    @property
    def staging_identifier(self) -> str:
        """The quoted name of the staging table."""
        return quoted_table(self.catalog, self.names.staging)


def with_operation(rows: DataFrame, declared: IcebergOutput) -> DataFrame:
    """Add the operation column: `insert`, `update` or `delete` for each row, null without a change feed.

    The values are those of the staging table, not of the feed, so that staged rows keep their meaning when the
    declaration changes. An unknown operation stops the batch; with a quarantine, such rows were rejected before.
    """
    if declared.operation_column is None:
        return rows.withColumn(OPERATION_COLUMN, fn.lit(None).cast("string"))
    operations = declared.operations or OperationsDeclaration()
    given = fn.col(quoted(declared.operation_column))
    meaning = (
        fn.when(given.isin(*operations.insert), fn.lit("insert"))
        .when(given.isin(*operations.update), fn.lit("update"))
        .when(given.isin(*operations.delete), fn.lit(DELETE))
        .otherwise(fn.raise_error(unknown_operation(given, declared)["reason"]))
    )
    return rows.withColumn(OPERATION_COLUMN, meaning).drop(declared.operation_column)


def as_staged(rows: DataFrame, declared: IcebergOutput) -> DataFrame:
    """The rows of a batch as they are staged: those of a merge with their operation, and one for each key."""
    return rows if declared.mode != "merge" else one_row_per_key(with_operation(rows, declared), declared)


def read_staged(session: SparkSession, target: IcebergTarget, batch: StagedBatch) -> DataFrame:
    """The rows of one staged batch: what its snapshot added to the previous one."""
    if batch.parent_id is None:
        return session.read.option("versionAsOf", str(batch.snapshot_id)).table(target.staging_identifier)
    reader = session.read.option("start-snapshot-id", str(batch.parent_id))
    return reader.option("end-snapshot-id", str(batch.snapshot_id)).table(target.staging_identifier)


def has_known_operation(given: Column, declared: IcebergOutput) -> Column:
    """Whether the operation of a change is declared; null is not."""
    return fn.coalesce(given.isin(*_known(declared)), fn.lit(False))


def unknown_operation(given: Column, declared: IcebergOutput) -> Mapping[str, Column]:
    """Why a change whose operation is not declared is rejected, as the columns of a `REJECTION_ROW`."""
    known = fn.lit(f"; for {declared.table}, known are {', '.join(_known(declared))}")
    detail = fn.concat(fn.coalesce(given, fn.lit("null")), known)
    return rejection_of(RejectionKind.UNKNOWN_OPERATION, path=declared.operation_column or "", detail=detail)


def _known(declared: IcebergOutput) -> tuple[str, ...]:
    operations = declared.operations or OperationsDeclaration()
    return (*operations.insert, *operations.update, *operations.delete)


def one_row_per_key(rows: DataFrame, declared: IcebergOutput) -> DataFrame:
    """Keep the newest row of each key by the columns of the ordering. A row that occurs twice counts once.

    Two different rows of a key of which none is newer stop the batch: nothing says which of them is right. Without an
    ordering there is no newest row, so a second row of a key stops the batch: Spark itself would insert both when the
    key is new.
    """
    keys = [quoted(key) for key in declared.keys]
    if declared.ordering:
        return _newest_of_each(rows, keys, declared)
    message = fn.concat(fn.lit(f"{declared.table}: two rows of a batch have the key "), _key_text(keys))
    counted = rows.withColumn(_PLACE, fn.count(fn.lit(1)).over(Window.partitionBy(*keys)))
    return counted.where(fn.when(fn.col(_PLACE) > 1, fn.raise_error(message)).otherwise(fn.lit(True))).drop(_PLACE)


def _newest_of_each(rows: DataFrame, keys: list[str], declared: IcebergOutput) -> DataFrame:
    ordering = [fn.col(quoted(column)) for column in declared.ordering]
    content = comparable_columns(rows)
    # The hash is an order only: whether two rows are the same is seen value by value.
    newest_first = [*(column.desc_nulls_last() for column in ordering), fn.xxhash64(*content)]
    in_order = Window.partitionBy(*keys).orderBy(*newest_first)
    ranked = rows.withColumns(
        {
            _PLACE: fn.row_number().over(in_order),
            _IS_NEWEST: fn.struct(*ordering).eqNullSafe(fn.first(fn.struct(*ordering)).over(in_order)),
            _IS_SAME: fn.struct(*content).eqNullSafe(fn.first(fn.struct(*content)).over(in_order)),
        }
    )
    names = ", ".join(declared.ordering)
    message = fn.concat(
        fn.lit(f"{declared.table}: two different rows of a batch have the key "),
        _key_text(keys),
        fn.lit(f" and the same {names}, so that none is the newest; `ordering_columns` can name more columns"),
    )
    is_tie = fn.col(_IS_NEWEST) & ~fn.col(_IS_SAME)
    is_kept = fn.when(is_tie, fn.raise_error(message).cast("boolean")).otherwise(fn.col(_PLACE) == 1)
    return ranked.where(is_kept).drop(_PLACE, _IS_NEWEST, _IS_SAME)


def _key_text(keys: list[str]) -> Column:
    """The key of a row as JSON: one line of plain text whatever its values are, with bytes in Base64."""
    return fn.to_json(fn.struct(*keys), {"ignoreNullFields": "false"})
