"""Stages a batch: computes it once and writes every output of it into its staging table, before any becomes visible."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial, reduce

from py4j.protocol import Py4JJavaError
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as fn

from sluice.declarations.stream_declaration import QUARANTINE_OUTPUT
from sluice.errors import DeliveryError
from sluice.failure_reasons import FailureReason
from sluice.ledger.batch_findings import RuleResult
from sluice.ledger.batches import PublicationKey
from sluice.publication.chain import counting_twin
from sluice.publication.checked_commit import NothingToCommit, TableChange, commit_checked
from sluice.publication.crash_points import CrashPoint, Reached, unnoticed
from sluice.publication.mark_moves import plan_output
from sluice.publication.pyiceberg_committer import PyIcebergCommitter
from sluice.publication.staged_batch import BatchSummary, PlannedBatch, StagedBatch, StagedOutput
from sluice.publication.staging_table import load_staging_table, staged_batches
from sluice_spark.delivery.batch_audit import BatchAudit, RejectionHold, Results, require_unbroken
from sluice_spark.query.observed_rows import RejectedRecords
from sluice_spark.query.stream_outputs import part, row_counts, unite
from sluice_spark.session.columns import REJECTED_ROW
from sluice_spark.session.jvm import first_line
from sluice_spark.session.valid_text import MARK, has_invalid_text, invalid_rows, require_valid_text, valid_text
from sluice_spark.sinks.iceberg import IcebergTarget, as_staged

_log = logging.getLogger(__name__)

_INVALID, _RULE = "_sluice_invalid_text", "_sluice_rule_"
"""The names under which rows with text that is not UTF-8, and what the rules find, are counted."""


class InvalidTextError(DeliveryError):
    """A batch was not written, because a row has text that is not UTF-8."""

    failure_reason = FailureReason.VALUE_REFUSED


@dataclass(frozen=True, slots=True, kw_only=True)
class StagingLook:
    """One look at the staging tables.

    batches: the staged batch, by output. tables: the staging tables as they were loaded for the look, by output; none
        when they have to be loaded again.
    """

    batches: Mapping[str, StagedBatch]
    tables: Mapping[str, Table] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCounts:
    """What was counted while a batch was computed.

    rows: of each output, staged now or before; empty when the only output was written while it was computed, because
        then the snapshot has the number.
    rules: what the rules of each output found.
    """

    rows: Mapping[str, int] = field(default_factory=dict)
    rules: Results = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchStaging:
    """The staging of one run's batches.

    targets: the outputs, in the order in which they are staged; the quarantine is the last.
    carried: the outputs that have rows in a batch. rejected: the records of a batch that could not be decoded, which
        are known once it is computed.
    is_computed_once: whether a batch is kept while it is written: because it has several outputs or rules, or because
        computing it a second time would move its state twice.
    audit: the rules of the outputs. hold: holds a batch that rejects too many rows; unset where none is held for that.
    is_apart: whether rows with text that is not UTF-8 were separated already.
    rejected_as: the stream and the generation that rejected rows carry; unset: those of the batch.
    """

    catalog: Catalog
    targets: Sequence[IcebergTarget]
    carried: frozenset[str]
    rejected: RejectedRecords | None
    is_computed_once: bool
    audit: BatchAudit = field(default_factory=BatchAudit)
    hold: RejectionHold | None = None
    is_apart: bool = False
    reached: Reached = unnoticed
    rejected_as: tuple[str, int] | None = None
    _known_rules: Results = field(default_factory=dict)

    def find(self, batch: PlannedBatch) -> Mapping[str, StagedBatch]:
        """The batch as it is staged already, by output; without what was staged after a newer run had begun."""
        return self.look(batch).batches

    def look(self, batch: PlannedBatch) -> StagingLook:
        """Like `find`, with the staging tables that were read."""
        tables = {target.output: load_staging_table(self.catalog, target.names) for target in self.targets}
        found = {target.output: _staged_in(tables[target.output], target.names, batch) for target in self.targets}
        staged = {output: one for output, one in found.items() if one is not None}
        return StagingLook(batches=staged, tables=tables)

    def stage(self, rows: DataFrame, batch: PlannedBatch, outputs: Collection[str]) -> BatchCounts:
        """Compute a batch and stage some of its outputs; none when all are staged and only the state must move.

        Parameters
        ----------
        batch: as it is planned.
        outputs: the names of those that are not staged yet.

        Raises
        ------
        RuleBrokenError: when the batch breaks a rule that fails the run; nothing is staged.
        DeliveryError: when an output cannot be written.
        """
        missing = [target for target in self.targets if target.output in outputs]
        carried = [target for target in missing if target.output in self.carried and not self._joins_rejected(target)]
        others = [target for target in missing if target not in carried]
        if len(carried) == 1 and not self.is_computed_once:
            try:
                self._stage_one(rows, carried[0], batch.staged_as(carried[0].output, carried[0].mode))
            except InvalidTextError:
                if not self._has_quarantine:
                    raise
                return self._stage_apart(rows, batch, missing)
            if others:
                self.reached(CrashPoint.FIRST_OUTPUT_STAGED)
            return BatchCounts(rows=self._stage_rejected(others, batch, self._undecoded()))
        return self._stage_kept(rows, carried, others, batch)

    def _joins_rejected(self, target: IcebergTarget) -> bool:
        return self.rejected is not None and target.output == QUARANTINE_OUTPUT

    def _stage_kept(
        self,
        rows: DataFrame,
        carried: Sequence[IcebergTarget],
        others: Sequence[IcebergTarget],
        batch: PlannedBatch,
    ) -> BatchCounts:
        counts = Observation()
        outputs = [target.output for target in self.targets if target.output in self.carried]
        observed, judged = rows, self.audit.aggregates(rows)
        named = [column.alias(f"{_RULE}{place}") for place, column in enumerate(judged)]
        if outputs or named:
            row_columns = row_counts(rows, dict.fromkeys(outputs))
            observed = rows.observe(counts, *row_columns, *named, *self._count_of_invalid(rows))
        is_read_again = bool(carried or judged) or (bool(others) and QUARANTINE_OUTPUT in outputs)
        kept = observed.persist() if is_read_again else observed
        try:
            kept.write.format("noop").mode("overwrite").save()
            counted = {output: int(number) for output, number in counts.get.items()} if outputs or named else {}
            of_rows = [counted.pop(f"{_RULE}{place}") for place in range(len(named))]
            rules = self.audit.of_rows(of_rows, kept, batch.key, self.targets) or self._known_rules
            if carried or others:
                require_unbroken(rules, batch.key)
            if counted.pop(_INVALID, 0):
                return self._stage_apart(kept, batch, [*carried, *others], rules=rules)
            before = partial(self._staged_before, batch.key)
            rules = self.audit.of_batch(
                kept, batch.key, carried, rows=counted, found=rules, now=datetime.now(UTC), waiting=before
            )
            require_unbroken(rules, batch.key)
            undecoded = self._undecoded()
            beyond_limit = self._beyond_limit(batch.key, counted, undecoded)  # one that is staged counts for the next
            if carried or others:
                sampled = self.audit.with_samples(kept, rules) if carried else rules  # else it is not kept
                rules = {**sampled, **beyond_limit}
            for number, target in enumerate(carried):
                name = target.output
                summary = batch.staged_as(name, target.mode, rows=counted[name], rules=rules.get(name))
                self._stage_one(kept, target, summary)
                if number == 0 and len(carried) + len(others) > 1:
                    self.reached(CrashPoint.FIRST_OUTPUT_STAGED)
            if self.rejected is None:
                return BatchCounts(rows=counted, rules=rules)
            own_rows = counted.get(QUARANTINE_OUTPUT, 0)
            own = part(kept, QUARANTINE_OUTPUT) if own_rows else None
            beyond = rules.get(QUARANTINE_OUTPUT)
            rejected = self._stage_rejected(others, batch, undecoded, own=own, own_rows=own_rows, rules=beyond)
            return BatchCounts(rows={**counted, **rejected}, rules=rules)
        finally:
            kept.unpersist()

    def _staged_before(self, key: PublicationKey, target: IcebergTarget) -> Iterator[StagedBatch]:
        """The earlier batches that wait to become visible in an output. What another try has staged of this one does
        not, nor what a person has rejected or separated."""
        for one in plan_output(self.catalog, target.names).ready:
            if one.position < (key.generation, key.batch):
                yield one

    @property
    def _has_quarantine(self) -> bool:
        return any(target.output == QUARANTINE_OUTPUT for target in self.targets)

    def _count_of_invalid(self, rows: DataFrame) -> list[Column]:
        """A count of the rows with text that is not UTF-8, where there is a quarantine to put them into."""
        invalid = has_invalid_text(rows.schema) if self._has_quarantine and not self.is_apart else None
        return [] if invalid is None else [fn.count_if(invalid).alias(_INVALID)]

    def _stage_apart(
        self,
        rows: DataFrame,
        batch: PlannedBatch,
        missing: Sequence[IcebergTarget],
        *,
        rules: Results | None = None,
    ) -> BatchCounts:
        """Stage a batch with the rows apart whose text is not UTF-8: they go to the quarantine.

        Parameters
        ----------
        rules: what its row rules found; the rows apart do not carry it any more.
        """
        base = rows.persist()
        try:
            parts = {name: part(base, name) for name in self.carried}
            invalid = {
                name: found for name, one in parts.items() if (found := has_invalid_text(one.schema)) is not None
            }
            rejected = [
                invalid_rows(parts[name], found) for name, found in invalid.items() if name != QUARANTINE_OUTPUT
            ]
            own = [parts[QUARANTINE_OUTPUT]] if QUARANTINE_OUTPUT in parts else []
            valid = {
                name: one.where(~invalid[name]) if name in invalid else one
                for name, one in parts.items()
                if name != QUARANTINE_OUTPUT
            }
            united = unite({**valid, QUARANTINE_OUTPUT: reduce(DataFrame.unionByName, [*own, *rejected])})
            apart = replace(
                self,
                carried=self.carried | {QUARANTINE_OUTPUT},
                is_computed_once=True,
                is_apart=True,
                _known_rules=rules or {},
            )
            return apart.stage(united, batch, [target.output for target in missing])
        finally:
            base.unpersist()

    def _undecoded(self) -> tuple[int, DataFrame | None]:
        """The records of the batch that was just computed which could not be decoded: how many, and which."""
        return self.rejected.of_computed_batch() if self.rejected is not None else (0, None)

    def _beyond_limit(
        self, key: PublicationKey, counted: Mapping[str, int], undecoded: tuple[int, DataFrame | None]
    ) -> Results:
        """What holds a batch that rejects too many rows; nothing where it does not."""
        if self.hold is None:
            return {}
        written = sum(rows for output, rows in counted.items() if output != QUARANTINE_OUTPUT)
        rejected = counted.get(QUARANTINE_OUTPUT, 0) + undecoded[0]
        found = self.hold.judge(key, rejected=rejected, written=written)
        return {} if found is None else {QUARANTINE_OUTPUT: found}

    def _stage_rejected(
        self,
        missing: Sequence[IcebergTarget],
        batch: PlannedBatch,
        undecoded: tuple[int, DataFrame | None],
        *,
        own: DataFrame | None = None,
        own_rows: int = 0,
        rules: RuleResult | None = None,
    ) -> Mapping[str, int]:
        """Stage the quarantine of a computed batch: the records that could not be decoded, and the rows that the
        transformation itself rejects. Returns their number; nothing where no input is decoded.
        """
        if self.rejected is None:
            return {}
        count, rejected = undecoded
        found = [rows for rows in (own, rejected) if rows is not None]
        for target in missing:
            summary = batch.staged_as(target.output, target.mode, rows=count + own_rows, rules=rules)
            if found:
                self._write(self.with_origin(reduce(DataFrame.unionByName, found), batch.key), target, summary)
            else:
                self._stage_nothing(target, summary)
        return {QUARANTINE_OUTPUT: count + own_rows}

    def _stage_one(self, batch: DataFrame, target: IcebergTarget, summary: BatchSummary) -> None:
        rows = part(batch, target.output)
        if target.output == QUARANTINE_OUTPUT:
            rows = self.with_origin(rows, summary.key)
        self.stage_rows(rows, target, summary)

    def stage_rows(self, rows: DataFrame, target: IcebergTarget, summary: BatchSummary) -> None:
        """Stage the rows of one output under a summary; without any, by no Spark job.

        Raises
        ------
        DeliveryError: when they cannot be written.
        """
        if summary.rows == 0:
            self._stage_nothing(target, summary)
        else:
            self._write(rows, target, summary)

    def _write(self, rows: DataFrame, target: IcebergTarget, summary: BatchSummary) -> None:
        try:
            _append_to_staging(rows, target, summary)
        except (PySparkException, Py4JJavaError) as error:
            # A commit whose answer was lost is reported as a failure; the table shows whether it happened.
            if not _is_own(load_staging_table(self.catalog, target.names), target.names, summary):
                kind = InvalidTextError if MARK in str(error) else DeliveryError
                raise kind(
                    f"Batch {summary.key} cannot be written for {target.declared.table}: {first_line(error)}."
                ) from error
            _log.warning("batch %d: %s reported a failure and holds it", summary.key.batch, target.names.staging)

    def _stage_nothing(self, target: IcebergTarget, summary: BatchSummary) -> None:
        """Add an empty snapshot, which keeps the chain of batches whole, without a Spark job."""

        def plan(staging: Table) -> TableChange | NothingToCommit:
            if _is_own(staging, target.names, summary):
                return NothingToCommit(snapshot_id=None)
            return TableChange(operation=Operation.APPEND, summary=summary.properties())

        what = f"the empty batch {summary.key} in {target.names.staging}"
        commit_checked(PyIcebergCommitter(self.catalog), target.names.staging, plan, what=what)

    def with_origin(self, refused: DataFrame, key: PublicationKey) -> DataFrame:
        """The rows as the quarantine has them. What in them is not UTF-8 is repaired: they are there to be read, and
        no row of the quarantine may stop the stream that it left.
        """
        stream, generation = self.rejected_as or (key.stream, key.generation)
        return refused.select(
            fn.lit(stream).alias("stream"),
            fn.lit(generation).alias("generation"),
            fn.lit(key.batch).cast("long").alias("batch"),
            *(valid_text(field) for field in REJECTED_ROW),
            fn.lit(datetime.now(UTC)).alias("refused_at"),
        )


def _append_to_staging(rows: DataFrame, target: IcebergTarget, summary: BatchSummary) -> None:
    """Append rows to the staging table of a target as one snapshot. Columns match by name; no rows give an empty one.

    Rows to merge are staged with one row per key, so that a batch that cannot be merged is not staged.

    Parameters
    ----------
    rows: the rows with exactly the columns of the target, in any order, plus the operation column of a change feed.
    summary: the summary of the batch, written into the snapshot.
    """
    declared = target.declared
    options = {f"snapshot-property.{name}": value for name, value in summary.properties().items()}
    rows = require_valid_text(as_staged(rows, declared), place=f"output {target.output}, table {declared.table},")
    rows.writeTo(target.staging_identifier).options(**options).append()


def log_difference(key: PublicationKey, staged: Mapping[str, StagedBatch], counted: Mapping[str, int]) -> None:
    """Log an error when a batch that was computed again has another number of rows than it was staged with.

    The staged rows are published all the same. A static input that has changed since explains the difference;
    otherwise the transformation does not return the same rows for the same input, and the state now differs from the
    table.
    """
    for output, batch in staged.items():
        if batch.summary.is_separated:  # a person had rows taken out of it
            return
        if batch.summary.rows is not None and batch.summary.rows != counted[output]:
            _log.error(
                "batch %s was staged with %d rows for output %s and has %d now, computed again from the same input; "
                "what is staged counts",
                key,
                batch.summary.rows,
                output,
                counted[output],
            )


def _staged_in(table: Table, output: StagedOutput, batch: PlannedBatch) -> StagedBatch | None:
    """The batch, by key and offsets, as it is staged for an output; none when it is not."""
    staged = staged_batches(table, stream=output.stream, output=output.output)
    twins = [found for found in staged if not found.is_overtaken and batch.is_staged_as(found.summary)]
    return counting_twin(twins) if twins else None


def _is_own(table: Table, output: StagedOutput, batch: BatchSummary) -> bool:
    """Whether this run has staged a batch. What an earlier run left of a half-staged batch belongs to another
    computation, and is staged again even when it has no rows now."""
    found = _staged_in(table, output, batch)
    if found is None or found.summary.is_separated != batch.is_separated:
        return False
    return found.summary.token == batch.token
