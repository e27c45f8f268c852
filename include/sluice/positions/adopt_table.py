"""`sluice table adopt`: takes a table back that is not any more what its streams have published, by a plan.

    the streams are fenced off ─► the event ─► main moves, or each mark is set, or the ledger takes the new table's id

Purpose: a table that somebody rolled back or created again stops its streams, since rows that count as published are
not in it. Whether that was a mistake only a person knows. Each step is one commit, and what is done is not found again:
an adoption that is interrupted is completed by typing it again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import (
    AssertRefSnapshotId,
    AssertTableUUID,
    RemovePropertiesUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    TableUpdate,
)

from sluice.checkpoints.checkpoint_copies import copies_location, forget_copies_behind
from sluice.checkpoints.checkpoint_files import open_checkpoint_files
from sluice.declarations.loaded_declarations import Declarations
from sluice.errors import UsageError
from sluice.ledger.connection import Ledger
from sluice.ledger.events import EventAction, EventSubject, record_event
from sluice.ledger.generations import find_generation, record_identities
from sluice.ledger.next_generation import forget_batches_behind
from sluice.ledger.run_values import RunObservation
from sluice.positions.adoption import AdoptedOutput, Adoption, AdoptionWay
from sluice.positions.adoption_plan import AdoptionPlan, plan_adoption
from sluice.positions.rolled_back_table import removal_shown_at
from sluice.publication.checked_commit import NothingToCommit, TableChange, commit_checked
from sluice.publication.command_runs import CommandMode, run_of_command
from sluice.publication.crash_points import CrashPoint, Reached, unnoticed
from sluice.publication.mark_moves import MarkMove, summary_of_move
from sluice.publication.marks import position_in_history, rolled_back_marks
from sluice.publication.pyiceberg_committer import UNCERTAIN, PyIcebergCommitter
from sluice.settings import Settings
from sluice.sources.source_identities import output_table_name
from sluice.stored_keys import ADOPTION_TAG_PREFIX, REMOVED_BEFORE
from sluice.supervision.supervision_values import command_event
from sluice.tables.catalog import catalog_refusals
from sluice.tables.declared_tables import require_table
from sluice.tables.table_observation import removed_rows

_WEEK_MS = 7 * 24 * 3600 * 1000
"""How long the tag keeps what an undo has hidden, beside the age of its snapshot."""


def adopt_table(
    ledger: Ledger,
    catalog: Catalog,
    declarations: Declarations,
    settings: Settings,
    *,
    table: str,
    way: AdoptionWay,
    planned: str | None = None,
    asked_by: str,
    reached: Reached = unnoticed,
) -> AdoptionPlan:
    """Adopt a table as its plan says. A second try completes a first one; where nothing is wrong nothing changes.

    Parameters
    ----------
    planned: the digest of the plan that a person agreed to; unset: what there is now.
    reached: is called with BEGUN, and COMMITTED after each commit.

    Raises
    ------
    RunAlreadyLiveError: when a stream of the table has a live run.
    UsageError: when the plan is another one than was shown. UnpublishableError: when it is refused. Nothing is changed.
    DeliveryError, LakehouseError, LedgerError: when table or ledger cannot be written.
    """
    first = plan_adoption(ledger, catalog, declarations, settings, table=table, way=way)
    first.require_same(planned)
    if first.seen.is_empty:
        first.require_unrefused()
        return first
    with ExitStack() as fenced:
        runs = {
            one: fenced.enter_context(
                run_of_command(
                    ledger, one, CommandMode.ADOPTION, requested_by=asked_by, what=f"the adoption of {table}"
                )
            )
            for one in streams_of(first.seen)
        }
        ids = {one: run.run_id for one, run in runs.items()}
        plan = plan_adoption(ledger, catalog, declarations, settings, table=table, way=way, own_runs=ids)
        plan.require_same(first.digest)
        plan.require_unrefused()
        _record(ledger, plan, runs, asked_by=asked_by)
        reached(CrashPoint.BEGUN)
        _carry_out(ledger, catalog, plan.seen, runs, reached)
        for checkpoint, batch in plan.seen.forgets:
            store = open_checkpoint_files(copies_location(checkpoint), settings.object_store)
            forget_copies_behind(store, committed=batch)
    return plan


def streams_of(adoption: Adoption) -> tuple[str, ...]:
    """The streams of which a mark or a table id changes, by name."""
    return tuple(sorted({one.names.stream for one in adoption.outputs} | set(adoption.replaced)))


def _record(ledger: Ledger, plan: AdoptionPlan, runs: Mapping[str, RunObservation], *, asked_by: str) -> None:
    said = " ".join(step.sentence for step in plan.steps)
    event = command_event(EventAction.ADOPT_TABLE, plan.subject, by=asked_by, explanation=said, evidence=plan.evidence)
    record_event(ledger, replace(event, subject=EventSubject.TABLE))
    for stream, run in runs.items():
        record_event(ledger, replace(event, name=stream, run_id=run.run_id))


def _carry_out(
    ledger: Ledger, catalog: Catalog, adoption: Adoption, runs: Mapping[str, RunObservation], reached: Reached
) -> None:
    commit_adoption(catalog, adoption, runs, reached)
    for stream, number, batch in adoption.taken_back:
        forget_batches_behind(ledger, stream, generation=number, batch=batch)
    for stream, found in adoption.replaced.items():
        generation = find_generation(ledger, stream)
        if generation is not None:
            seen = {output_table_name(adoption.table): found.seen}
            record_identities(ledger, stream, generation.generation, seen, replacing=True)
            reached(CrashPoint.COMMITTED)


def commit_adoption(
    catalog: Catalog, adoption: Adoption, runs: Mapping[str, RunObservation], reached: Reached = unnoticed
) -> None:
    """Set main of a table, and then its marks. A second try completes a first one.

    Parameters
    ----------
    runs: those that keep the streams of the outputs at rest. reached: is called with COMMITTED after each commit.

    Raises
    ------
    UsageError: when the table is not any more what was planned on.
    """
    if adoption.goal is not None:
        _set_main(catalog, adoption, adoption.goal)
        reached(CrashPoint.COMMITTED)
    for one in adoption.outputs:
        if one.becomes is not None:
            _set_mark(catalog, adoption, one, token=runs[one.names.stream].token)
            reached(CrashPoint.COMMITTED)


def _set_main(catalog: Catalog, adoption: Adoption, goal: int) -> None:
    """Set main to the goal, while the table is what was planned on. What is hidden gets a tag in the same commit."""
    table = require_table(catalog, adoption.table)
    updates: list[TableUpdate] = [_reference(MAIN_BRANCH, goal, kind="branch", max_ref_age_ms=None)]
    head = table.current_snapshot()
    if head is not None and adoption.is_tagged:
        age_ms = max(0, table.metadata.last_updated_ms - head.timestamp_ms)
        name = f"{ADOPTION_TAG_PREFIX}{head.snapshot_id}"
        updates.insert(0, _reference(name, head.snapshot_id, kind="tag", max_ref_age_ms=age_ms + _WEEK_MS))
    updates.extend(_removals(table, goal))
    requirements = (
        AssertTableUUID(uuid=table.metadata.table_uuid),
        AssertRefSnapshotId(ref=MAIN_BRANCH, snapshot_id=adoption.head),
    )
    try:
        with catalog_refusals(f"set main of {adoption.table}", but_not=UNCERTAIN):
            catalog.commit_table(table, requirements, tuple(updates))
    except UNCERTAIN as error:
        if require_table(catalog, adoption.table).metadata.current_snapshot_id != goal:
            raise UsageError(
                f"Main of {adoption.table} was not set to snapshot {goal}: the catalog refused the commit, or its "
                f"answer was lost ({type(error).__name__}).",
                next_step="Look at the plan again: another writer may have committed.",
            ) from error


def _removals(table: Table, goal: int) -> Iterator[TableUpdate]:
    """What the table says of rows that it has removed follows main: else readers would miss what is there again."""
    snapshot = table.snapshot_by_id(goal)
    if snapshot is None:
        return  # the catalog refuses to set main to it
    shown = removal_shown_at(table, snapshot)
    if shown is not None and shown != removed_rows(table.properties):
        yield SetPropertiesUpdate(updates=dict(shown.entries()))
    elif shown is None and REMOVED_BEFORE in table.properties:
        yield RemovePropertiesUpdate(removals=[REMOVED_BEFORE])


def _reference(name: str, snapshot_id: int, *, kind: str, max_ref_age_ms: int | None) -> SetSnapshotRefUpdate:
    return SetSnapshotRefUpdate(
        ref_name=name,
        type="tag" if kind == "tag" else "branch",
        snapshot_id=snapshot_id,
        max_ref_age_ms=max_ref_age_ms,
        max_snapshot_age_ms=None,
        min_snapshots_to_keep=None,
    )


def _set_mark(catalog: Catalog, adoption: Adoption, one: AdoptedOutput, *, token: int) -> None:
    """Set a mark on main as it is, by an empty append. Older runs are fenced off by the token."""
    position = one.becomes
    if position is None:
        return
    wanted = replace(position, token=max(token, one.found.at.token))

    def plan(target: Table) -> TableChange | NothingToCommit:
        if all(found.output != one.names for found in rolled_back_marks(target)):
            return NothingToCommit(snapshot_id=None)  # an attempt of which the answer was lost
        if position_in_history(target, one.names) != one.held:
            raise UsageError(
                f"Main of {adoption.table} holds another batch of {one.names} than was planned on.",
                next_step="Look at the plan again; nothing was changed.",
            )
        summary = summary_of_move(one.names, wanted, MarkMove.ADOPTED)
        return TableChange(operation=Operation.APPEND, summary=summary, output=one.names, mark=wanted)

    what = f"the mark of {one.names} on {adoption.table}"
    commit_checked(PyIcebergCommitter(catalog), adoption.table, plan, what=what)
