"""`sluice stream rewind`: takes a stream and its tables back to a batch together, by a plan.

    the stream is fenced off ─► the event ─► lost entries of its logs ─► staged batches go ─► main and marks
    ─► copies of later states go ─► the ledger forgets ─► the checkpoint

Purpose: after a wrong transformation or wrong input was published, table and stream have to go back together: a table
alone would miss rows, a stream alone would double them. Each step finds again what is left to do, so a rewind that is
interrupted is completed by typing it again. Until then no driver starts behind a half of it: the checkpoint, which is
written last, has committed what the tables do not hold any more, or a mark is behind main.

What it does not do: it brings nothing back from outputs other than Iceberg tables, nor rows of others.
Known limitation: a reader that runs meanwhile may read what goes between plan and commit; its next start says so.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyiceberg.catalog import Catalog

from sluice.checkpoints.checkpoint_copies import copies_location, forget_copies_behind
from sluice.checkpoints.checkpoint_files import open_checkpoint_files
from sluice.declarations.loaded_declarations import Declarations
from sluice.ledger.batches import find_batch
from sluice.ledger.connection import Ledger
from sluice.ledger.events import EventAction, record_event
from sluice.ledger.next_generation import forget_batches_behind
from sluice.ledger.run_values import RunObservation
from sluice.positions.adopt_table import commit_adoption
from sluice.positions.checkpoint_writes import write_log_entries, write_repair
from sluice.positions.rewind import Rewind
from sluice.positions.rewind_plan import RewindPlan, plan_rewind
from sluice.publication.chain import AbandonedBatch, AbandonReason
from sluice.publication.command_runs import CommandMode, run_of_command
from sluice.publication.crash_points import CrashPoint, Reached, unnoticed
from sluice.publication.marks import load_target_state
from sluice.publication.staged_batch import StagedOutput
from sluice.publication.staging_table import clear_staging
from sluice.publication.undeclared_outputs import load_output_tables
from sluice.settings import Settings
from sluice.supervision.supervision_events import command_event


def rewind_stream(
    ledger: Ledger,
    catalog: Catalog,
    declarations: Declarations,
    settings: Settings,
    *,
    stream: str,
    batch: int,
    leaves_readers: bool = False,
    planned: str | None = None,
    asked_by: str,
    reached: Reached = unnoticed,
) -> RewindPlan:
    """Take a stream back as its plan says. A second try completes a first one; where it stands there nothing changes.

    Parameters
    ----------
    batch, leaves_readers: as for `plan_rewind`.
    planned: the digest of the plan that a person agreed to; unset: what there is now.
    reached: is called with BEGUN, CLEARED, COMMITTED, RECORDED and FILE_CHANGED.

    Raises
    ------
    RunAlreadyLiveError: when the stream has a live run.
    UsageError: when the plan is another one than was shown. UnpublishableError: when it is refused. Nothing is changed.
    CheckpointError, DeliveryError, LakehouseError, LedgerError: when something cannot be written; type it again then.
    """
    what = f"the rewind of {stream} to batch {batch}"
    with run_of_command(ledger, stream, CommandMode.REWIND, requested_by=asked_by, what=what) as run:
        plan = plan_rewind(
            ledger,
            catalog,
            declarations,
            settings,
            stream=stream,
            batch=batch,
            leaves_readers=leaves_readers,
            own_run_id=run.run_id,
        )
        plan.require_same(planned)
        plan.require_unrefused()
        rewind = plan.seen
        if rewind.is_empty:
            _forget_copies(rewind, settings)  # a first try may have ended before it
            return plan
        said = " ".join(step.sentence for step in plan.steps)
        event = command_event(
            EventAction.REWIND, stream, by=asked_by, explanation=said, run_id=run.run_id, evidence=plan.evidence
        )
        record_event(ledger, event)
        reached(CrashPoint.BEGUN)
        _carry_out(ledger, catalog, settings, rewind, run, reached)
    return plan


def _carry_out(
    ledger: Ledger, catalog: Catalog, settings: Settings, rewind: Rewind, run: RunObservation, reached: Reached
) -> None:
    changes = rewind.checkpoint if rewind.checkpoint is not None and not rewind.checkpoint.is_empty else None
    if changes is not None:
        write_log_entries(rewind.seen, changes, settings, reached)
    broken = {output for table in rewind.tables for output in table.broken}
    moves = any(table.commits is not None for table in rewind.tables)
    if not moves:  # no commit of this rewind will show a repair that a copy is of what was discarded
        _forget_copies(rewind, settings)
    _discard(ledger, catalog, rewind, [one for one in rewind.staged if one not in broken], run, reached)
    for table in rewind.tables:
        if table.commits is not None:
            commit_adoption(catalog, table.commits, {rewind.seen.stream: run}, reached)
    _discard(ledger, catalog, rewind, [one for one in rewind.staged if one in broken], run, reached)
    if moves:
        _forget_copies(rewind, settings)
    forget_batches_behind(ledger, rewind.seen.stream, generation=rewind.seen.number, batch=rewind.batch)
    reached(CrashPoint.RECORDED)
    if changes is not None:
        write_repair(rewind.seen, changes, settings, reached)


def _forget_copies(rewind: Rewind, settings: Settings) -> None:
    """Let the copies go that have committed or planned later batches. Not before the tables went back, which may be
    refused; until then, and where this is interrupted, a repair compares a copy with how the tables were set back."""
    copies = open_checkpoint_files(copies_location(rewind.seen.checkpoint), settings.object_store)
    forget_copies_behind(copies, committed=rewind.batch, planned=rewind.batch)


def _discard(
    ledger: Ledger,
    catalog: Catalog,
    rewind: Rewind,
    outputs: Sequence[StagedOutput],
    run: RunObservation,
    reached: Reached,
) -> None:
    """Clear the staged batches beyond the batch, before the tables go back: a start would publish them again. While
    main is behind its mark they cannot be cleared."""
    for output in outputs:
        _clear(ledger, catalog, output, rewind, token=run.token)
        reached(CrashPoint.CLEARED)


def _clear(ledger: Ledger, catalog: Catalog, output: StagedOutput, rewind: Rewind, *, token: int) -> None:
    """Clear what is staged of an output. What the ledger does not have yet of earlier batches stays."""
    staged = load_output_tables(catalog, output).staged
    place = (rewind.seen.number, rewind.batch)
    later = [AbandonedBatch(batch=one, reason=AbandonReason.NOT_PLANNED) for one in staged if one.position > place]
    earlier = {one.summary.key for one in staged if one.position <= place}
    unrecorded = {key for key in earlier if find_batch(ledger, key) is None}
    seen = load_target_state(catalog, output).position(output).token  # a ledger that was replaced gives smaller ones
    clear_staging(catalog, output, token=max(token, seen), abandoned=later, unrecorded=unrecorded)
