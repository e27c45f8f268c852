"""Decides which witness of a position disagrees with the others, and which one command is for that. Pure.

The tables have the last word about what is visible, because a batch and its mark become visible in one commit. The
ledger has it about which generation is open and whose checkpoint is which, unless a mark shows a newer generation: a
run opens one only after the ledger has it, so the ledger was restored from an older copy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sluice.checkpoints.checkpoint_layout import offsets_of
from sluice.ledger.recorded_checks import CheckpointProperty
from sluice.positions.stream_position import Agreement, PositionFinding, StreamPosition, Witness, canonical_end
from sluice.publication.direct_history import rolled_back_behind
from sluice.publication.marks import ADOPT

HARMLESS = frozenset({CheckpointProperty.NO_LEFTOVERS, CheckpointProperty.PROGRESS, CheckpointProperty.POSITION})
"""What a start from the checkpoint does not depend on, or what is judged here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """What a finding means, and the command that shows what is to be done about it.

    command: with {stream} and {table} in it; the latter is the table that the finding names.
    does: what it does without `--dry-run`.
    """

    means: str
    command: str
    does: str

    def command_for(self, stream: str, table: str = "TABLE") -> str:
        """The command as it is typed."""
        return self.command.format(stream=stream, table=table)


_REPAIR, _LOOK = "sluice stream repair {stream} --dry-run", "sluice checkpoint check {stream}"

REMEDIES: Mapping[tuple[Witness, Agreement], Remedy] = {
    (Witness.MARK, Agreement.DIVERGED): Remedy(
        means="a table was rolled back behind the mark of the stream, or shows another history than was published",
        command=ADOPT,
        does="sets the table forward again; `--reread` and `--accept` keep it as it is",
    ),
    (Witness.MARK, Agreement.REPLACED): Remedy(
        means="a table was dropped and created again, without the rows of the old one",
        command="sluice table adopt {table} --accept --dry-run",
        does="continues without its rows; `sluice stream reset` reads the inputs again",
    ),
    (Witness.MARK, Agreement.DAMAGED): Remedy(
        means="a staging table refers to a file that is gone, as in a catalog that was set back to an earlier time",
        command=_REPAIR,
        does="empties the staging table, and has read again what the tables do not hold",
    ),
    (Witness.LEDGER, Agreement.BEHIND): Remedy(
        means="the ledger does not know the generation that the tables show: an older copy has replaced it",
        command=_REPAIR,
        does="writes the row of the generation back",
    ),
    (Witness.CHECKPOINT, Agreement.DAMAGED): Remedy(
        means="files of the checkpoint are gone or cannot be read",
        command=_REPAIR,
        does="writes the logs at the newest batch of the tables, takes damaged state one batch back, or puts a copy "
        "of a stop in its place",
    ),
    (Witness.CHECKPOINT, Agreement.AHEAD): Remedy(
        means="the checkpoint has committed more than the tables hold: they were set back",
        command=_REPAIR,
        does="takes it back to the batch that the tables hold, and has the rest read again",
    ),
    (Witness.CHECKPOINT, Agreement.BEHIND): Remedy(
        means="the checkpoint ends before the newest batch of the tables: it is an older copy",
        command=_REPAIR,
        does="moves it to the newest batch; with state, when it is one batch old or a copy of a stop is there",
    ),
    (Witness.CHECKPOINT, Agreement.DIVERGED): Remedy(
        means="the checkpoint has other end offsets of a batch than the tables",
        command=_REPAIR,
        does="writes the entry of the batch as the tables have it",
    ),
    (Witness.SOURCES, Agreement.REPLACED): Remedy(
        means="an input was deleted and created again under its name",
        command="sluice stream continue {stream} --dry-run",
        does="continues at the beginning of the new one",
    ),
    (Witness.SOURCES, Agreement.DIVERGED): Remedy(
        means="a source table was rolled back, or replaced, behind what the stream has read",
        command="sluice stream continue {stream} --dry-run",
        does="continues behind the snapshot that both have in common; the plan counts what is withdrawn",
    ),
    (Witness.SOURCES, Agreement.AHEAD): Remedy(
        means="snapshots of a source table were expired before the stream had read them",
        command="sluice stream continue {stream} --dry-run",
        does="reads their rows exactly once where that can be proved; else `--leave-out` counts what is left out",
    ),
    **{
        (witness, Agreement.UNKNOWN): Remedy(
            means="it did not answer, and nothing is concluded from that",
            command=_LOOK,
            does="looks again, once the service that is named runs",
        )
        for witness in Witness
    },
}
"""By witness, and how it stands to the others. What agrees needs none."""


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
