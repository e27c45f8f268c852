"""`sluice stream repair`: writes the witness of a position that disagrees back from the others, as its plan shows.

    the ledger's row of the generation ─► staging tables that cannot be read are emptied
        ─► the checkpoint: its `metadata` goes, files go, entries come, `metadata` comes

Purpose: after a checkpoint was lost, damaged, or restored from an older copy, or a ledger was, others start again and
double or lose rows. How it works: `observe_position`, `judge_position` and `decide_repair` say what is written;
generation, query and marks stay, so that nothing becomes visible twice. No run starts from a checkpoint without its
`metadata`, so a repair that is interrupted is completed by another one.

State that is lost comes from a copy that a stop has made (`restore_copy`). Where that is older than the tables, the
next run takes it through the batches between (`decide_replay`).

What it does not do: it computes no lost state again, nor what a source keeps in the checkpoint alone.
Where the checkpoint cannot be written back, a generation that the ledger forgot is all the same: without it no reset is
possible, and no rewind to an earlier state. A table that was set back or created again has remedies of its own, and
they come first.
Known limitation: of a driver whose run a lost ledger has forgotten nothing is known; its next heartbeat ends it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyiceberg.catalog import Catalog

from sluice.checkpoints.checkpoint_layout import METADATA, query_id_in
from sluice.declarations.loaded_declarations import LoadedStream
from sluice.ledger.batches import recent_batches, rejected_batches
from sluice.ledger.connection import Ledger, database_time
from sluice.ledger.events import EventAction, record_event
from sluice.ledger.generations import restore_generation
from sluice.ledger.next_generation import count_batches_behind, forget_batches_behind
from sluice.ledger.refreshes import RefreshState, unsettled_refresh
from sluice.ledger.run_leases import LEASE_SECONDS
from sluice.ledger.run_values import RunObservation
from sluice.ledger.runs import recent_runs
from sluice.operations import OperationPlan, OperationVerb, Refusal, RefusalReason, Stake, steps_of
from sluice.positions.judge_position import disagreeing, is_written_back, judge_position
from sluice.positions.observe_position import REPLAYED_BATCHES, observe_position
from sluice.positions.repair_decision import CheckpointRepair, refusal_of_unmarked
from sluice.positions.repair_writes import (
    record_visible,
    sentence_of_forgotten,
    sentence_of_rows,
    sentences_of_files,
    sentences_of_repetition,
    write_repair,
)
from sluice.positions.restore_copy import decide_write
from sluice.positions.source_reach import SourceReach, refuse_gone_input
from sluice.positions.stream_position import Agreement, PositionFinding, StreamPosition, Witness
from sluice.publication.command_runs import CommandMode, find_left_driver, run_of_command
from sluice.publication.crash_points import CrashPoint, Reached, unnoticed
from sluice.publication.staging_layout import empty_staging_table
from sluice.settings import Settings
from sluice.supervision.supervision_values import command_event


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """What a repair writes.

    generation: the one that the ledger gets; unset when it has it. query_id: its query.
    checkpoint: unset while it agrees. left: why it is left as it is, where only the ledger can be written back.
    empties: the staging tables of which nothing can be read.
    recorded: how many batches the ledger knows that no table holds any more. It forgets them.
    """

    seen: StreamPosition
    generation: int | None
    query_id: str
    checkpoint: CheckpointRepair | None
    left: Refusal | None = None
    empties: tuple[str, ...] = ()
    recorded: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether nothing is to be done."""
        return self.generation is None and self.checkpoint is None and not self.empties

    @property
    def rows_doubled(self) -> int | None:
        """The input rows that outputs get a second time which know no batch by its number; unset when unknown."""
        return self.checkpoint.rows_read_again if self.checkpoint is not None and self.seen.repeating else 0

    @property
    def evidence(self) -> dict[str, Any]:
        """The facts, for a program. Rows that are lost would be refused and not counted."""
        written = self.checkpoint or CheckpointRepair(stands_at=self.seen.committed)
        return {
            "generation": self.seen.number,
            "location": self.seen.checkpoint,
            "restores_generation": self.generation is not None,
            "leaves_checkpoint": self.left.sentence if self.left is not None else None,
            "identities": dict(self.seen.identities) if self.generation is not None else {},
            "stands_at": written.stands_at,
            "runs_again": written.runs_again,
            "restores_copy": written.restores.clock if written.restores is not None else None,
            "replays": list(written.replays),
            "empties": list(self.empties),
            "recorded": self.recorded,
            "removes": list(written.removes),
            "writes": dict(written.writes),
            "rows_read_again": written.rows_read_again,
            "rows_lost": 0,
            "rows_doubled": self.rows_doubled,
        }


RepairPlan = OperationPlan[Repair]


def plan_repair(
    ledger: Ledger, catalog: Catalog, wanted: LoadedStream, settings: Settings, *, own_run_id: str = ""
) -> RepairPlan:
    """What `repair_stream` would do now. Nothing is changed.

    Parameters
    ----------
    own_run_id: the run of the command that repairs; empty while the plan is only shown.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    now = database_time(ledger)
    seen = observe_position(
        ledger, catalog, wanted.declaration, settings, now=now, own_run_id=own_run_id, is_whole=True
    )
    findings = disagreeing(judge_position(seen))
    is_written = any(one.witness is Witness.CHECKPOINT for one in findings)
    decided = decide_write(seen, settings.object_store) if is_written else None
    written = decided if isinstance(decided, CheckpointRepair) and not decided.is_empty else None
    refused, is_forgotten = _refused(decided), any(one.witness is Witness.LEDGER for one in findings)
    is_left = is_forgotten and refused is not None  # nothing is read again then
    repair = Repair(
        seen=seen,
        generation=seen.number if is_forgotten else None,
        query_id=query_id_in(written.writes.get(METADATA, "") if written is not None else "") or seen.query_id,
        checkpoint=written,
        left=refused if is_left else None,
        empties=() if is_left else tuple(dict.fromkeys(one.output.staging for one in seen.tables if one.lost)),
        recorded=_taken_back(ledger, seen) if written is not None else 0,
    )
    rows = written.rows_read_again if written is not None else 0
    refusals = [*_refusals(ledger, repair, findings)]
    if repair.recorded and seen.remembers_batches:  # the ledger alone says which numbers such an output has got
        refusals.append(refusal_of_unmarked(seen))
    if refused is not None and not is_forgotten:
        refusals.append(refused)
    if written is not None and written.replays:
        refusals += _computed_otherwise(ledger, wanted, written.replays, generation=seen.number)
    if written is not None:
        reach = SourceReach(
            catalog=catalog, declaration=wanted.declaration, settings=settings, checkpoint=seen.checkpoint
        )
        refusals += refuse_gone_input(reach, seen, written)
    return OperationPlan(
        verb=OperationVerb.REPAIR,
        subject=wanted.name,
        seen=repair,
        steps=steps_of(*_sentences(repair, findings)),
        refusals=tuple(refusals),
        at_stake=Stake.NOTHING if rows == 0 else Stake.ROWS,
        rows=rows,
        evidence=repair.evidence,
    )


def _refused(decided: CheckpointRepair | Refusal | None) -> Refusal | None:
    return decided if isinstance(decided, Refusal) else None


def repair_stream(
    ledger: Ledger,
    catalog: Catalog,
    wanted: LoadedStream,
    settings: Settings,
    *,
    planned: str | None = None,
    asked_by: str,
    reached: Reached = unnoticed,
) -> RepairPlan:
    """Write the witnesses back that disagree. A second try completes a first one; where all agree nothing changes.

    Parameters
    ----------
    planned: the digest of the plan that a person agreed to; unset: what there is now.
    reached: is called with BEGUN, RECORDED, CLEARED for each staging table, and FILE_CHANGED for each file.

    Raises
    ------
    RunAlreadyLiveError: when the stream has a live run.
    UsageError: when the plan is another one than was shown. UnpublishableError: when it is refused. Nothing is changed.
    CheckpointError, LakehouseError, LedgerError: when something cannot be written; type it again then.
    """
    what = f"the repair of the position of {wanted.name}"
    with run_of_command(ledger, wanted.name, CommandMode.REPAIR, requested_by=asked_by, what=what) as run:
        plan = plan_repair(ledger, catalog, wanted, settings, own_run_id=run.run_id)
        plan.require_same(planned)
        plan.require_unrefused()
        repair = plan.seen
        if repair.is_empty:
            return plan
        said = " ".join(step.sentence for step in plan.steps)
        record_event(
            ledger,
            command_event(
                EventAction.REPAIR,
                wanted.name,
                by=asked_by,
                explanation=said,
                run_id=run.run_id,
                evidence=plan.evidence,
            ),
        )
        reached(CrashPoint.BEGUN)
        _carry_out(ledger, catalog, settings, repair, asked_by=asked_by, reached=reached)
    return plan


def _carry_out(
    ledger: Ledger, catalog: Catalog, settings: Settings, repair: Repair, *, asked_by: str, reached: Reached
) -> None:
    if repair.generation is not None:
        restore_generation(
            ledger,
            repair.seen.stream,
            repair.generation,
            checkpoint=repair.seen.checkpoint,
            query_id=repair.query_id,
            identities=repair.seen.identities,
            restored_by=asked_by,
        )
        reached(CrashPoint.RECORDED)
    if repair.empties:
        stands_at = repair.seen.committed if repair.checkpoint is None else repair.checkpoint.stands_at
        record_visible(ledger, catalog, repair.seen, stands_at=stands_at)
    for staging in repair.empties:
        empty_staging_table(catalog, staging)
        reached(CrashPoint.CLEARED)
    if repair.checkpoint is not None:
        write_repair(
            repair.seen,
            repair.checkpoint,
            settings,
            reached,
            before_metadata=lambda: _forget_taken_back(ledger, repair.seen),
        )


def _taken_back(ledger: Ledger, seen: StreamPosition) -> int:
    """How many batches the ledger knows that no table holds any more."""
    if (newest := seen.newest_held) is None:
        return 0
    return count_batches_behind(ledger, seen.stream, generation=seen.number, batch=newest)


def _forget_taken_back(ledger: Ledger, seen: StreamPosition) -> None:
    """Have the ledger forget these batches: their numbers get other rows."""
    if (newest := seen.newest_held) is not None:
        forget_batches_behind(ledger, seen.stream, generation=seen.number, batch=newest)


def _refusals(ledger: Ledger, repair: Repair, findings: tuple[PositionFinding, ...]) -> Iterator[Refusal]:
    seen = repair.seen
    if findings:
        yield from _of_drivers(ledger, seen)
        if repair.generation is not None or repair.checkpoint is not None or not repair.empties:
            yield from under_refresh(ledger, seen.stream)  # which cannot end while a staging table is not readable
        yield from _of_rejections(ledger, seen)
        yield from other_remedies(
            [one for one in findings if not (is_written_back(one) and one.witness is Witness.MARK)]
        )


def _of_rejections(ledger: Ledger, seen: StreamPosition) -> Iterator[Refusal]:
    """What a person rejected and neither tables nor staging tables show any more."""
    if seen.done is None:
        return
    rejected, done = rejected_batches(ledger, seen.stream, generation=seen.number), seen.done
    for number in sorted(one for one in rejected if one > done)[:1]:
        behind = [one.output.target for one in seen.tables if one.position is not None and one.newest_waiting < number]
        yield Refusal(
            reason=RefusalReason.NOT_PROVABLE,
            sentence=f"Batch {seen.number}:{number} of {seen.stream} was rejected by a person, and nothing in "
            f"{' and '.join(behind)} shows that any more: read again, its rows would become visible.",
            next_step=f"`sluice stream reset {seen.stream} --dry-run` shows what reading the inputs again repeats: "
            "that batch, too, which is to be rejected again.",
        )


def not_at_rest(ledger: Ledger, seen: StreamPosition) -> Iterator[Refusal]:
    """Why the position of a stream may move meanwhile."""
    yield from _of_drivers(ledger, seen)
    yield from under_refresh(ledger, seen.stream)


def _of_drivers(ledger: Ledger, seen: StreamPosition) -> Iterator[Refusal]:
    if seen.is_live:
        yield Refusal(
            reason=RefusalReason.NOT_AT_REST,
            sentence=f"A run of {seen.stream} lives, and writes what would be repaired.",
            next_step=f"Stop it first: `sluice stream stop {seen.stream}`.",
        )
    if (left := find_left_driver(ledger, seen.stream)) is not None:
        yield Refusal(
            reason=RefusalReason.NOT_AT_REST,
            sentence=f"The driver of run {left.run_id} may still live and write the checkpoint, although that run has "
            f"ended in the ledger ({left.reason}).",
            next_step=f"End its process{_where(left)}, or wait until its lease is over, "
            f"{LEASE_SECONDS:.0f} s after its newest heartbeat.",
        )


def under_refresh(ledger: Ledger, stream: str) -> Iterator[Refusal]:
    """The refusal while a refresh of a stream, or its way back, may have committed."""
    refresh = unsettled_refresh(ledger, stream)
    if refresh is not None:
        is_back = refresh.state is RefreshState.TAKING_BACK
        yield Refusal(
            reason=RefusalReason.OTHER_REMEDY,
            sentence=f"A refresh of {stream} is {'taken back' if is_back else 'under way'}, and its commit may have "
            "opened a generation.",
            next_step=f"End it first: `sluice stream refresh {stream}{' --take-back' * is_back}`.",
        )


def other_remedies(findings: Sequence[PositionFinding]) -> Iterator[Refusal]:
    """What has to be done first: about the tables, or a service that does not answer."""
    for one in findings:
        if one.witness is Witness.MARK or one.agreement is Agreement.UNKNOWN:
            yield Refusal(
                reason=RefusalReason.OTHER_REMEDY,
                sentence=f"{str(one)[0].upper()}{str(one)[1:]}.",
                next_step=one.next_step,
            )


def _computed_otherwise(
    ledger: Ledger, wanted: LoadedStream, replays: Sequence[int], *, generation: int
) -> Iterator[Refusal]:
    """A refusal where a batch that has to be run again was run by other files than are there now. Of a batch that the
    ledger does not know, nothing is known."""
    ran = {
        one.run_id
        for one in recent_batches(ledger, wanted.name, REPLAYED_BATCHES)
        if one.key.generation == generation and one.key.batch in replays
    }
    digests = {one.run_id: one.declaration_digest for one in recent_runs(ledger, wanted.name, REPLAYED_BATCHES)}
    others = {digests[one] for one in ran if one in digests} - {wanted.digest}
    if others:
        yield Refusal(
            reason=RefusalReason.NOT_PROVABLE,
            sentence=f"The batches {replays[0]} to {replays[-1]} would be run again for the state of the copy, and "
            f"were run by another version of the declaration than there is now, with the digest {min(others)[:12]}.",
            next_step="Bring its file, code and schema files back as they were, and repair again; change them after "
            "the next start.",
        )


def _where(run: RunObservation) -> str:
    return "" if run.process is None else f", {run.process.pid} on {run.process.host}"


def _sentences(repair: Repair, findings: tuple[PositionFinding, ...]) -> Iterator[str]:
    seen, written = repair.seen, repair.checkpoint
    if not findings:
        yield f"Mark, ledger, checkpoint and sources of {seen.stream} agree: nothing is written."
        return
    for one in findings:
        yield f"The {one}." if is_written_back(one) else f"The {one}. {one.next_step}"
    if repair.generation is not None:
        yield (
            f"Write generation {repair.generation} into the ledger, with the checkpoint {seen.checkpoint} and query "
            f"{repair.query_id}."
        )
    for table in repair.empties:
        yield f"Empty {table}, without its data files. What was staged there and is in no table is read again."
    if repair.recorded:
        yield sentence_of_forgotten(repair.recorded)
    if written is not None:
        yield from sentences_of_files(seen, written)
        yield from sentences_of_repetition(seen.stream, seen.repeating, written.rows_read_again)
        yield sentence_of_rows(written.rows_read_again, doubled=repair.rows_doubled)
    if repair.left is not None:
        yield (
            f"{repair.left.sentence} It stays as it is, and the stream does not start from it. Once the ledger has its "
            f"generation, {repair.left.next_step}"
        )
    elif not repair.is_empty:
        yield f"`sluice stream start {seen.stream}` continues from there."
