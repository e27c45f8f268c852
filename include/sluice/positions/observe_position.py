"""Observes the position of a stream: what its tables, the ledger, the checkpoint and the sources say. Nothing changes.

The checkpoint is read before the tables: Spark commits a batch once it is staged, so a batch that is committed then is
in the tables afterwards, also while a driver runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from pyiceberg.catalog import Catalog

from sluice.checkpoints.checkpoint_files import open_checkpoint_files
from sluice.checkpoints.checkpoint_layout import OFFSETS, CheckpointContents, offsets_of
from sluice.checkpoints.health_decision import CheckpointExpectation, judge_checkpoint, longest_batch_seconds
from sluice.checkpoints.observe_checkpoint import observe_checkpoint
from sluice.declarations.source_declarations import IcebergSource, KafkaSource
from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.errors import CheckpointError, DeliveryError, LakehouseError, SettingsError
from sluice.ledger.batches import BatchObservation, recent_batches
from sluice.ledger.connection import Ledger
from sluice.ledger.generations import checkpoint_of, find_generation
from sluice.ledger.recorded_checks import CheckpointObservation
from sluice.ledger.runs import newest_run
from sluice.positions.later_generation import observe_newest_begun
from sluice.positions.repair_writes import torn_former_outputs
from sluice.positions.restore_copy import with_copies
from sluice.positions.source_reach import find_moved_sources
from sluice.positions.stream_position import KnownBatch, MovedSource, StreamPosition, TableWitness, Witness
from sluice.publication.chain import MarkPosition, plan_publication
from sluice.publication.command_runs import is_vacated
from sluice.publication.data_files import missing_list
from sluice.publication.direct_history import direct_tables
from sluice.publication.mark_moves import MarkMove
from sluice.publication.marks import entries_of, history_of_main, moved_mark
from sluice.publication.staged_batch import (
    BatchSummary,
    canonical_offsets,
    offsets_digest,
    read_summary,
    staged_outputs,
)
from sluice.publication.start_check import refuse_set_back
from sluice.publication.undeclared_outputs import (
    OutputTables,
    has_unmarked_outputs,
    load_output_tables,
    remembers_batches,
    repeating_outputs,
)
from sluice.settings import Settings
from sluice.sources.source_identities import NONE_KNOWN, Identities, Replaced, find_replaced, observe_identities
from sluice.stored_keys import FIRST_BATCH

KNOWN_BATCHES = 128
"""How many batches of the ledger are looked at: a few more than Spark keeps in a checkpoint."""

REPLAYED_BATCHES = 1024
"""How many batches of the ledger a repair looks at: state from a copy is taken through at most as many, one query after
another."""

_MOST_PLACES = 16
"""In how many places a query may read its one source; each has the same offset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _SeenBatch:
    """A batch in a target or a staging table. is_alone: whether its snapshot holds no other batch."""

    summary: BatchSummary
    is_alone: bool
    committed_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class _Output:
    """An output as it was read, and the batches of which its tables know."""

    witness: TableWitness
    batches: tuple[_SeenBatch, ...] = ()


def observe_position(
    ledger: Ledger,
    catalog: Catalog | None,
    declaration: StreamDeclaration,
    settings: Settings,
    *,
    now: datetime,
    own_run_id: str = "",
    is_whole: bool = False,
    assumed: Mapping[str, MarkPosition] | None = None,
) -> StreamPosition:
    """Read all witnesses. One that does not answer is unknown, and the others are read all the same.

    Parameters
    ----------
    catalog: none when it does not answer.
    own_run_id: the run of the command that asks, which is no driver; empty without one.
    is_whole: as `observe_checkpoint` takes it.
    assumed: where the marks of outputs are taken to stand, whatever their tables say: what a plan makes of them.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    stream, unknown = declaration.stream, dict[Witness, str]()
    generation, run = find_generation(ledger, stream), newest_run(ledger, stream)
    checkpoint, number = ("", 0) if generation is None else (generation.checkpoint, generation.generation)
    contents = _contents(checkpoint, settings, unknown, is_whole=is_whole)
    known = recent_batches(ledger, stream, REPLAYED_BATCHES if is_whole else KNOWN_BATCHES)
    outputs = _outputs(
        catalog, declaration, unknown, generation=number, recorded=known, assumed=assumed or {}, is_whole=is_whole
    )
    seen = StreamPosition(
        stream=stream,
        generation=generation,
        checkpoint=checkpoint,
        contents=contents,
        newest_begun=observe_newest_begun(generation, declaration, settings, unknown),
        tables=tuple(one.witness for one in outputs),
        unknown=unknown,
        is_live=run is not None and run.is_live and run.run_id != own_run_id and not is_vacated(run),
        has_other_outputs=has_unmarked_outputs(declaration),
        remembers_batches=remembers_batches(declaration),
        repeating=repeating_outputs(declaration),
        own_memory=tuple(_with_own_memory(declaration)),
        puts_files_away=any(one.puts_files_away for one in declaration.inputs.values()),
        has_static_inputs=not all(one.is_stream for one in declaration.inputs.values()),
    )
    if not _is_newest(seen):
        unknown.pop(Witness.CHECKPOINT, None)
        checkpoint = checkpoint_of(stream, seen.number, checkpoints_root=settings.checkpoints) if seen.number else ""
        contents = _contents(checkpoint, settings, unknown, is_whole=is_whole)
        seen = replace(seen, checkpoint=checkpoint, contents=contents)
    seen = with_copies(seen, settings.object_store, unknown)
    recorded = [one for one in known if one.key.generation == seen.number]
    seen = replace(seen, batches=_batches(seen, outputs, recorded))
    identities = _identities(catalog, declaration, settings, seen, unknown)
    seen = replace(seen, identities=identities, replaced=tuple(_replaced(seen, identities)))
    seen = replace(seen, moved=_moved(catalog, declaration, seen, unknown))
    return replace(seen, health=_health(declaration, seen, has_batches=bool(recorded), now=now))


def _with_own_memory(declaration: StreamDeclaration) -> Iterator[str]:
    for name, declared in declaration.inputs.items():
        if declared.is_stream and not isinstance(declared.declared_source.source, KafkaSource | IcebergSource):
            yield name


def _contents(
    checkpoint: str, settings: Settings, unknown: dict[Witness, str], *, is_whole: bool
) -> CheckpointContents | None:
    if not checkpoint:
        return None
    try:
        return observe_checkpoint(open_checkpoint_files(checkpoint, settings.object_store), is_whole=is_whole)
    except CheckpointError as error:
        unknown[Witness.CHECKPOINT] = str(error)
        return None


def _outputs(
    catalog: Catalog | None,
    declaration: StreamDeclaration,
    unknown: dict[Witness, str],
    *,
    generation: int,
    recorded: Sequence[BatchObservation],
    assumed: Mapping[str, MarkPosition],
    is_whole: bool,
) -> tuple[_Output, ...]:
    if catalog is None:
        unknown[Witness.MARK] = "the catalog does not answer"
        return ()
    try:
        loaded = [load_output_tables(catalog, output) for output in staged_outputs(declaration)]
        read = partial(_output, generation=generation, recorded=recorded, is_whole=is_whole)
        found = [read(one, assumed=assumed.get(one.names.output)) for one in loaded]
        former = torn_former_outputs(catalog, declaration.stream, loaded, generation=generation) if is_whole else ()
        direct = (
            TableWitness(output=output, position=newest.at, newest_waiting=newest.batch, is_direct=True)
            for output, _, newest in direct_tables(catalog, declaration)
            if newest is not None
        )
        return (*(one for one in found if one is not None), *(_Output(witness=one) for one in (*direct, *former)))
    except LakehouseError as error:
        unknown[Witness.MARK] = str(error)
        return ()


def _output(
    tables: OutputTables,
    *,
    generation: int,
    recorded: Sequence[BatchObservation],
    assumed: MarkPosition | None,
    is_whole: bool,
) -> _Output | None:
    """An output; none while it is new, or declared again: its next start opens it where the checkpoint stands."""
    lost = missing_list(tables.staging, is_whole=is_whole)
    is_former = tables.holds_batches_for_another_table
    unopened = TableWitness(output=tables.names, position=None, lost=lost) if lost and not is_former else None
    try:
        at = assumed or _position(tables, generation=generation, recorded=recorded)
        if at is None or tables.target is None:
            return _Output(witness=unopened) if unopened is not None else None
        staged = plan_publication(at, () if lost else tables.staged)
    except DeliveryError as error:
        return _Output(
            witness=TableWitness(
                output=tables.names, position=None, problem=error.message, next_step=error.next_step or ""
            )
        )
    waiting = (
        _SeenBatch(summary=one.summary, is_alone=True, committed_at=one.staged_at)
        for one in (*staged.published, *staged.ready)
    )
    moves = (moved_mark(one, tables.names, why=MarkMove.ADOPTED) for one in history_of_main(tables.target))
    adopted = tuple(one for one in moves if one is not None)
    witness = TableWitness(
        output=tables.names, position=at, newest_waiting=staged.newest_waiting, adopted=adopted, lost=lost
    )
    return _Output(witness=witness, batches=(*_in_history(tables), *waiting))


def _position(tables: OutputTables, *, generation: int, recorded: Sequence[BatchObservation]) -> MarkPosition | None:
    """How far an output is published; none while it is not opened in its table."""
    if tables.target is None or tables.is_left:
        return None
    refuse_set_back([tables], generation=generation, recorded=recorded)
    return tables.position


def _in_history(tables: OutputTables) -> Iterator[_SeenBatch]:
    """The batches in the history of a target."""
    for snapshot in history_of_main(tables.target) if tables.target is not None else ():
        entries = entries_of(snapshot)
        found = read_summary(entries)
        if found is not None and (found.key.stream, found.output) == (tables.names.stream, tables.names.output):
            committed_at = datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC)
            yield _SeenBatch(summary=found, is_alone=FIRST_BATCH not in entries, committed_at=committed_at)


def _batches(
    seen: StreamPosition, outputs: Sequence[_Output], recorded: Sequence[BatchObservation]
) -> Mapping[int, KnownBatch]:
    """What is known of the batches of the newest generation: from the tables first, from the ledger otherwise."""
    digests = {one.position.batch: one.position.end_offsets_digest for one in seen.opened if one.position is not None}
    places = _places(seen, outputs, proved=[*_proved(recorded, digests)])
    ledger = {one.key.batch: known for one in recorded if (known := _recorded(one, digests, places=places)) is not None}
    tables = {
        one.summary.key.batch: _published(one, ledger.get(one.summary.key.batch))
        for output in outputs
        for one in output.batches
        if one.summary.key.generation == seen.number
    }
    return {
        number: one
        for number, one in {**ledger, **tables}.items()
        if digests.get(number) in (None, offsets_digest(one.ends))
    }


def _proved(recorded: Sequence[BatchObservation], digests: Mapping[int, str | None]) -> Iterator[str]:
    """The end offsets of batches of the ledger that a mark proves."""
    for one in recorded:
        digest = digests.get(one.key.batch)
        if digest is not None:
            yield from (text for text in _as_in_log(one.end_offsets) if offsets_digest(text) == digest)


def _places(seen: StreamPosition, outputs: Sequence[_Output], *, proved: Sequence[str]) -> int:
    """In how many places the query reads: as many offsets as a batch of the tables has, or of the checkpoint."""
    published = [one.summary for output in outputs for one in output.batches]
    of_tables = [one.end_offsets for one in published if one.key.generation == seen.number]
    counts = [len(json.loads(ends)) for ends in (*of_tables, *proved)]
    texts = seen.contents.texts if seen.contents is not None else {}
    logged = [len(offsets_of(text)) for path, text in texts.items() if path.startswith(f"{OFFSETS}/") and text]
    return (counts or logged or [1])[-1]


def _published(batch: _SeenBatch, recorded: KnownBatch | None) -> KnownBatch:
    summary = batch.summary
    found = recorded or KnownBatch(number=summary.key.batch, ends=summary.end_offsets, planned_at=batch.committed_at)
    return replace(
        found,
        ends=summary.end_offsets,
        starts=summary.start_offsets if batch.is_alone else None,
        watermark=summary.watermark,
        token=summary.token,
    )


def _recorded(batch: BatchObservation, digests: Mapping[int, str | None], *, places: int) -> KnownBatch | None:
    """A batch as the ledger knows it; none when its offsets are not those of the mark. The ledger has one offset for
    each source, and the log one for each place in which it is read.

    Parameters
    ----------
    digests: of the offsets at which batches end that marks are of, by number.
    """
    ends = _proven(batch.end_offsets, digests.get(batch.key.batch), places=places)
    if ends is None:
        return None
    return KnownBatch(
        number=batch.key.batch,
        ends=ends,
        starts=_proven(batch.start_offsets, digests.get(batch.key.batch - 1), places=places),
        watermark=batch.watermark,
        rows=batch.input_rows,
        state_rows=batch.state_rows,
        planned_at=batch.started_at,
        is_recorded=True,
    )


def _proven(offsets: Mapping[str, Any], digest: str | None, *, places: int) -> str | None:
    """Offsets as the log has them, if they are those of the mark, where there is one."""
    texts = [*_as_in_log(offsets)] if offsets else []
    alike = [text for text in texts if len(json.loads(text)) == places] or texts
    return next((text for text in (texts if digest else alike) if digest in (None, offsets_digest(text))), None)


def _as_in_log(ends: Mapping[str, Any]) -> Iterator[str]:
    """The offsets as the log may have them: a query that reads its one source in several places repeats the offset."""
    yield canonical_offsets(ends)
    if len(ends) == 1:
        (offset,) = ends.values()
        for places in range(2, _MOST_PLACES):
            yield canonical_offsets({**ends, **{f"source {place}": offset for place in range(1, places)}})


def _identities(
    catalog: Catalog | None,
    declaration: StreamDeclaration,
    settings: Settings,
    seen: StreamPosition,
    unknown: dict[Witness, str],
) -> Identities:
    """The ids of today, where there are others to compare them with, or a generation that a repair gives them to."""
    is_compared = _is_newest(seen) and seen.generation is not None and seen.generation.identities
    if catalog is None or not (is_compared or (seen.number and not _is_newest(seen))):
        return NONE_KNOWN
    try:
        return observe_identities(declaration, settings, catalog)
    except (LakehouseError, SettingsError) as error:
        unknown[Witness.SOURCES] = str(error)
        return NONE_KNOWN


def _replaced(seen: StreamPosition, identities: Identities) -> Iterator[Replaced]:
    if seen.generation is None or not _is_newest(seen):
        return
    has_published = bool(seen.batches) or max(seen.newest_visible, seen.committed) >= 0  # as a start asks it
    for one in find_replaced(seen.generation.identities, identities):
        if has_published or not one.is_output:
            yield one


def _moved(
    catalog: Catalog | None, declaration: StreamDeclaration, seen: StreamPosition, unknown: dict[Witness, str]
) -> tuple[MovedSource, ...]:
    if catalog is None:
        return ()
    try:
        return tuple(find_moved_sources(catalog, declaration, seen))
    except (LakehouseError, DeliveryError) as error:
        unknown[Witness.SOURCES] = str(error)
        return ()


def _health(
    declaration: StreamDeclaration, seen: StreamPosition, *, has_batches: bool, now: datetime
) -> CheckpointObservation | None:
    if seen.contents is None:
        return None
    known = seen.generation if _is_newest(seen) else None
    expected = CheckpointExpectation(
        stream=seen.stream,
        generation=seen.number,
        query_id=None if known is None else known.query_id,
        has_batches=has_batches or seen.newest_visible >= 0,
        is_live=seen.is_live,
        longest_batch_seconds=longest_batch_seconds(declaration),
        keeps_state=seen.keeps_state,
    )
    return judge_checkpoint(expected=expected, seen=seen.contents, now=now)


def _is_newest(seen: StreamPosition) -> bool:
    return seen.generation is not None and seen.generation.generation == seen.number
