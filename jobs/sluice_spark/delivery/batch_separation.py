"""Stages a held batch again without the rows that break the rules which hold it; those rows join its quarantine.

    quarantine with those rows ─► each output without them ─► the batch is held no more

The batch is held until the last output is staged, so that a crash in between leaves it to the same decision. What was
staged first stays beside it until the batch is cleared, and is what another attempt begins with.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial, reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from sluice.declarations.rule_declaration import RuleDeclaration, row_rules
from sluice.declarations.stream_declaration import QUARANTINE_OUTPUT
from sluice.errors import DeliveryError
from sluice.ledger.batch_findings import RuleResult
from sluice.publication.chain import counting_twin
from sluice.publication.crash_points import CrashPoint
from sluice.publication.staged_batch import BatchSummary, StagedBatch
from sluice.publication.staging_table import load_staging_table, staged_batches
from sluice_spark.delivery.batch_staging import BatchStaging
from sluice_spark.delivery.delivery_port import DeliveringRun
from sluice_spark.delivery.publisher import StagedByOutput
from sluice_spark.query.row_rules import FAILED, IGNORED, counts_of, found_by_rules, marks_of, rejection
from sluice_spark.query.stream_outputs import payload_of
from sluice_spark.session.columns import rejected_row
from sluice_spark.sinks.iceberg import IcebergTarget, read_staged


class InseparableError(DeliveryError):
    """The rows that break a rule cannot be found again. Nothing is staged again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Split:
    """The rows of an output. marked: with `FAILED`, kept. passing, failing: how many there are."""

    target: IcebergTarget
    whole: StagedBatch
    rules: tuple[RuleDeclaration, ...]
    marked: DataFrame
    passing: int
    failing: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSeparation:
    """The separation of one run's held batches.

    staging: of the run.
    """

    spark: SparkSession
    staging: BatchStaging
    run: DeliveringRun

    def whole(self, batch: StagedByOutput) -> StagedByOutput:
        """A batch as it was staged first, whatever was staged again of it; without outputs that are not declared."""
        if not any(staged.summary.is_separated for staged in batch.values()):
            return batch
        return self._first_of(batch)

    def without_failing(self, batch: StagedByOutput) -> StagedByOutput:
        """Stage a held batch again without the rows that break a rule which holds it.

        Returns
        -------
        The batch as it is staged now.

        Raises
        ------
        InseparableError: when the rules are not those by which it is held.
        DeliveryError, LakehouseError: when it cannot be staged.
        """
        first = self._first_of(batch)
        _require_all(batch, first)
        with ExitStack() as kept:
            splits = [
                self._split(self._target(output), staged, kept)
                for output, staged in first.items()
                if output != QUARANTINE_OUTPUT and staged.summary.rules is not None and staged.summary.rules.holds
            ]
            if not splits:
                raise InseparableError("It is held for the rows that are in its quarantine already.")
            self._stage_quarantine(first[QUARANTINE_OUTPUT], splits)
            self.staging.reached(CrashPoint.FIRST_OUTPUT_STAGED)
            for split in splits:
                rows = split.marked.where(fn.col(FAILED) == 0).drop(FAILED, IGNORED)
                rules = _settled(split.whole.summary.rules, separated=split.failing)
                summary = self._again(split.whole, rows=split.passing)
                self.staging.stage_rows(rows, split.target, replace(summary, rules=rules))
        self.staging.reached(CrashPoint.STAGED)
        return {output: self._newest(self._target(output), staged.summary) for output, staged in first.items()}

    def _first_of(self, batch: StagedByOutput) -> StagedByOutput:
        declared = {target.output: target for target in self.staging.targets}
        return {
            output: self._first(declared[output], staged.summary)
            for output, staged in batch.items()
            if output in declared
        }

    def _split(self, target: IcebergTarget, whole: StagedBatch, kept: ExitStack) -> _Split:
        found = whole.summary.rules
        held = found.held_by if found is not None else {}
        declared = {rule.name: rule for rule in row_rules(self.staging.audit.rules).get(target.output, ())}
        if unknown := held.keys() - declared.keys():
            names = ", ".join(sorted(unknown))
            raise InseparableError(f"{names} is no rule about single rows of {target.output}, or is not declared.")
        rules = tuple(declared[name] for name in held)
        rows = read_staged(self.spark, target, whole)
        marked = rows.select("*", *marks_of(rules, target.declared)).persist()
        kept.callback(marked.unpersist)
        failing = fn.count_if(fn.col(FAILED) != 0)
        number, broken, *counted = marked.agg(fn.count(fn.lit(1)), failing, *counts_of(rules)).collect()[0]
        (now,) = found_by_rules(counted, {target.output: rules}, judged={target.output: number}).values()
        # The counts of the batch are those of all rows; those that another rule has rejected are in the quarantine.
        gone = max((found.rows if found is not None else 0) - number, 0)
        for name, one in now.items():
            is_same = one.failed == held[name].failed - (held[name].rejected or 0)
            if not (is_same and 0 <= held[name].counted - one.counted <= gone):
                raise InseparableError(
                    f"{name} is broken by {one.failed:,} of {one.counted:,} rows of {target.output} now, and held the "
                    f"batch by {held[name].failed:,} of {held[name].counted:,}: it has changed since."
                )
            if held[name].condition not in (None, one.condition):
                raise InseparableError(
                    f"{name} of {target.output} has another condition than when it held the batch: other rows break it."
                )
        return _Split(target=target, whole=whole, rules=rules, marked=marked, passing=number - broken, failing=broken)

    def _stage_quarantine(self, whole: StagedBatch, splits: list[_Split]) -> None:
        target, key = self._target(QUARANTINE_OUTPUT), whole.summary.key
        failing = sum(split.failing for split in splits)
        found = [self.staging.with_origin(_rejected(split), key) for split in splits]
        if whole.data_files:
            found.append(read_staged(self.spark, target, whole))
        rows = reduce(partial(DataFrame.unionByName, allowMissingColumns=True), found)
        before = whole.summary.rows or 0
        summary = replace(self._again(whole, rows=before + failing), rules=_settled(whole.summary.rules))
        self.staging.stage_rows(rows, target, summary)

    def _again(self, whole: StagedBatch, *, rows: int) -> BatchSummary:
        run = self.run
        return replace(whole.summary, run_id=run.run_id, token=run.token, rows=rows, is_separated=True)

    def _target(self, output: str) -> IcebergTarget:
        return next(target for target in self.staging.targets if target.output == output)

    def _first(self, target: IcebergTarget, batch: BatchSummary) -> StagedBatch:
        return counting_twin([one for one in self._twins(target, batch) if not one.summary.is_separated])

    def _newest(self, target: IcebergTarget, batch: BatchSummary) -> StagedBatch:
        return counting_twin(self._twins(target, batch))

    def _twins(self, target: IcebergTarget, batch: BatchSummary) -> list[StagedBatch]:
        table = load_staging_table(self.staging.catalog, target.names)
        staged = staged_batches(table, stream=target.stream, output=target.output)
        return [one for one in staged if not one.is_overtaken and batch.is_staged_as(one.summary)]


def _require_all(batch: StagedByOutput, declared: StagedByOutput) -> None:
    """Require that a batch has a quarantine, and all of its outputs are declared."""
    if QUARANTINE_OUTPUT not in batch:
        raise InseparableError("It was staged when the stream had no quarantine.")
    if gone := batch.keys() - declared.keys():
        raise InseparableError(f"{', '.join(sorted(gone))} is no output of the stream any more.")


def _rejected(split: _Split) -> DataFrame:
    """The rows that break a rule, as rows of the quarantine without their batch."""
    columns = [name for name in split.marked.columns if name not in (FAILED, IGNORED)]
    payload = payload_of(fn.struct(*columns))
    row = rejected_row(rejection(split.rules), position=fn.lit(None).cast("string"), payload=payload)
    return split.marked.where(fn.col(FAILED) != 0).select(*row.values())


def _settled(found: RuleResult | None, *, separated: int | None = None) -> RuleResult | None:
    """What the rules found, once the rows that break those which held the batch are in the quarantine.

    Parameters
    ----------
    separated: how many rows that are.
    """
    if found is None:
        return None
    moved = {name: replace(one, on_failure="quarantine") for name, one in found.held_by.items()}
    if first := next(iter(moved), None):
        moved[first] = replace(moved[first], separated=separated)
    return replace(found, rules={**found.rules, **moved})
