"""`sluice stream rewind`: takes a stream and its tables back to a batch together, by a plan. Readers go first.

    the stream is fenced off ─► the event ─► lost entries of its logs ─► staged batches go ─► main and marks
    ─► copies of later states go ─► the ledger forgets ─► the checkpoint

Purpose: after a wrong transformation or wrong input was published, table and stream have to go back together: a table
alone would miss rows, a stream alone would double them. Each step finds again what is left to do, so a rewind that is
interrupted is completed by typing it again. Until then no driver starts behind a half of it: the checkpoint, which is
written last, has committed what the tables do not hold any more, or a mark is behind main.

What it does not do: it brings nothing back from outputs other than Iceberg tables, nor rows of others.
Known limitation: a reader that runs meanwhile may read what goes between plan and commit; its next start says so.

With readers, each stream has a plan of its own, with its tables, refusals and readers. They are carried out in an
order in which no reader is behind what it reads, and only when none is refused; so an interrupted one is completed by
typing it again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pyiceberg.catalog import Catalog

from sluice.checkpoints.checkpoint_copies import copies_location, forget_copies_behind
from sluice.checkpoints.checkpoint_files import open_checkpoint_files
from sluice.declarations.loaded_declarations import Declarations
from sluice.errors import UsageError
from sluice.ledger.batches import find_batch
from sluice.ledger.connection import Ledger
from sluice.ledger.events import EventAction, record_event
from sluice.ledger.next_generation import forget_batches_behind
from sluice.ledger.run_values import RunObservation
from sluice.positions.adopt_table import commit_adoption
from sluice.positions.repair_writes import write_log_entries, write_repair
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
from sluice.supervision.supervision_values import command_event


@dataclass(frozen=True, slots=True, kw_only=True)
class RewindWithReaders:
    """A stream and its readers.

    stream, batch: what is taken back, and to where. The readers go back to their newest batch before that.
    """

    ledger: Ledger
    catalog: Catalog
    declarations: Declarations
    settings: Settings
    stream: str
    batch: int

    def plans(self) -> tuple[RewindPlan, ...]:
        """One plan for each stream, in the order in which they are carried out: that of the stream itself is the last.

        Raises
        ------
        SluiceError: as `plan_rewind`.
        """
        batches = self._batches()
        order = tuple(_last_first(self.stream, batches))
        return tuple(self._plan(name, batches[name].seen.batch, order[:place]) for place, name in enumerate(order))

    def carry_out(
        self, planned: Sequence[str], *, asked_by: str, reached: Reached = unnoticed
    ) -> tuple[RewindPlan, ...]:
        """Take all of them back, or none when one is refused.

        Parameters
        ----------
        planned: the digests of the plans that a person agreed to.

        Raises
        ------
        UsageError: when the plans are others than were shown. UnpublishableError: when one is refused.
        SluiceError: as `rewind_stream`; typing it again completes it.
        """
        plans = self.plans()
        if [one.digest for one in plans] != list(planned):
            raise UsageError(
                f"The plan to take {self.stream} back with its readers is another one than was shown.",
                next_step="Look at it again: something has changed since.",
            )
        for one in plans:
            one.require_unrefused()
        return tuple(self._carry_out(one, asked_by=asked_by, reached=reached) for one in plans)

    def _carry_out(self, plan: RewindPlan, *, asked_by: str, reached: Reached) -> RewindPlan:
        return rewind_stream(
            self.ledger,
            self.catalog,
            self.declarations,
            self.settings,
            stream=plan.subject,
            batch=plan.seen.batch,
            planned=plan.digest,
            asked_by=asked_by,
            reached=reached,
        )

    def _plan(self, stream: str, batch: int, taken: Sequence[str] = ()) -> RewindPlan:
        return plan_rewind(
            self.ledger, self.catalog, self.declarations, self.settings, stream=stream, batch=batch, taken=taken
        )

    def _batches(self) -> Mapping[str, RewindPlan]:
        """Each stream, planned to the batch that all it reads lets it keep. Going back further may reach more readers,
        and a reader of two streams goes back as far as both need."""
        found = {self.stream: self._plan(self.stream, self.batch)}
        waiting = [self.stream]
        while waiting:
            for reader in found[waiting.pop()].seen.readers:
                known = found.get(reader.stream)
                if reader.back_to is None or (known is not None and known.seen.batch <= reader.back_to):
                    continue
                found[reader.stream] = self._plan(reader.stream, reader.back_to)
                waiting.append(reader.stream)
        return found


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


def _last_first(stream: str, plans: Mapping[str, RewindPlan]) -> Iterator[str]:
    """The streams that go back, each behind its readers."""
    done: dict[str, None] = {}

    def visit(name: str, path: tuple[str, ...]) -> None:
        for reader in plans[name].seen.readers:
            if reader.stream in plans and reader.stream not in (*done, *path):
                visit(reader.stream, (*path, reader.stream))
        done[name] = None

    visit(stream, (stream,))
    return iter(done)
