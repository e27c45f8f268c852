"""The rejected rows of a backfill: adds new ones to the quarantine, and marks those that are published now."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain, islice

from pyiceberg.catalog import Catalog
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as fn

from sluice.backfill.backfill_plan import BackfillObservation
from sluice.backfill.replayable_rows import PresentSource
from sluice.declarations.stream_declaration import QUARANTINE_OUTPUT
from sluice.errors import IntervalChangedError
from sluice.ledger.backfill_attempts import BackfillAttemptKey
from sluice.processes.deadline import wait_until
from sluice.publication.interval_files import append_staged
from sluice.publication.marks import TargetState, load_target_state
from sluice.publication.resolved_rejections import (
    PAYLOAD_PLACE,
    SHARD_PLACE,
    TOPIC_PLACE,
    RejectedAt,
    Resolution,
    ResolvedRows,
    mark_resolved,
    require_resolution,
)
from sluice.publication.staged_batch import StagedOutput
from sluice.stored_keys import OUTPUT, ROWS
from sluice.tables.declared_tables import require_table
from sluice_spark.backfill.held_rows import stage_rows
from sluice_spark.session.columns import REJECTED_ROW, quoted_table

_log = logging.getLogger(__name__)

MOST_RESOLVED = 100_000
"""So many rows a backfill marks at most, which the driver holds with their places. The next one of the interval marks
others."""

_IS_HELD, _HELD, _NUMBER, _PLACE = "_sluice_is_held", "_sluice_held", "_sluice_number", "_sluice_place"
_NAMED, _PAYLOAD = "_sluice_named", "_sluice_payload"

_QUARANTINE_SECONDS = 30.0
"""How long the rejected rows of a batch are waited for: the stream publishes them right after the batch itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedRows:
    """The rejected rows of one attempt.

    staging: the name of their staging table. observe_sources: looks at what the stream reads. A row of a topic or table
        that was created again since is none of this attempt's: its record is not read, and another has its place.
    require_unchanged: raises when an input has changed since the plan.
    """

    attempt: BackfillAttemptKey
    key: str
    seen: BackfillObservation
    staging: str
    observe_sources: Callable[[], PresentSource]
    require_unchanged: Callable[[], None]

    @property
    def _output(self) -> StagedOutput:
        stream = self.attempt.stream
        return StagedOutput(stream=stream, output=QUARANTINE_OUTPUT, target=f"quarantine.{stream}")

    def publish(self, spark: SparkSession, catalog: Catalog, rejected: DataFrame, *, catalog_name: str) -> int:
        """Add the rows that the quarantine does not hold yet, counting repeated ones. Returns how many were added.

        Raises
        ------
        IntervalChangedError: when the stream has published the batch of the plan in its target and not yet in its
            quarantine, another backfill has added rejected rows meanwhile, or an input has changed; a later attempt
            sees them.
        DeliveryError, LakehouseError: when they cannot be staged or published.
        """
        head = self._settled_head(catalog)
        held = held_of_sources(self._held(spark, catalog_name, head), rejected, observe_sources=self.observe_sources)
        new = _not_held(rejected, held).persist()
        try:
            added = new.count()
            if added:
                self._append(catalog, new, head=head)
        finally:
            new.unpersist()
        return added

    def corrected(
        self, spark: SparkSession, catalog: Catalog, rejected: DataFrame | None, *, catalog_name: str
    ) -> Set[RejectedAt]:
        """The open rows whose records are read and not rejected any more; `MOST_RESOLVED` of them at most.

        Raises
        ------
        IntervalChangedError: as `publish` raises it.
        UnpublishableError: when the quarantine has no column yet by which they could be marked.
        """
        held, upto = self._held(spark, catalog_name, self._settled_head(catalog)), self.seen.position
        if upto is not None:
            upto_batch = fn.struct(fn.lit(upto.generation), fn.lit(upto.batch).cast("long"))
            is_read = fn.struct("generation", "batch") <= upto_batch
            held = held.where(is_read)
        known = _known(_not_again(open_rows(held), rejected))
        if (first := next(known, None)) is None:
            return frozenset()
        require_resolution(require_table(catalog, self._output.target))
        present = filter(self.observe_sources().has, chain([first], known))
        found = frozenset(islice(present, MOST_RESOLVED))
        if len(found) == MOST_RESOLVED:
            _log.warning(
                "%d rows of %s are resolved at most: backfill again for others", len(found), self._output.target
            )
        return found

    def resolve(self, catalog: Catalog, rows: Set[RejectedAt]) -> int:
        """Mark the rows whose records are published now. Returns how many."""
        resolved = ResolvedRows(
            stream=self.attempt.stream,
            rows=rows,
            resolution=Resolution.CORRECTED,
            by=self.key,
            at=datetime.now(UTC),
        )
        return mark_resolved(catalog, self._output.target, resolved)

    def _held(self, spark: SparkSession, catalog_name: str, head: int | None) -> DataFrame:
        """The rows of the stream in its quarantine."""
        reader = spark.read if head is None else spark.read.option("versionAsOf", str(head))
        rows = reader.table(quoted_table(catalog_name, self._output.target))
        return rows.where(fn.col("stream") == self.attempt.stream)

    def _settled_head(self, catalog: Catalog) -> int | None:
        position = self.seen.position
        wanted = (position.generation, position.batch) if position is not None else (0, 0)

        def has_batch(state: TargetState) -> bool:
            if state.mark is None:
                return True
            quarantined = state.position(self._output)
            return (quarantined.generation, quarantined.batch) >= wanted

        state = wait_until(
            lambda: load_target_state(catalog, self._output), has_batch, seconds=_QUARANTINE_SECONDS, poll_seconds=0.5
        )
        if not has_batch(state):
            raise IntervalChangedError(
                f"{self._output.target} does not have the rejected rows of batch {wanted[1]} of {self.attempt.stream} "
                "yet."
            )
        head = state.table.current_snapshot()
        return head.snapshot_id if head is not None else None

    def _append(self, catalog: Catalog, new: DataFrame, *, head: int | None) -> None:
        position = self.seen.position
        rows = new.select(
            fn.lit(self.attempt.stream).alias("stream"),
            fn.lit(position.generation if position is not None else 1).alias("generation"),
            fn.lit(position.batch if position is not None else 0).cast("long").alias("batch"),
            *REJECTED_ROW.names,
            fn.lit(datetime.now(UTC)).alias("refused_at"),
        )
        staged = stage_rows(catalog, [rows], staging=self.staging, target=self._output.target, key=self.key)
        self.require_unchanged()
        append_staged(
            catalog,
            self._output,
            key=self.key,
            head=head,
            staging=staged.table,
            staged=staged.files,
            summary={OUTPUT: QUARANTINE_OUTPUT, ROWS: str(staged.rows)},
        )


def held_of_sources(held: DataFrame, rejected: DataFrame, *, observe_sources: Callable[[], PresentSource]) -> DataFrame:
    """The rows that a quarantine holds at the places of rejected ones, without those of another source. Where it is not
    known of which of several inputs a row is, it is left out unless a row with its payload is rejected there.

    What is collected are the topics and the generations of the rows, however many these are.

    Parameters
    ----------
    observe_sources: is called when a row is held at the place of a rejected one.
    """
    again = rejected.select(_place().alias(_PLACE), fn.col("payload").alias(_PAYLOAD))
    placed = held.withColumns({_PLACE: _place(), _NAMED: _named()}).join(again, _PLACE, "left_semi")
    found = placed.groupBy("generation", _NAMED).agg(fn.first(_PLACE)).collect()
    present = observe_sources() if found else None
    bounds = [
        (generation, named, *present.another_before(RejectedAt(place=place, generation=generation, batch=0)))
        for generation, named, place in found
        if present is not None
    ]
    if not any(perhaps for *_, perhaps in bounds):
        return placed.select(*held.columns)
    names = "of_generation int, of_named string, surely long, perhaps long"
    before = fn.broadcast(held.sparkSession.createDataFrame(bounds, names))
    is_of = (fn.col("generation") == fn.col("of_generation")) & fn.col(_NAMED).eqNullSafe(fn.col("of_named"))
    judged, is_present = placed.join(before, is_of), fn.col("batch") >= fn.col("perhaps")
    unclear = judged.where(~is_present & (fn.col("batch") >= fn.col("surely")))
    is_same = (unclear[_PLACE] == again[_PLACE]) & unclear["payload"].eqNullSafe(again[_PAYLOAD])
    return judged.where(is_present).unionByName(unclear.join(again, is_same, "left_semi")).select(*held.columns)


def _named() -> Column:
    """By what the ids of a position's source are found: its topic, that it is a shard, or null, for any input."""
    position = fn.col("position")
    keys = fn.array_sort(fn.json_object_keys(position))
    is_topic, is_shard = (keys == fn.array(*map(fn.lit, sorted(place))) for place in (TOPIC_PLACE, SHARD_PLACE))
    return fn.when(is_topic, fn.get_json_object(position, "$.topic")).when(is_shard, fn.lit(""))


def open_rows(held: DataFrame) -> DataFrame:
    """The rows of a quarantine that are not resolved. A snapshot that is older than the column has no others."""
    return held.where(fn.col("resolved_at").isNull()) if "resolved_at" in held.columns else held


def _not_again(rows: DataFrame, rejected: DataFrame | None) -> DataFrame:
    """The rows of a quarantine that are not among those which are rejected now, with their places and contents."""
    placed = rows.withColumns({_PLACE: _place(), _PAYLOAD: _content()})
    if rejected is None:
        return placed
    again = rejected.select(_place().alias(_PLACE), _content().alias(_PAYLOAD))
    is_same = (placed[_PLACE] == again[_PLACE]) & placed[_PAYLOAD].eqNullSafe(again[_PAYLOAD])
    return placed.join(again, is_same, "left_anti")


def _known(placed: DataFrame) -> Iterator[RejectedAt]:
    """What rows are known by that have a place, partition by partition. placed: with it and the content."""
    known_by = placed.select(_PLACE, "generation", "batch", _PAYLOAD).dropna(subset=_PLACE)
    for place, generation, batch, payload in known_by.distinct().toLocalIterator():
        yield RejectedAt(place=place, generation=generation, batch=batch, payload=payload)


def _place() -> Column:
    """Where the record of a row stood, as `RejectedAt.place` has it."""
    return fn.coalesce(fn.col("position"), fn.concat(fn.lit(PAYLOAD_PLACE), fn.col("payload")))


def _content() -> Column:
    """What came, where several records may stand at one place, as `RejectedAt.payload` has it."""
    return fn.when(fn.col("position").isNotNull() & _named().isNull(), fn.col("payload"))


def _not_held(rejected: DataFrame, held: DataFrame) -> DataFrame:
    """The rejected rows that a quarantine does not hold, counting repeated ones, as `REJECTED_ROW`.

    What was corrected or replayed and is rejected again is not held; what a person has discarded is.

    A row is known by where it stood when one record alone can stand there, and else by what came, too: lines of a file,
    and values of a table whose other columns are equal, have one place. A row more is better than a row lost.

    Parameters
    ----------
    held: rows of the quarantine. Its snapshot may be older than the columns that say more than the reason.
    """
    if "resolution" in held.columns:
        held = held.where(fn.col("resolved_at").isNull() | (fn.col("resolution") == str(Resolution.DISCARDED)))
    both = rejected.select(*REJECTED_ROW.names, fn.lit(False).alias(_IS_HELD)).unionByName(
        held.select("position", "payload", fn.lit(True).alias(_IS_HELD)), allowMissingColumns=True
    )
    same = Window.partitionBy(_place(), _content())
    number = fn.row_number().over(same.orderBy(fn.col(_IS_HELD).desc()))
    ranked = both.withColumns({_NUMBER: number, _HELD: fn.count_if(fn.col(_IS_HELD)).over(same)})
    return ranked.where(~fn.col(_IS_HELD) & (fn.col(_NUMBER) > 2 * fn.col(_HELD))).select(*REJECTED_ROW.names)
