"""Repairs what a start finds wrong in the tables and the ledger of a stream (`start_check`), before the run begins.

    raise the token ─► record forgotten rejections ─► leave former outputs ─► restore lost marks ─► reopen outputs

Every step may be repeated: after a crash in between, the next start finds what is left to do. While batches wait for a
former output nothing is changed at all, because a person has to decide about them.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from pyiceberg.catalog import Catalog
from sqlalchemy import select, update

from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.errors import LeaseLostError, MarkError
from sluice.ledger import run_leases
from sluice.ledger.batches import record_batch
from sluice.ledger.connection import Ledger
from sluice.ledger.run_leases import Run
from sluice.ledger.run_values import RunObservation
from sluice.ledger.runs import find_run
from sluice.publication.chain import CheckpointPosition, MarkPosition
from sluice.publication.mark_moves import MarkMove, leave_generations_before, move_mark, open_generation, take_over
from sluice.publication.marks import TargetState, find_lost_mark, load_target_state
from sluice.publication.staged_batch import (
    StagedOutput,
    recovered_observation,
    rejected_observation,
    staged_outputs,
)
from sluice.publication.staging_table import clear_staging, staged_batches
from sluice.publication.start_check import Disagreement, StreamTables, observe_tables
from sluice.publication.undeclared_outputs import (
    UndeclaredOutput,
    refuse_undeclared_outputs,
    with_declared_outputs,
)
from sluice.stored_keys import STAGING_CLOSED_AT
from sluice.tables.catalog import catalog_refusals
from sluice.tables.declared_tables import load_table

_log = logging.getLogger(__name__)


def repair(
    found: Collection[Disagreement],
    tables: StreamTables,
    *,
    catalog: Catalog,
    ledger: Ledger,
    declaration: StreamDeclaration,
    run: RunObservation,
    checkpoint: CheckpointPosition,
) -> RunObservation:
    """Repair what a start has found.

    Parameters
    ----------
    found, tables: from `disagreements` and `observe_tables`.
    run: the run that begins. checkpoint: the one that it continues from.

    Returns
    -------
    The run, with a token that its tables admit.

    Raises
    ------
    UndeclaredOutputError: when batches wait for a former output. Nothing is changed.
    LeaseLostError: when the token has to be raised and the run does not hold its lease.
    StaleTokenError: when a newer run has taken over.
    MarkError: when batches are staged and nothing shows which of them are visible.
    DeliveryError, LakehouseError: when a table cannot be read or changed.
    """
    generation = checkpoint.generation
    _log.warning("the tables and the ledger of %s do not agree: %s", run.stream, ", ".join(sorted(found)))
    refuse_undeclared_outputs(tables.former, generation=generation)
    if Disagreement.TOKEN in found:
        run = _with_token_above(run, tables.highest_token, ledger=ledger)
    if Disagreement.REJECTION in found:
        _record_rejections(ledger, declaration, tables, generation=generation)
    for former in tables.former:
        if not former.is_settled(generation):
            _record_visible(catalog, ledger, declaration, former, checkpoint=checkpoint)
            leave_output(catalog, former, token=run.token)
            if former.output not in {one.names.output for one in tables.outputs}:
                close_output(catalog, former, checkpoint=checkpoint)
    restore_marks(catalog, tables, token=run.token)  # not before what is staged for another table is cleared
    for output in tables.redeclared:
        reopen_output(catalog, output, token=run.token, checkpoint=checkpoint)
    return run


def with_raised_token(
    run: RunObservation, declaration: StreamDeclaration, *, ledger: Ledger, catalog: Catalog
) -> RunObservation:
    """The run of a command with a token that the tables of its stream admit, before it changes any of them.

    Raises
    ------
    LeaseLostError: when the token has to be raised and the run does not hold its lease.
    MarkError, LakehouseError: when the tables cannot be read.
    """
    seen = observe_tables(catalog, declaration).highest_token
    return run if seen < run.token else _with_token_above(run, seen, ledger=ledger)


def _with_token_above(run: RunObservation, seen: int, *, ledger: Ledger) -> RunObservation:
    raised = raise_token(ledger, run.run_id, above=seen)
    _log.warning(
        "the tables of %s have seen token %d and the ledger gave %d: an older copy of the ledger, or another one, has "
        "replaced it; this run continues with token %d",
        run.stream,
        seen,
        run.token,
        raised.token,
    )
    return raised


def restore_marks(catalog: Catalog, tables: StreamTables, *, token: int) -> None:
    """Restore the marks that a start has found lost.

    Raises
    ------
    StaleTokenError: when a newer run has taken over.
    MarkError: when batches are staged and nothing shows which of them are visible.
    """
    for one in tables.lost:
        restore_lost_mark(catalog, one.names, token=token)


def restore_lost_mark(catalog: Catalog, output: StagedOutput, *, token: int) -> None:
    """Set the mark of an output again where it was when the property was removed. Nothing happens when there is a mark,
    or never was one.

    Parameters
    ----------
    token: of the run; a mark that has seen a higher one refuses it.

    Raises
    ------
    StaleTokenError: when a newer run has taken over.
    MarkError: when batches are staged and nothing shows which of them are visible.
    RolledBackError, DivergedError, LakehouseError: as `load_target_state` raises them.
    """

    def wanted(state: TargetState) -> MarkPosition | None:
        return find_lost_mark(state.table, output) if state.mark is None else None

    state = load_target_state(catalog, output)
    if state.mark is not None:
        return
    lost = wanted(state)
    if lost is None:
        _refuse_unknown(catalog, output)
        return
    _log.warning(
        "the property %s of %s was removed; it is restored at generation %d, batch %d",
        output.mark_property,
        output.target,
        lost.generation,
        lost.batch,
    )
    move_mark(catalog, output, wanted, why=MarkMove.RESTORED, token=token)


def _refuse_unknown(catalog: Catalog, output: StagedOutput) -> None:
    staging = load_table(catalog, output.staging)
    if staging is None:
        return
    staged = [
        batch for batch in staged_batches(staging, stream=output.stream, output=output.output) if not batch.is_overtaken
    ]
    if staged:
        raise MarkError(
            f"{output.target} has no mark of {output}, and neither its metadata log nor its history shows one; "
            f"{len(staged)} batches are staged, {staged[0].summary.key} to {staged[-1].summary.key}, and it is unknown "
            "which of them are visible.",
            next_step=f"Discard them: `sluice batch abandon {output.stream} {output.output}`; or restore the property "
            f"{output.mark_property} from a copy of the table's metadata.",
        )


def _record_rejections(
    ledger: Ledger, declaration: StreamDeclaration, tables: StreamTables, *, generation: int
) -> None:
    """Record what a person rejected after the copy was made that has replaced the ledger.

    The marks have moved past the batch without its rows, so nothing publishes it; but without the record it would count
    as published, and sinks beside the tables would get its rows.
    """
    for number in tables.forgotten(generation, recorded=()):
        batches = {
            one.names.output: batch
            for one in tables.outputs
            for batch in one.staged
            if batch.position == (generation, number) and not batch.is_overtaken
        }
        if batches and record_batch(ledger, rejected_observation(declaration, batches)):
            _log.warning(
                "batch %d of %s was rejected, which its tables show and the ledger had forgotten; it is recorded again",
                number,
                declaration.stream,
            )


def _record_visible(
    catalog: Catalog,
    ledger: Ledger,
    declaration: StreamDeclaration,
    former: UndeclaredOutput,
    *,
    checkpoint: CheckpointPosition,
) -> None:
    """Record the batches that are visible in a former output, and that Spark does not run and report again."""
    done = [batch for batch in former.visible if not checkpoint.runs_again(batch.summary.key)]
    for batches in with_declared_outputs(catalog, staged_outputs(declaration), done):
        record_batch(ledger, recovered_observation(batches))


def leave_output(catalog: Catalog, former: UndeclaredOutput, *, token: int) -> None:
    """Keep older runs from publishing into a former output, and clear what is visible of it.

    Raises
    ------
    StaleTokenError: when a newer run has taken over.
    DeliveryError, LakehouseError: when a table cannot be changed.
    """
    if former.target is None or former.position is None:
        return
    names = StagedOutput(stream=former.stream, output=former.output, target=former.target)
    restore_lost_mark(catalog, names, token=token)
    take_over(catalog, names, token=token)
    clear_staging(catalog, names, token=token)


def close_output(catalog: Catalog, former: UndeclaredOutput, *, checkpoint: CheckpointPosition) -> None:
    """Note at which batch a stream continued without an output.

    Declared again, the output continues where the checkpoint stands then: the batches in between were not meant for it.

    Raises
    ------
    LakehouseError: when the staging table cannot be changed.
    """
    _note_closed(catalog, former.staging, f"{checkpoint.generation}:{checkpoint.newest_committed}")


def reopen_output(catalog: Catalog, output: StagedOutput, *, token: int, checkpoint: CheckpointPosition) -> None:
    """Open an output that is declared again where the checkpoint stands.

    Raises
    ------
    StaleTokenError: when a newer run has taken over.
    DeliveryError, LakehouseError: when a table cannot be changed.
    """
    leave_generations_before(catalog, output, generation=checkpoint.generation, token=token)
    open_generation(
        catalog,
        output,
        generation=checkpoint.generation,
        token=token,
        batch=checkpoint.newest_committed,
        is_new=load_target_state(catalog, output).mark is None,  # what was lost is restored by now
        is_reopened=True,
    )
    _note_closed(catalog, output.staging, None)


def _note_closed(catalog: Catalog, staging: str, value: str | None) -> None:
    table = load_table(catalog, staging)
    if table is None or (STAGING_CLOSED_AT in table.properties) == (value is not None):
        return
    with catalog_refusals(f"change the properties of {staging}"), table.transaction() as transaction:
        if value is None:
            transaction.remove_properties(STAGING_CLOSED_AT)
        else:
            transaction.set_properties({STAGING_CLOSED_AT: value})


def raise_token(ledger: Ledger, run_id: str, *, above: int) -> RunObservation:
    """Raise the fencing token of a run before the run publishes anything.

    The tables have seen a higher token when an older copy of the ledger replaced it, or another ledger.

    Parameters
    ----------
    above: the highest token that the tables have seen.

    Returns
    -------
    The run with its new token.

    Raises
    ------
    LeaseLostError: when the run does not hold its lease.
    LedgerError: when the run is unknown or the ledger cannot be reached.
    """
    with ledger.transaction() as connection:
        # Runs are locked before leases, as in `runs.take_over`: the other order would be a deadlock with it.
        connection.execute(select(Run.run_id).where(Run.run_id == run_id).with_for_update())
        token = run_leases.raise_above(connection, run_id=run_id, token=above)
        if token is not None:
            connection.execute(update(Run).where(Run.run_id == run_id).values(token=token))
    run = find_run(ledger, run_id)
    if token is None:
        raise LeaseLostError(f"Run {run_id} of stream {run.stream} does not hold its lease, so its token stays.")
    return run
