"""Plans how a stream and its tables go back to a batch together.

What decides: the position as it will be once the tables are set back is judged like any other, so the checkpoint is
stepped back as a repair does it. What the stream planned behind the batch does not count, because its readers and its
sources may have moved meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from pyiceberg.catalog import Catalog

from sluice.declarations.loaded_declarations import Declarations, LoadedStream, lookups_of
from sluice.errors import UsageError
from sluice.ledger.connection import Ledger, database_time
from sluice.ledger.next_generation import count_batches_behind
from sluice.operations import OperationPlan, OperationVerb, Refusal, RefusalReason, Stake, steps_of
from sluice.positions.observe_position import observe_position
from sluice.positions.repair_decision import CheckpointRepair, decide_repair
from sluice.positions.restore_copy import decide_restore
from sluice.positions.rewind import Rewind, refusal_of_reader, refusals_of_rewind, sentences_of
from sluice.positions.rewind_target import (
    PassedReader,
    RewoundTable,
    UnknownReader,
    batch_at,
    passed_reader,
    readers_of,
    reads,
    rewound,
)
from sluice.positions.source_reach import NO_BEGINNING, InputLoss, LossKind, SourceReach
from sluice.positions.stream_position import StreamPosition
from sluice.publication.chain import MarkPosition
from sluice.publication.staged_batch import StagedOutput, staged_outputs
from sluice.publication.undeclared_outputs import load_output_tables
from sluice.settings import Settings
from sluice.tables.declared_tables import require_table

RewindPlan = OperationPlan[Rewind]


def plan_rewind(
    ledger: Ledger,
    catalog: Catalog,
    declarations: Declarations,
    settings: Settings,
    *,
    stream: str,
    batch: int,
    leaves_readers: bool = False,
    taken: Collection[str] = (),
    own_run_id: str = "",
) -> RewindPlan:
    """What `rewind_stream` would do now. Nothing is changed.

    Parameters
    ----------
    batch: of the open generation; it is the newest one afterwards.
    leaves_readers: whether streams that have read what goes keep it. taken: the streams that are taken back before.
    own_run_id: the run of the command that rewinds; empty while the plan is only shown.

    Raises
    ------
    UsageError: when the stream has published no batch.
    DeliveryError, LakehouseError, LedgerError: when something cannot be read.
    """
    wanted = declarations.stream(stream)
    observed = _Observed(ledger=ledger, catalog=catalog, settings=settings, own_run_id=own_run_id)
    now = observed.position(wanted)
    if not now.number or not now.tables:
        raise UsageError(f"{stream} has published no batch into a table: there is nothing to go back to.")
    tables = tuple(
        rewound(require_table(catalog, name), outputs, generation=now.number, batch=batch)
        for name, outputs in _by_table(now).items()
    )
    seen = replace(_set_back(observed.position(wanted, _marks(tables)), batch), back_from=_newest_known(now))
    decided = decide_repair(seen)
    checkpoint = decided if isinstance(decided, CheckpointRepair) else None
    reach = observed.reach(wanted, seen)
    passed = tuple(observed.readers(declarations, tables, but={stream, *taken}))
    rewind = Rewind(
        seen=seen,
        batch=batch,
        tables=tables,
        checkpoint=checkpoint,
        losses=reach.losses_of(checkpoint),
        staged=observed.staged(wanted, (now.number, batch)),
        recorded=count_batches_behind(ledger, stream, generation=now.number, batch=batch),
        readers=tuple(one for one in passed if isinstance(one, PassedReader)),
        unknown=tuple(one for one in passed if isinstance(one, UnknownReader)),
        lookups=tuple(_lookups(declarations, tables)),
    )
    refusals = [] if rewind.is_empty else [*refusals_of_rewind(ledger, rewind, now)]
    if not rewind.is_empty:
        refusals += () if leaves_readers else map(refusal_of_reader, passed)
    is_first = all(one.reason is not RefusalReason.OTHER_REMEDY for one in refusals)
    if isinstance(decided, Refusal) and is_first and all(one.goal is not None for one in tables):
        refusals.append(_of_checkpoint(settings, now, decided))
    if not rewind.is_empty and not refusals:
        refusals += _of_sources(reach, rewind)
    return _as_plan(rewind, refusals)


def _as_plan(rewind: Rewind, refusals: Sequence[Refusal]) -> RewindPlan:
    return OperationPlan(
        verb=OperationVerb.REWIND,
        subject=rewind.seen.stream,
        part=f"to batch {rewind.seen.number}:{rewind.batch}",
        seen=rewind,
        steps=steps_of(*sentences_of(rewind)),
        refusals=tuple(refusals),
        at_stake=Stake.NOTHING if rewind.is_empty else Stake.ROWS,
        rows=rewind.rows_hidden,
        evidence=rewind.evidence,
    )


def batch_of_time(ledger: Ledger, catalog: Catalog, wanted: LoadedStream, settings: Settings, *, then: datetime) -> int:
    """The newest batch that every output of a stream showed at an instant.

    Raises
    ------
    UsageError: when the history of a table does not reach there, or another generation was open then.
    """
    now = _Observed(ledger=ledger, catalog=catalog, settings=settings, own_run_id="").position(wanted)
    found: list[MarkPosition] = []
    for name, outputs in _by_table(now).items():
        at = batch_at(require_table(catalog, name), outputs, then)
        if at is None or at.generation != now.number or at.batch < 0:
            raise UsageError(
                f"At {then.isoformat()} {name} showed no batch of generation {now.number} of {wanted.name}, as far as "
                "its history goes.",
                next_step=f"`sluice batch list {wanted.name}` shows the batches with their times; `--to-batch` takes "
                "one.",
            )
        found.append(at)
    if not found:
        raise UsageError(f"{wanted.name} has published no batch into a table: there is nothing to go back to.")
    return min(one.batch for one in found)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Observed:
    """What is asked about a stream and its readers."""

    ledger: Ledger
    catalog: Catalog
    settings: Settings
    own_run_id: str

    def position(self, stream: LoadedStream, assumed: Mapping[str, MarkPosition] | None = None) -> StreamPosition:
        return observe_position(
            self.ledger,
            self.catalog,
            stream.declaration,
            self.settings,
            now=database_time(self.ledger),
            own_run_id=self.own_run_id,
            is_whole=True,
            assumed=assumed,
        )

    def reach(self, stream: LoadedStream, seen: StreamPosition) -> SourceReach:
        return SourceReach(
            catalog=self.catalog, declaration=stream.declaration, settings=self.settings, checkpoint=seen.checkpoint
        )

    def staged(self, stream: LoadedStream, at: tuple[int, int]) -> Mapping[StagedOutput, tuple[int, ...]]:
        """The staged batches beyond a place, by output."""
        found = {
            output: tuple(
                one.snapshot_id for one in load_output_tables(self.catalog, output).staged if one.position > at
            )
            for output in staged_outputs(stream.declaration)
        }
        return {output: ids for output, ids in found.items() if ids}

    def readers(
        self, declarations: Declarations, tables: Sequence[RewoundTable], *, but: Collection[str]
    ) -> Iterator[PassedReader | UnknownReader]:
        """Of each reader of the tables, where it has passed the first time; or that it does not show that."""
        for reader in readers_of(declarations, [one.name for one in tables], but=but):
            seen = self.position(reader)
            found = [
                passed for one in tables if reads(reader, one.name) and (passed := passed_reader(seen, one)) is not None
            ]
            yield from sorted(found, key=_first_passed)[:1]


def _first_passed(reader: PassedReader | UnknownReader) -> int:
    return -1 if isinstance(reader, UnknownReader) else reader.batches[0]


def _by_table(seen: StreamPosition) -> Mapping[str, tuple[StagedOutput, ...]]:
    """The declared outputs in which something was published, by table."""
    found: dict[str, tuple[StagedOutput, ...]] = {}
    for one in (each for each in seen.tables if each.is_declared):
        found[one.output.target] = (*found.get(one.output.target, ()), one.output)
    return found


def _marks(tables: Sequence[RewoundTable]) -> Mapping[str, MarkPosition]:
    """Where the outputs stand once the tables are set back."""
    return {output: at for table in tables for output, at in table.positions.items()}


def _set_back(seen: StreamPosition, batch: int) -> StreamPosition:
    """The position without what is staged beyond the batch."""
    return replace(
        seen, tables=tuple(replace(one, newest_waiting=min(one.newest_waiting, batch)) for one in seen.tables)
    )


def _lookups(declarations: Declarations, tables: Sequence[RewoundTable]) -> Iterator[tuple[str, str]]:
    """The streams that look a table up from which rows go, with the table."""
    for one in tables:
        if any(commit.rows for commit in one.hidden):
            yield from ((stream, one.name) for stream in lookups_of(declarations, one.name))


def _newest_known(now: StreamPosition) -> int:
    """The newest batch of which something shows that its input was read."""
    return max(now.committed, now.newest_visible, *(one.newest_waiting for one in now.opened), *now.batches)


def _of_checkpoint(settings: Settings, now: StreamPosition, found: Refusal) -> Refusal:
    """Why the checkpoint cannot be taken back, with what helps today: not a reset where it can be written back, or is
    whole as it is."""
    step = f"Choose a later batch, to which it can be taken back: `sluice batch list {now.stream}` shows them."
    if isinstance(decide_repair(now), Refusal):
        copied = decide_restore(now, settings.object_store)
        if not isinstance(copied, CheckpointRepair):
            return copied or found
        step = f"Put a copy of it in its place first: `sluice stream repair {now.stream} --dry-run`."
    return replace(found, next_step=step)


def _of_sources(reach: SourceReach, rewind: Rewind) -> Iterator[Refusal]:
    """Why nothing can be read again. What was withdrawn since it was read is counted as lost and refuses nothing."""
    stream = rewind.seen.stream
    if rewind.checkpoint is not None and rewind.checkpoint.reads_from is None:
        yield Refusal(
            reason=RefusalReason.NOT_PROVABLE,
            sentence=f"Nothing shows from where {stream} would read again, so it is not known whether its inputs "
            "still have that.",
            next_step=f"Choose a later batch: `sluice batch list {stream}`.",
        )
    for loss in rewind.losses:
        if loss.kind in NO_BEGINNING:
            yield Refusal(
                reason=RefusalReason.SOURCE_GONE,
                sentence=f"What comes behind batch {rewind.batch} of {stream} has to be read again from its input "
                f"{loss.input}: {loss.sentence}.",
                next_step=_instead(reach, rewind, loss),
            )


def _instead(reach: SourceReach, rewind: Rewind, loss: InputLoss) -> str:
    stream = rewind.seen.stream
    if loss.kind is LossKind.UNKNOWN:
        return f"See that the service that is named runs, and look again: `sluice checkpoint check {stream}`."
    if loss.kind is LossKind.REMOVED:
        return f"Choose a later batch: `sluice batch list {stream}` shows them."
    back = reach.newest_reachable(rewind.seen, before=rewind.batch)
    if back is None:
        return f"Let it continue without going back: `sluice stream continue {stream} --dry-run` shows from where."
    return (
        f"Choose batch {back} or an earlier one, from which the input leads on: `sluice stream rewind {stream} "
        f"--to-batch {back} --dry-run`."
    )
