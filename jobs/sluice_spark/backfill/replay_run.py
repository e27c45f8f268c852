"""Replays rejected records of a stream: read again, computed with today's code, published once, marked as replayed."""

from __future__ import annotations

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import datetime
from functools import reduce
from typing import TYPE_CHECKING

from pyiceberg.catalog import Catalog
from pyspark.sql import DataFrame, SparkSession

from sluice.backfill.replay_lane import ReplayLane, replay_key
from sluice.backfill.replayable_rows import (
    PresentSource,
    Selection,
    arriving_input,
    may_have_published,
    read_open_rows,
    refusals_of,
    replayable,
    replayed_output,
)
from sluice.declarations.loaded_declarations import LoadedStream
from sluice.declarations.stream_declaration import QUARANTINE_OUTPUT
from sluice.errors import (
    DeliveryError,
    IntervalChangedError,
    StarvedError,
    UnpublishableError,
    UsageError,
    VerificationError,
)
from sluice.ledger.backfill_attempts import BackfillAttemptObservation, BackfillState, recent_attempts
from sluice.ledger.batches import continued_generations
from sluice.ledger.connection import Ledger, database_time
from sluice.ledger.events import REQUESTED, WRITE, Actor, Event, EventAction, record_event
from sluice.ledger.generations import find_generation
from sluice.ledger.locks import replay_lock
from sluice.ledger.refreshes import OPEN_STATES, newest_refresh
from sluice.operations import OperationPlan, OperationVerb
from sluice.publication.crash_points import CrashPoint, Reached, unnoticed
from sluice.publication.data_files import Writer
from sluice.publication.marks import load_target_state
from sluice.publication.resolved_rejections import RejectedAt
from sluice.publication.staging_layout import BACKFILL_NAMESPACE, drop_staging_copy
from sluice.settings import Settings
from sluice.tables.catalog import open_catalog
from sluice_spark.backfill.batch_outputs import blocking_rules, separated
from sluice_spark.backfill.held_rows import computing, stage_rows
from sluice_spark.backfill.replayed_records import (
    Computed,
    RecordsAgain,
    RejectedReading,
    require_apart,
    require_balance,
    require_not_visible,
    require_positions,
)
from sluice_spark.query.logical_plan import analyzed_plan, children_of, stateful_operators
from sluice_spark.query.stream_inputs import open_inputs
from sluice_spark.query.stream_outputs import open_targets, part, unite_outputs
from sluice_spark.query.stream_plan import plan_stream
from sluice_spark.query.transformation import transform
from sluice_spark.session.columns import quoted, quoted_table
from sluice_spark.sources import read_input

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject

_log = logging.getLogger(__name__)

_MOST_ATTEMPTS = 5
_RECENT_ATTEMPTS = 10_000

_ONE_BY_ONE = frozenset(
    {
        "CollectMetrics",
        "EventTimeWatermark",
        "Filter",
        "Join",
        "Project",
        "Repartition",
        "RepartitionByExpression",
        "StreamingRelation",
        "StreamingRelationV2",
        "SubqueryAlias",
        "View",
    }
)
"""The operators of which each record gives its rows by itself, by their names in an analyzed plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayEffect:
    """What a replay does, or did.

    open: the rows that were meant. by_source, by_stored: how many records were found in the source, and in the
    quarantine alone. left: how many rows cannot be replayed, by the reason. rejected: how many records are rejected
    again, by the kind. rows: of the target. visible: how many of these the target holds already, where that is allowed.
    digest: of the records and of what they give. marked: how many rows are resolved; 0 in a trial. snapshot_id: that
    made the rows visible; none in a trial, and where nothing was to be published.
    """

    key: str
    open: int
    by_source: int
    by_stored: int
    left: Mapping[str, int]
    rejected: Mapping[str, int]
    rows: int
    visible: int
    digest: str
    marked: int = 0
    snapshot_id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRun:
    """The replay of some rejected records of one stream.

    planned: the digest of the records that a person agreed to; unset when no person was asked.
    only_tries: whether nothing is published. allows_repeated: whether rows may be published that the target holds.
    reached: is called with PLANNED behind the fence, then COMPUTED, STAGED, QUARANTINED behind the claim, CHECKED
        before each commit, PUBLISHED, and RECORDED when the rows are marked.
    """

    settings: Settings
    ledger: Ledger
    stream: LoadedStream
    selection: Selection
    asked_by: str
    open_session: Callable[[], SparkSession]
    planned: str | None = None
    only_tries: bool = False
    allows_repeated: bool = False
    reached: Reached = unnoticed

    def work(self) -> ReplayEffect:
        """Replay the records, or try it.

        Raises
        ------
        UsageError: when the stream has no quarantine, or other records are open than were agreed to.
        UnpublishableError: when a replay would not be exact, with the reason and another way.
        StarvedError: when others changed the target during every attempt.
        LedgerError: when another replay of the stream is under way, or the ledger cannot be reached.
        DeliveryError, LakehouseError: when the records cannot be read, computed or published.
        """
        catalog = open_catalog(self.settings)
        with nullcontext() if self.only_tries else replay_lock(self.ledger, self.stream.name):
            for _ in range(_MOST_ATTEMPTS):
                try:
                    return self._attempt(catalog)
                except IntervalChangedError as changed:
                    _log.info("%s The records are read again.", changed)
        raise StarvedError(
            f"The target of {self.stream.name} changed {_MOST_ATTEMPTS} times while rejected records were replayed.",
            next_step="Find who writes into it, or try again later.",
        )

    def _attempt(self, catalog: Catalog) -> ReplayEffect:
        declaration = self.stream.declaration
        self._require_possible()
        lane = ReplayLane(catalog=catalog, output=replayed_output(declaration), quarantine=declaration.quarantine_table)
        now = database_time(self.ledger)
        key = replay_key(self.stream.name, now=now)
        if self.only_tries:
            with self._computed(lane, key, self._present(catalog)) as (_, effect, _resolved):
                return effect
        head = lane.fence(key, at=now)
        self.reached(CrashPoint.PLANNED)
        self._require_possible()  # a backfill that begins from now on changes the target behind the fence
        present = self._present(catalog)
        with self._computed(lane, key, present) as (computed, effect, resolved):
            self._require_planned(effect)
            return self._publish(lane, computed, effect, resolved, present, head=head) if resolved else effect

    def _publish(
        self,
        lane: ReplayLane,
        computed: Computed,
        effect: ReplayEffect,
        resolved: frozenset[RejectedAt],
        present: PresentSource,
        *,
        head: int,
    ) -> ReplayEffect:
        catalog, staging = lane.catalog, f"{BACKFILL_NAMESPACE}.{self.stream.name}__{lane.output.output}__replay"
        record_event(self.ledger, self._event(effect))
        try:
            staged = stage_rows(catalog, [computed.rows], staging=staging, target=lane.output.target, key=effect.key)
            self.reached(CrashPoint.STAGED)
            if self._present(catalog).seen != present.seen:  # then other records lie at the places that were read
                raise IntervalChangedError(f"An input of {self.stream.name} was created again while it was read.")
            if staged.rows != computed.count:
                raise DeliveryError(f"{staged.rows} rows were staged for {effect.key}, and {computed.count} computed.")
            lane.claim(effect.key, resolved)
            self.reached(CrashPoint.QUARANTINED)
            snapshot_id = lane.publish(
                effect.key, head=head, staging=staged.table, staged=staged.files, rows=staged.rows, reached=self.reached
            )
            self.reached(CrashPoint.PUBLISHED)
            marked = lane.settle(at=database_time(self.ledger))
            self.reached(CrashPoint.RECORDED)
        finally:
            drop_staging_copy(catalog, staging)
        return replace(effect, marked=marked, snapshot_id=snapshot_id)

    def _present(self, catalog: Catalog) -> PresentSource:
        return PresentSource.observed(self.ledger, self.stream.declaration, self.settings, catalog)

    def _require_possible(self) -> None:
        newest: dict[tuple[datetime, datetime], BackfillState] = {}
        for one in self._attempts():
            newest.setdefault((one.key.interval_start, one.key.interval_end), one.state)
        refresh = newest_refresh(self.ledger, self.stream.name)
        refusals = refusals_of(
            self.stream,
            has_open_backfill=bool({BackfillState.RUNNING, BackfillState.LOST} & set(newest.values())),
            has_open_refresh=refresh is not None and refresh.state in OPEN_STATES,
        )
        OperationPlan(
            verb=OperationVerb.REPLAY, subject=self.stream.name, seen=None, refusals=tuple(refusals)
        ).require_unrefused()

    def _attempts(self) -> tuple[BackfillAttemptObservation, ...]:
        return recent_attempts(self.ledger, self.stream.name, limit=_RECENT_ATTEMPTS)

    def _require_planned(self, effect: ReplayEffect) -> None:
        if self.planned is not None and self.planned != effect.digest:
            raise UsageError(
                f"The plan is out of date: other records of {self.stream.name} are open than were shown, or they give "
                "something else.",
                next_step="Look at the plan again. Nothing was published by this attempt; what an interrupted one has "
                "published is marked.",
            )

    @contextmanager
    def _computed(
        self, lane: ReplayLane, key: str, present: PresentSource
    ) -> Iterator[tuple[Computed, ReplayEffect, frozenset[RejectedAt]]]:
        """What the records give, the effect of a replay, and the rows that it resolves."""
        spark, catalog = self.open_session(), lane.catalog
        joins = _require_one_by_one(spark, self.stream, self.settings)
        found = arriving_input(self.stream.declaration)
        assert found is not None  # noqa: S101  # refused before
        chosen = self.selection.of(read_open_rows(catalog, self.stream.declaration))
        usable = replayable(
            chosen,
            found[1],
            is_present=present.has,
            generations=self._generations(catalog),
            may_be_published=may_have_published(self._attempts()),
            is_unknown=lane.has_unknown(),
        )
        reading = RejectedReading(
            spark=spark, stream=self.stream, settings=self.settings, catalog=catalog, present=present
        )
        again = reading.read(usable.rows)
        if joins and again.records > 1:
            raise UnpublishableError(
                f"{self.stream.name} joins its records with other rows. Whether one gives several is only seen when it "
                "is replayed alone. Nothing was published.",
                next_step="Replay one record at a time by `--position`, or backfill their interval.",
            )
        places, kept = again.by_source | again.by_stored, [*again.kept]
        try:
            with computing(f"Rejected records of {self.stream.name}"):
                computed = self._compute(spark, found[0], again, kept)
                require_balance(self.stream.name, computed, places, again.records)
                done = places - computed.again.keys()
                if computed.again:
                    alone = reading.read({place: usable.rows[place] for place in sorted(done)})
                    kept += alone.kept
                    require_apart(self.stream.name, computed, self._compute(spark, found[0], alone, kept))
                target = replayed_output(self.stream.declaration).target
                held = spark.read.table(quoted_table(self.settings.catalog.name, target))
                visible = require_not_visible(self.stream.name, computed, held, allows_repeated=self.allows_repeated)
            self.reached(CrashPoint.COMPUTED)
            effect = ReplayEffect(
                key=key,
                open=len(chosen),
                by_source=len(again.by_source),
                by_stored=len(again.by_stored),
                left=dict(Counter(usable.left) + Counter(again.left)),
                rejected=dict(Counter(computed.again.values())),
                rows=computed.count,
                visible=visible,
                digest=_digest(again, computed, visible),
            )
            yield computed, effect, usable.at(done)
        finally:
            for rows in kept:
                rows.unpersist()

    def _generations(self, catalog: Catalog) -> frozenset[int]:
        output = replayed_output(self.stream.declaration)
        state = load_target_state(catalog, output)
        newest = find_generation(self.ledger, self.stream.name)
        if state.mark is None or newest is None:
            return frozenset()
        generation = max(state.position(output).generation, newest.generation)  # one may have published nothing yet
        return continued_generations(self.ledger, self.stream.name, generation=generation) | {generation}

    def _compute(self, spark: SparkSession, arriving: str, again: RecordsAgain, kept: list[DataFrame]) -> Computed:
        inputs = {
            name: again.rows if name == arriving else read_input(spark, declared, self.settings)
            for name, declared in self.stream.declaration.inputs.items()
        }
        opened = open_inputs(self.stream, inputs, self.settings)
        outputs = transform(spark, self.stream, opened.rows)
        (target, *_) = targets = open_targets(spark, self.stream, outputs, catalog=self.settings.catalog.name)
        name = target.output
        outputs[name], invalid = separated(outputs[name], target, has_quarantine=True)
        united = (result := unite_outputs(self.stream, outputs, targets)).rows.persist()
        kept.append(united)
        if broken := blocking_rules(united, self.stream.rules):
            raise VerificationError(
                f"The rows of the records break {broken}. Nothing was published.",
                next_step="Correct the data or the rule, or replay the other records by `--position`.",
            )
        rows = part(united, name).select(*(quoted(one) for one in spark.table(target.identifier).columns))
        own = [part(united, QUARANTINE_OUTPUT)] if QUARANTINE_OUTPUT in result.outputs else []
        rejected = [*own, *invalid, *([opened.rejected[arriving]] if arriving in opened.rejected else [])]
        found = reduce(DataFrame.unionByName, rejected).collect() if rejected else []
        require_positions(self.stream.name, found)
        again_by_place = {str(row["position"]): row["kind"] or "by the transformation" for row in found}
        return Computed(rows=rows, count=rows.count(), again=again_by_place)

    def _event(self, effect: ReplayEffect) -> Event:
        return Event(
            name=self.stream.name,
            actor=Actor.person(self.asked_by),
            action=EventAction.REPLAY,
            reason=REQUESTED,
            explanation=f"{effect.by_source + effect.by_stored} rejected records give {effect.rows} rows to publish.",
            evidence={
                "key": effect.key,
                WRITE: Writer.of_attempt(effect.key).identity,
                "rejected_again": sum(effect.rejected.values()),
            },
        )


def _digest(again: RecordsAgain, computed: Computed, visible: int) -> str:
    """Of the records, from where each comes, and what they give: a record that its source has lost since lacks more."""
    seen = [sorted(again.by_source), sorted(again.by_stored), sorted(computed.again.items()), computed.count, visible]
    return hashlib.sha256(json.dumps(seen).encode()).hexdigest()


def _require_one_by_one(spark: SparkSession, stream: LoadedStream, settings: Settings) -> bool:
    """Refuse a stream whose rows depend on more than one record.

    Returns
    -------
    Whether a record may give several rows, because it is joined with others.

    Raises
    ------
    UnpublishableError: with the operator.
    """
    plan = plan_stream(spark, stream, settings)
    found = list(stateful_operators(plan.rows))
    made = transform(spark, stream, plan.inputs).values()
    names = [name for rows in made for name in _streaming_operators(analyzed_plan(rows))]
    found += [name for name in names if name not in _ONE_BY_ONE]
    if found:
        raise UnpublishableError(
            f"Records of {stream.name} cannot be replayed one by one: {found[0]} makes rows of several records, or "
            "several rows of one, or keeps a state that would not know them.",
            next_step="Backfill the interval of these records, or refresh the table "
            f"(`sluice stream refresh {stream.name}`).",
        )
    return "Join" in names


def _streaming_operators(plan: JavaObject) -> Iterator[str]:
    """The operators through which records flow; those of static inputs are others."""
    if plan.isStreaming():
        yield str(plan.nodeName())
        for child in children_of(plan):
            yield from _streaming_operators(child)
