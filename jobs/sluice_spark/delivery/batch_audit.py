"""What is found in a batch before anything of it is staged: by the rules of its outputs, and by a limit of rejections.

What is counted against that limit, and why: decision 0096.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial, reduce
from itertools import repeat

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from sluice.declarations.rule_declaration import UNIQUE_IN_TABLE, RuleDeclaration, batch_rules, row_rules
from sluice.declarations.run_declaration import RejectionLimit
from sluice.declarations.stream_declaration import QUARANTINE_OUTPUT
from sluice.errors import DeliveryError
from sluice.failure_reasons import FailureReason
from sluice.ledger.batch_findings import MAX_REJECTED, RuleCount, RuleResult, separated_rows
from sluice.ledger.batches import BatchObservation, PublicationKey, recorded_among
from sluice.ledger.connection import Ledger
from sluice.ledger.held_batches import rejected_within
from sluice.publication.staged_batch import StagedBatch
from sluice.stored_keys import OPERATION_COLUMN
from sluice_spark.query.batch_conditions import judge_batch
from sluice_spark.query.observed_rows import rows_read
from sluice_spark.query.row_rules import broken_rules, columns_of, found_by_rules, is_marked
from sluice_spark.query.stream_outputs import broken_rows, judged_counts, part, rule_counts
from sluice_spark.session.columns import TIMES, quoted
from sluice_spark.session.jvm import first_line
from sluice_spark.sinks.iceberg import DELETE, IcebergTarget, as_staged, read_staged

_log = logging.getLogger(__name__)

SAMPLED_RULES, SAMPLED_ROWS = 5, 3
"""Of so many rules that hold a batch, so many rows are kept that break one: they stay in a snapshot's summary."""

LONGEST_SAMPLE = 300
"""Characters of a row as JSON; a longer one is not kept, since it is read in a form."""

Results = Mapping[str, RuleResult]
"""What the rules of each output found, by output."""

Waiting = Callable[[IcebergTarget], Iterable[StagedBatch]]
"""Gives the batches that are staged for an output and may not be visible yet."""


class RuleBrokenError(DeliveryError):
    """A batch breaks a rule that fails the run."""

    failure_reason = FailureReason.RULE_BROKEN


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchAudit:
    """The rules of a stream's outputs.

    rules: by output. masked: the columns, in lower case, of which nothing is kept but counts.
    masked_of: those of a table of which no row is kept, in lower case: what streams before this one mask, too;
        none while that is not known.
    """

    rules: Mapping[str, Sequence[RuleDeclaration]] = field(default_factory=dict)
    masked: Collection[str] = ()
    masked_of: Callable[[str], Collection[str] | None] = lambda _: ()

    def aggregates(self, united: DataFrame) -> list[Column]:
        """What the pass that computes a batch counts for its row rules: the rows that are judged, and those of them of
        which a rule says anything; see `of_rows`."""
        judged = list(judged_counts(united, self.rules))
        return [*judged, fn.count_if(is_marked())] if judged else []

    def of_rows(
        self, counted: Sequence[int], kept: DataFrame, key: PublicationKey, targets: Iterable[IcebergTarget]
    ) -> Results:
        """What the row rules found. To count for each rule while a batch is computed would take longer than the rules
        themselves; afterwards it takes the few rows of which a rule says anything, and often there is none.

        Parameters
        ----------
        counted: the values of `aggregates`. kept: the rows of all outputs, which are computed once.
        """
        if not counted:
            return {}
        rules, tables = row_rules(self.rules), {target.output: target.declared.table for target in targets}
        *judged, marked = counted
        rows = dict(zip(rules, judged, strict=True))
        by_rule = kept.where(is_marked()).agg(*rule_counts(self.rules)).collect()[0] if marked else repeat(0)
        return {
            output: _result(key, output, table=tables.get(output, ""), rows=rows[output], rules=found)
            for output, found in found_by_rules(by_rule, rules, judged=rows).items()
        }

    def of_batch(
        self,
        kept: DataFrame,
        key: PublicationKey,
        targets: Iterable[IcebergTarget],
        *,
        rows: Mapping[str, int],
        found: Results,
        now: datetime,
        waiting: Waiting = lambda _: (),
    ) -> Results:
        """What all rules found, the batch rules of some outputs too.

        Parameters
        ----------
        kept: the rows of all outputs. targets: those whose rules are evaluated. rows: the number of rows by output.
        found: what the row rules found. waiting: the batches before this one that are staged for an output.

        Raises
        ------
        DeliveryError: when a rule cannot be evaluated.
        """
        judged = dict(found)
        for target in targets:
            name = target.output
            if not (wanted := batch_rules(self.rules.get(name, ()))):
                continue
            own = found.get(name) or _result(key, name, table=target.declared.table, rows=rows[name], rules={})
            judged[name] = replace(own, rules={**own.rules, **self._judge(kept, key, target, wanted, now, waiting)})
        return judged

    def with_samples(self, kept: DataFrame, found: Results) -> Results:
        """The same, with some rows that break each row rule which holds the batch: a person is to decide about them.

        Parameters
        ----------
        kept: the rows of all outputs, which are computed once.
        """
        return {output: self._with_samples(kept, result) for output, result in found.items()}

    def _with_samples(self, kept: DataFrame, result: RuleResult) -> RuleResult:
        declared = enumerate(row_rules(self.rules).get(result.output, ()))
        broken = [(place, rule) for place, rule in declared if rule.name in result.held_by][:SAMPLED_RULES]
        if not broken:
            return result
        if (masked := self._all_masked(result.table)) is None:
            return result
        sampled = {
            rule.name: replace(result.rules[rule.name], observed=_sample(kept, result.output, place, rule, masked))
            for place, rule in broken
        }
        return replace(result, rules={**result.rules, **sampled})

    def _judge(
        self,
        kept: DataFrame,
        key: PublicationKey,
        target: IcebergTarget,
        rules: Sequence[RuleDeclaration],
        now: datetime,
        waiting: Waiting,
    ) -> Mapping[str, RuleCount]:
        rows = as_staged(part(kept, target.output), target.declared)
        if target.declared.operation_column is not None:
            rows = rows.where(fn.col(quoted(OPERATION_COLUMN)) != DELETE)
        before = tuple(waiting(target)) if any(rule.type in UNIQUE_IN_TABLE for rule in rules) else ()
        present = partial(_present, rows.sparkSession, target, before)
        try:
            found = judge_batch(rows, rules, catalog=target.catalog, now=now, present=present)
        except (PySparkException, Py4JJavaError) as error:
            if before and tuple(waiting(target)) != before:  # one became visible and was cleared while it was read
                return self._judge(kept, key, target, rules, now, waiting)
            names = ", ".join(rule.name for rule in rules)
            raise DeliveryError(
                f"Batch {key} cannot be judged by the rules {names} of {target.declared.table}: {first_line(error)}."
            ) from error
        return {rule.name: self._without_masked(rule, found[rule.name], target.declared.table) for rule in rules}

    def _without_masked(self, rule: RuleDeclaration, found: RuleCount, table: str) -> RuleCount:
        """A count without what was observed in a masked column, or where it is not known which columns are masked."""
        columns = {column.lower() for _, column in rule.columns}
        if found.observed is None or not columns:
            return found
        masked = self._all_masked(table)
        return found if masked is not None and masked.isdisjoint(columns) else replace(found, observed=None)

    def _all_masked(self, table: str) -> frozenset[str] | None:
        found = self.masked_of(table)
        return None if found is None else frozenset((*self.masked, *found))


def _present(
    session: SparkSession, target: IcebergTarget, waiting: Sequence[StagedBatch], names: Sequence[str]
) -> DataFrame:
    """Some columns of the rows that a table has, and of those that wait to become visible in it. What became visible
    since the latter were listed is in both."""
    parts = (session.table(target.identifier), *(read_staged(session, target, one) for one in waiting))
    return reduce(DataFrame.unionAll, (one.select(*(_column_of(one, name) for name in names)) for one in parts))


def _column_of(rows: DataFrame, name: str) -> Column:
    """A column of rows, which may have been staged before the table had it."""
    is_there = name.lower() in (one.lower() for one in rows.columns)
    return fn.col(quoted(name)) if is_there else fn.lit(None).alias(name)


def _sample(kept: DataFrame, output: str, place: int, rule: RuleDeclaration, masked: Collection[str]) -> str | None:
    try:
        rows = broken_rows(kept, output, place)
        names = columns_of(rows, rule)
        if not names or any(name in masked for name in _names_within(rows.select(*map(quoted, names)).schema)):
            return None
        as_json = fn.to_json(fn.struct(*map(quoted, names)), {**TIMES, "ignoreNullFields": "false"})
        short = rows.select(as_json.alias("row")).where(fn.length("row") <= LONGEST_SAMPLE).limit(SAMPLED_ROWS)
        return json.dumps([row["row"] for row in short.collect()], ensure_ascii=False)
    except (PySparkException, Py4JJavaError) as error:  # the batch is counted already, and waits without them
        _log.warning("no rows of output %s that break %s are kept: %s", output, rule.name, first_line(error))
        return None


def _names_within(kind: DataType) -> Iterator[str]:
    """The names of all fields of a type, at any depth, in lower case."""
    match kind:
        case StructType():
            for field_within in kind:
                yield field_within.name.lower()
                yield from _names_within(field_within.dataType)
        case ArrayType():
            yield from _names_within(kind.elementType)
        case MapType():
            yield from _names_within(kind.keyType)
            yield from _names_within(kind.valueType)


def require_unbroken(results: Results, key: PublicationKey) -> None:
    """Refuse a batch that breaks a rule which fails the run.

    Raises
    ------
    RuleBrokenError: with the rules and their counts.
    """
    if broken := broken_rules({output: result.rules for output, result in results.items()}, "fail"):
        raise RuleBrokenError(
            f"Batch {key} breaks {broken}. Nothing of it was staged.",
            next_step="Correct the data or the rule, then start the stream again; the batch is then computed again.",
        )


def _result(key: PublicationKey, output: str, *, table: str, rows: int, rules: Mapping[str, RuleCount]) -> RuleResult:
    return RuleResult(
        stream=key.stream,
        generation=key.generation,
        batch=key.batch,
        output=output,
        table=table,
        rows=rows,
        rules=rules,
    )


_MOST_UNKNOWN = 100
"""Of how many batches without rejected rows it is not asked yet whether the ledger has them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """The rows of a batch that the ledger may not have yet."""

    rejected: int
    read: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectionHold:
    """The limit of a stream that holds batches beyond it.

    query_name: of the query whose inputs count their rows. quarantine: the table of the rejected rows.
    """

    spark: SparkSession
    query_name: str
    ledger: Ledger
    limit: RejectionLimit
    quarantine: str
    _own: dict[PublicationKey, _Rows] = field(default_factory=dict)

    def take_up(self, batches: Iterable[BatchObservation]) -> None:
        """Count the batches that earlier runs have staged, until the ledger has them."""
        self._own.update(
            {
                one.key: _Rows(rejected=one.refused_rows - separated_rows(one.rule_results), read=one.input_rows)
                for one in batches
            }
        )

    def judge(self, key: PublicationKey, *, rejected: int, written: int) -> RuleResult | None:
        """What holds a batch that was just computed; none where it stays within the limit, or rejects nothing.

        Parameters
        ----------
        rejected: its rejected rows. written: those of its outputs; they count where what was read is not counted.

        Raises
        ------
        LedgerError: when the ledger does not say what was rejected before: the run ends, and the batch comes again.
        """
        own = rows_read(self.spark, self.query_name)
        self._own[key] = _Rows(rejected=rejected, read=rejected + written if own is None else own)
        if not rejected and len(self._own) <= _MOST_UNKNOWN:
            return None
        self._forget_recorded(key)
        if not rejected:
            return None
        before = rejected_within(self.ledger, {key.stream: self.limit.window})[key.stream]
        read = before.read + sum(one.read for one in self._own.values())
        total = before.rows + sum(one.rejected for one in self._own.values())
        if not self.limit.is_exceeded(rejected=total, read=read):
            return None
        found = RuleCount(
            counted=read,
            failed=total,
            on_failure="hold",
            is_broken=True,
            observed=f"since {before.since:%Y-%m-%d %H:%M} UTC",
        )
        return _result(key, QUARANTINE_OUTPUT, table=self.quarantine, rows=rejected, rules={MAX_REJECTED: found})

    def _forget_recorded(self, judged: PublicationKey) -> None:
        """Leave out what the ledger has. Asked before the ledger's sums: a batch that is recorded in between counts
        twice then, and never not at all."""
        numbers = [key.batch for key in self._own if key.generation == judged.generation and key != judged]
        if not numbers:
            return
        recorded = recorded_among(self.ledger, judged.stream, generation=judged.generation, batches=numbers)
        for key in [key for key in self._own if key != judged and key.batch in recorded]:
            del self._own[key]
