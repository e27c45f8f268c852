"""The start of a run, from an open session to the query that it may start.

    settle a refresh ─► observe the checkpoint ─► compare what is read and written with what it was ─► plan the query
    ─► begin its inputs ─► compare the tables with the ledger

Only the files that the run was started for are run, and nothing is published before the last step. As a rule the tables
and the ledger agree; whatever made them disagree is repaired behind one door (`sluice.publication.repair`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyspark.sql import SparkSession

from sluice.backfill.replay_lane import ReplayLane
from sluice.backfill.replayable_rows import refusals_of, replayed_output
from sluice.checkpoints.checkpoint_files import open_checkpoint_files
from sluice.declarations.loaded_declarations import LoadedStream
from sluice.declarations.source_declarations import DeltaSource, JdbcSource
from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.errors import (
    CheckpointError,
    CheckpointStorageError,
    DivergedError,
    FilesDifferError,
    InputGapError,
    InputReplacedError,
    MarkError,
    SluiceError,
)
from sluice.failure_reasons import FailureReason
from sluice.ledger.batches import recent_batches, rejected_batches
from sluice.ledger.connection import Ledger, database_time
from sluice.ledger.generations import GenerationObservation
from sluice.ledger.refreshes import unsettled_refresh
from sluice.ledger.run_values import RunObservation
from sluice.maintenance.position_pins import pinned_tables
from sluice.maintenance.reading_position import SourcePosition, observe_reading_position
from sluice.maintenance.source_moves import require_planned
from sluice.positions.judge_position import disagreeing, judge_position
from sluice.positions.later_generation import require_newest_generation
from sluice.positions.observe_position import KNOWN_BATCHES, observe_position
from sluice.positions.stream_position import PositionFinding
from sluice.publication.repair import repair
from sluice.publication.start_check import (
    disagreements,
    observe_tables,
    refuse_set_back,
    require_newest_checkpoint,
)
from sluice.refresh.settle_refresh import settle_refresh
from sluice.settings import ObjectStoreSettings, Settings
from sluice.sources.iceberg_positions import BEGINNING, StreamOffset, history_of
from sluice.sources.input_gap import find_branch, find_gap
from sluice.sources.input_watch import InputChangedError, InputWatch
from sluice.sources.seen_schemas import SchemaSightings, see_tables
from sluice.sources.source_identities import PLANNED, Identities
from sluice.sources.table_starts import observe_files
from sluice.sources.unread_input import require_unchanged_files
from sluice.tables.catalog import open_catalog
from sluice.tables.declared_tables import load_table
from sluice_spark.delivery.delivery_port import TablesAtStart
from sluice_spark.query.stream_plan import StreamPlan, plan_stream
from sluice_spark.run.identity_check import check_identities, keep_identities
from sluice_spark.run.job import failure_of_error
from sluice_spark.run.run_checkpoint import RunCheckpoint, observe_checkpoint
from sluice_spark.run.table_beginning import begin_in_tables, require_reachable_starts
from sluice_spark.session.checkpoint_metadata import read_checkpoint
from sluice_spark.session.columns import described_fields

_log = logging.getLogger(__name__)


def require_same_files(stream: LoadedStream, run: RunObservation, *, host: str) -> None:
    """Require that this host holds the declaration and the code that the supervisor has read.

    A host with older files would run older code under the digest of the newer one, and its supervisor would never
    replace it. A file that was edited since the admission is refused as well: the next start follows at once, because
    failures of an earlier declaration do not count.

    Parameters
    ----------
    stream: as this host has it.
    run: as it was admitted.

    Raises
    ------
    FilesDifferError: when the digests differ.
    """
    if stream.digest != run.declaration_digest:
        raise FilesDifferError(
            f"Run {run.run_id} was started for the declaration of {stream.name} with the digest "
            f"{run.declaration_digest[:12]}. On {host}, {stream.file} with its code and schema files has the digest "
            f"{stream.digest[:12]}.",
            next_step="Bring the same files to every host; a file that was edited meanwhile needs nothing.",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStart:
    """What a run works with.

    run: with a token that its tables admit. checkpoint: as it was before the query starts.
    tables: what the tables have shown. sightings: keeps the schemas of what it reads.
    identities: the ids of what it reads and writes; of what is not there now, those that the generation knows.
    """

    settings: Settings
    catalog: Catalog
    run: RunObservation
    plan: StreamPlan
    checkpoint: RunCheckpoint
    tables: TablesAtStart
    identities: Identities
    sightings: SchemaSightings

    def require_unbroken_input(self) -> None:
        """Require that no snapshot is expired that the stream has not read. What earlier runs have staged is published
        before, so that only unread rows count as missing.

        Raises
        ------
        InputGapError: with what is missing.
        """
        declaration = self.plan.declaration
        if pinned_tables(declaration):
            require_unbroken_input(
                self.catalog, declaration, self.checkpoint.generation, object_store=self.settings.object_store
            )

    def observed_again(self, spark: SparkSession) -> RunStart:
        """The same start with its checkpoint as it is now."""
        checkpoint = replace(self.checkpoint, state=read_checkpoint(spark, self.checkpoint.location))
        return replace(self, checkpoint=checkpoint)

    @contextmanager
    def naming_changed_inputs(self, inputs: InputWatch) -> Iterator[None]:
        """Name what has become of an input when the query of the block fails. The readers of Spark and Iceberg notice
        some of it before the look ahead of a batch does, and say neither the input nor what helps.

        Raises
        ------
        InputGapError, InputReplacedError: as `require_unbroken_input` raises them.
        InputChangedError: when an input is another one; the next plan follows it or refuses it.
        """
        try:
            yield
        except (SluiceError, InputChangedError):
            raise
        except Exception as error:
            if failure_of_error(error).reason is FailureReason.SNAPSHOT_EXPIRED:
                with suppress(CheckpointStorageError):  # what the query has failed for says more
                    self.require_unbroken_input()
            try:
                inputs.look()
            except SluiceError as unanswered:  # what the query has failed for says more
                _log.warning("the inputs cannot be looked at: %s", unanswered)
            raise


def start_run(
    spark: SparkSession,
    settings: Settings,
    ledger: Ledger,
    stream: LoadedStream,
    run: RunObservation,
    *,
    sightings: SchemaSightings,
    is_again: bool = False,
    until: Mapping[str, StreamOffset] | None = None,
) -> RunStart:
    """Prepare a run in an open session.

    Parameters
    ----------
    sightings: keeps the schemas of the inputs, before what they do not fit refuses the start.
    is_again: whether the run has taken the tables already and plans again, so that they have seen its token.
    until: how far a new checkpoint may read its tables, by input; unset: as far as they go.

    Raises
    ------
    CheckpointError: when the checkpoint is not the one that the ledger has registered, or cannot follow a change of
        the declaration.
    DeclarationError: when an input cannot begin as declared.
    InputReplacedError, RolledBackError: when something has its name and is another one.
    LeaseLostError, UndeclaredOutputError, DeliveryError, LakehouseError: as `repair` raises them.
    """
    catalog = open_catalog(settings)
    if unsettled_refresh(ledger, stream.name) is not None:
        settle_refresh(catalog, ledger, stream.declaration)
    if stream.declaration.quarantine and not any(refusals_of(stream, has_open_backfill=False, has_open_refresh=False)):
        output, quarantine = replayed_output(stream.declaration), stream.declaration.quarantine_table
        ReplayLane(catalog=catalog, output=output, quarantine=quarantine).notice_rollback()
    found = observe_checkpoint(spark, ledger, stream, run_id=run.run_id, checkpoints_root=settings.checkpoints)
    generation, planned = found.generation.generation, found.state.newest_planned
    require_newest_generation(found.generation, stream.declaration, settings)
    require_newest_checkpoint(ledger, stream.declaration, generation=generation, planned=planned)
    checked = check_identities(found, settings, catalog)
    require_unchanged_files(stream.declaration, settings, checkpoint=found.location)
    see_tables(sightings, stream.declaration, catalog)
    plan = plan_stream(spark, stream, settings, checkpoint=found.location)
    _see_columns(sightings, plan)
    found.bind(plan)
    found = keep_identities(spark, plan, found, checked, settings, catalog)
    require_reachable_starts(spark, found, settings)
    checkpoint = begin_in_tables(spark, ledger, plan, found, settings, until=until)
    if checkpoint.state.newest_planned > found.state.newest_planned:
        # The tables of the plan may be older than the snapshot that the first batch reads.
        plan = plan_stream(spark, stream, settings, checkpoint=checkpoint.location)
    run, tables = _agreed(catalog, ledger, run, checkpoint, is_again=is_again)
    return RunStart(
        settings=settings,
        catalog=catalog,
        run=run,
        plan=plan,
        checkpoint=checkpoint,
        tables=tables,
        identities={**found.generation.identities, **checked.seen},
        sightings=sightings,
    )


def _see_columns(sightings: SchemaSightings, plan: StreamPlan) -> None:
    """Take the columns of tables of Delta and of databases as the plan reads them."""
    for name, rows in plan.inputs.items():
        match plan.declaration.inputs[name].declared_source.source:
            case DeltaSource(path=place) | JdbcSource(table=place):
                kind = plan.declaration.inputs[name].declared_source.kind
                columns = dict(described_fields(rows.schema))
                sightings.see_columns(name, f"{kind} table {place}", columns, answer=PLANNED)


def _agreed(
    catalog: Catalog, ledger: Ledger, run: RunObservation, checkpoint: RunCheckpoint, *, is_again: bool
) -> tuple[RunObservation, TablesAtStart]:
    """Compare the tables of a stream with its ledger, and repair them when they do not agree."""
    declaration, generation = checkpoint.stream.declaration, checkpoint.generation.generation
    tables = observe_tables(catalog, declaration)
    if checkpoint.state.newest_committed >= 0 and tables.are_before(generation):
        refuse_set_back(
            tables.outputs, generation=generation, recorded=recent_batches(ledger, run.stream, KNOWN_BATCHES)
        )
    recorded = rejected_batches(ledger, run.stream, generation=generation)
    unseen = run.token + 1 if is_again else run.token
    found = disagreements(tables, token=unseen, generation=generation, rejected=recorded)
    if found:
        run = repair(
            found,
            tables,
            catalog=catalog,
            ledger=ledger,
            declaration=declaration,
            run=run,
            checkpoint=checkpoint.position,
        )
        tables = observe_tables(catalog, declaration)
    return run, TablesAtStart(new_outputs=tables.unmarked, rejected=tables.rejected(generation))


@contextmanager
def naming_the_witness(settings: Settings, ledger: Ledger, stream: LoadedStream, run: RunObservation) -> Iterator[None]:
    """Say of a start that is refused, because tables, ledger and checkpoint do not agree, which of them it is and what
    writes it back. A start that is not refused looks at nothing for it."""
    try:
        yield
    except (CheckpointError, DivergedError, MarkError) as error:
        named = _witness_of(settings, ledger, stream, run)
        if named is None:
            raise
        raise type(error)(f"{error.message} The {named}.", next_step=named.next_step) from error


def _witness_of(
    settings: Settings, ledger: Ledger, stream: LoadedStream, run: RunObservation
) -> PositionFinding | None:
    """The first witness that disagrees; none when nothing is found, or it cannot be looked at."""
    with suppress(SluiceError):
        now, catalog = database_time(ledger), open_catalog(settings)
        seen = observe_position(ledger, catalog, stream.declaration, settings, now=now, own_run_id=run.run_id)
        return next(iter(disagreeing(judge_position(seen))), None)
    return None


def require_unbroken_input(
    catalog: Catalog,
    stream: StreamDeclaration,
    generation: GenerationObservation,
    *,
    object_store: ObjectStoreSettings,
) -> None:
    """Check that no snapshot is missing between where a stream continues and the newest one.

    Iceberg's source finds that out as well, and names neither the snapshots nor the rows.

    Raises
    ------
    InputGapError: when snapshots are missing: which, and how many rows they had.
    InputReplacedError: when an input was rolled back or replaced: what is withdrawn, and what is new.
    CheckpointError, DeliveryError, LakehouseError: when the checkpoint or a table cannot be read.
    """
    try:
        checkpoint = open_checkpoint_files(generation.checkpoint, object_store)
    except CheckpointError as error:  # a file system that only Spark reads: Iceberg's own check remains
        _log.debug("the input is not checked for a gap: %s", error)
        return
    position = observe_reading_position(catalog, checkpoint, stream, generation=generation.generation)
    for source in position.sources if position is not None else ():
        table = load_table(catalog, source.table)
        if table is not None:
            _require_unbroken(stream, source, table)


def _require_unbroken(stream: StreamDeclaration, position: SourcePosition, table: Table) -> None:
    _require_first_snapshots(stream, position, table)
    branch = find_branch(table, name=position.table, position=position.offset.snapshot_id)
    if branch is not None:
        raise InputReplacedError(
            f"Stream {stream.stream}, input {position.input}: {branch}.",
            next_step=f"`sluice stream continue {stream.stream} --dry-run` shows where it can continue, what stays in "
            "the outputs and what is read.",
        )
    gap = find_gap(table, name=position.table, position=position.offset.snapshot_id)
    if gap is not None:
        raise InputGapError(
            f"Stream {stream.stream}, input {position.input}: {gap}.",
            next_step=f"`sluice stream continue {stream.stream} --dry-run` shows whether these rows can still be read "
            "exactly once; it names the choices otherwise.",
        )
    require_planned(position, table, stream=stream.stream)


def _require_first_snapshots(stream: StreamDeclaration, position: SourcePosition, table: Table) -> None:
    """A reader that found its table empty continues with the oldest snapshot. That has to be the table's first one."""
    oldest = next(reversed(tuple(history_of(table))), None)
    if position.offset.snapshot_id != BEGINNING or oldest is None:
        return
    if not observe_files(table, oldest.snapshot_id).adds_all:
        raise InputGapError(
            f"Stream {stream.stream}, input {position.input}: {position.table} was empty when the stream began, and "
            "its first snapshots were expired before they were read; the oldest one that can be reached is "
            f"{oldest.snapshot_id}.",
            next_step=f"Read the whole table into a new generation: `sluice stream reset {stream.stream}`.",
        )
