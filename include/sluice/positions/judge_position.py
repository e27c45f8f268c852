"""Decides which witness of a position disagrees with the others. Pure.

The tables have the last word about what is visible, because a batch and its mark become visible in one commit. The
ledger has it about which generation is open and whose checkpoint is which, unless a mark shows a newer generation: a
run opens one only after the ledger has it, so the ledger was restored from an older copy.
"""

from __future__ import annotations

from sluice.checkpoints.checkpoint_layout import offsets_of
from sluice.ledger.checkpoint_checks import CheckpointProperty
from sluice.positions.log_offsets import canonical_end
from sluice.positions.remedies import REMEDIES
from sluice.positions.stream_position import Agreement, PositionFinding, StreamPosition, Witness
from sluice.publication.direct_history import rolled_back_behind
from sluice.publication.marks import ADOPT

HARMLESS = frozenset({CheckpointProperty.NO_LEFTOVERS, CheckpointProperty.PROGRESS, CheckpointProperty.POSITION})
"""What a start from the checkpoint does not depend on, or what is judged here."""


def judge_position(seen: StreamPosition) -> tuple[PositionFinding, ...]:
    """One finding for each witness, in their order."""
    return tuple(_finding(seen, witness) for witness in Witness)


def disagreeing(findings: tuple[PositionFinding, ...]) -> tuple[PositionFinding, ...]:
    """The findings about which something is to be done."""
    return tuple(one for one in findings if not one.agrees)


def is_written_back(finding: PositionFinding) -> bool:
    """Whether a repair writes the witness back, also while a service does not answer that it needs. What has become of
    a target a person decides, and sources are continued."""
    if finding.witness is Witness.MARK:
        return finding.agreement is Agreement.DAMAGED
    return finding.witness in (Witness.LEDGER, Witness.CHECKPOINT)


def _finding(seen: StreamPosition, witness: Witness) -> PositionFinding:
    if witness in seen.unknown:
        look = REMEDIES[witness, Agreement.UNKNOWN].command_for(seen.stream)
        return PositionFinding(
            witness=witness,
            agreement=Agreement.UNKNOWN,
            message=seen.unknown[witness],
            next_step=f"See that the service that is named runs, and look again: `{look}`.",
        )
    return _JUDGES[witness](seen)


def _agrees(witness: Witness, message: str) -> PositionFinding:
    return PositionFinding(witness=witness, agreement=Agreement.AGREES, message=message)


def _repairable(seen: StreamPosition, witness: Witness, agreement: Agreement, message: str) -> PositionFinding:
    step = f"`{REMEDIES[witness, agreement].command_for(seen.stream)}` shows what writes it back."
    return PositionFinding(witness=witness, agreement=agreement, message=message, next_step=step)


def _judge_mark(seen: StreamPosition) -> PositionFinding:
    if broken := [one for one in seen.tables if one.problem]:
        return PositionFinding(
            witness=Witness.MARK,
            agreement=Agreement.DIVERGED,
            message=broken[0].problem,
            next_step=broken[0].next_step,
        )
    if outputs := [one for one in seen.replaced if one.is_output]:
        accept = REMEDIES[Witness.MARK, Agreement.REPLACED].command_for(seen.stream, outputs[0].table)
        return PositionFinding(
            witness=Witness.MARK,
            agreement=Agreement.REPLACED,
            message=f"{'; '.join(map(str, outputs))}: the rows that were published into it are gone",
            next_step=f"Restore the table if it was not meant; otherwise `{accept}` shows how to continue without its "
            f"rows, and `sluice stream reset {seen.stream}` reads the inputs again.",
        )
    if lost := [f"the staging table {one.output.staging} refers to {one.lost}" for one in seen.tables if one.lost]:
        message = f"{'; '.join(lost)}, which is gone: its catalog was set back, or somebody has removed the file"
        return _repairable(seen, Witness.MARK, Agreement.DAMAGED, message)
    if not seen.opened:
        return _agrees(Witness.MARK, "no output has a mark")
    return _agrees(Witness.MARK, f"batch {seen.number}:{seen.done} is the newest one in the tables")


def _judge_ledger(seen: StreamPosition) -> PositionFinding:
    recorded = 0 if seen.generation is None else seen.generation.generation
    if recorded >= seen.number:
        return _agrees(Witness.LEDGER, f"generation {recorded} is the newest" if recorded else "never started")
    known = f"generation {recorded}" if recorded else "no generation"
    message = f"it knows {known}, and generation {seen.number} has begun: an older copy has replaced it"
    return _repairable(seen, Witness.LEDGER, Agreement.BEHIND, message)


def _judge_checkpoint(seen: StreamPosition) -> PositionFinding:
    health = seen.health
    problems = [one for one in health.problems if one.name not in HARMLESS] if health is not None else []
    if problems:
        said = "; ".join(f"{one.name}: {one.message}" for one in problems)
        return _repairable(seen, Witness.CHECKPOINT, Agreement.DAMAGED, said)
    delivered = max(seen.batches, default=-1)
    if seen.remembers_batches and not seen.is_live and seen.planned < delivered:
        return PositionFinding(
            witness=Witness.CHECKPOINT,
            agreement=Agreement.BEHIND,
            message=f"it ends with batch {seen.planned}, and batch {delivered} is delivered: it is an older copy",
            next_step="Bring the newer copy back. Without one, `sluice stream reset "
            f"{seen.stream} --dry-run` shows what reading the inputs again repeats.",
        )
    if seen.done is None or not seen.opened:
        return _agrees(Witness.CHECKPOINT, "there is no mark to compare it with")
    if table := seen.rolled_back_direct:
        error = rolled_back_behind(seen.committed, stream=seen.stream, target=table)
        return PositionFinding(
            witness=Witness.CHECKPOINT,
            agreement=Agreement.AHEAD,
            message=error.message,
            next_step=error.next_step or "",
        )
    if seen.committed > seen.done:
        message = (
            f"it has committed batches up to {seen.committed}, and the tables hold them up to {seen.done}: tables or "
            "staging tables were set back"
        )
        return _repairable(seen, Witness.CHECKPOINT, Agreement.AHEAD, message)
    if seen.left_to_replay > seen.done:
        message = (
            f"its state is to be taken through batch {seen.left_to_replay}, and the tables hold batches up to "
            f"{seen.done}: tables were set back"
        )
        return _repairable(seen, Witness.CHECKPOINT, Agreement.AHEAD, message)
    if seen.is_live:  # it moves on while the others are read
        return _agrees(Witness.CHECKPOINT, "a driver continues from it")
    if seen.planned < (newest := max(seen.done, seen.newest_visible)):
        message = f"it ends with batch {seen.planned}, and the tables hold batches up to {newest}: it is an older copy"
        return _repairable(seen, Witness.CHECKPOINT, Agreement.BEHIND, message)
    differing = _differing(seen)
    if differing is not None:
        message = f"the end offsets that it has of batch {differing} are not those of the batch in the tables"
        return _repairable(seen, Witness.CHECKPOINT, Agreement.DIVERGED, message)
    return _agrees(Witness.CHECKPOINT, f"batch {seen.done} is planned in it, and committed up to {seen.committed}")


def _differing(seen: StreamPosition) -> int | None:
    """The newest done batch, when the checkpoint has other end offsets of it than the tables."""
    known = seen.batches.get(seen.done) if seen.done is not None else None
    text = seen.contents.texts.get(f"offsets/{seen.done}") if seen.contents is not None else None
    if known is None or text is None or not seen.sources:
        return None
    return known.number if canonical_end(offsets_of(text), seen.sources) != known.ends else None


def _judge_sources(seen: StreamPosition) -> PositionFinding:
    inputs = [one for one in seen.replaced if not one.is_output]
    said = "; ".join(map(str, (*inputs, *seen.moved)))
    if not said:
        return _agrees(Witness.SOURCES, "they are those that were read, and lead on from there")
    is_expired = all(one.is_expired for one in seen.moved)
    agreement = Agreement.REPLACED if inputs else Agreement.AHEAD if is_expired else Agreement.DIVERGED
    step = f"`{REMEDIES[Witness.SOURCES, agreement].command_for(seen.stream)}` shows where it can continue."
    if waiting := next((one.waits for one in seen.moved if one.waits), ""):
        first = f"`{ADOPT.format(table=waiting)}`"
        step = f"Adopt {waiting} first ({first}): what becomes of its rows decides where this stream continues. {step}"
    return PositionFinding(witness=Witness.SOURCES, agreement=agreement, message=said, next_step=step)


_JUDGES = {
    Witness.MARK: _judge_mark,
    Witness.LEDGER: _judge_ledger,
    Witness.CHECKPOINT: _judge_checkpoint,
    Witness.SOURCES: _judge_sources,
}
