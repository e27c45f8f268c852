"""Which checkpoints nothing can go back to, by what the ledger says, and whether the tables stand where it says.

A checkpoint is its folder and not a generation: a refresh hands the folder of its shadow to the stream, and its way
back hands that of an earlier generation to a later one. A folder is closed when every generation that has it is.

Until it is known where its tables stand, nothing of a stream goes: a ledger that was restored takes the checkpoint of
the present for one of the past, and tables that were restored may have to be continued from one of the past.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from sluice.declarations.stream_declaration import QUARANTINE_OUTPUT
from sluice.errors import DeliveryError, LakehouseError
from sluice.ledger.batches import BatchObservation
from sluice.ledger.generations import OUTPUT_TABLE, GenerationObservation, checkpoint_of
from sluice.ledger.refreshes import OPEN_STATES, RefreshObservation, RefreshState
from sluice.publication.direct_history import direct_batches
from sluice.publication.marks import find_lost_mark, marked_outputs, read_mark
from sluice.publication.staged_batch import StagedOutput
from sluice.tables.declared_tables import load_table


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedCheckpoint:
    """A checkpoint that no run continues and no command goes back to.

    stream, generation: whose it was last; of an abandoned refresh its stream, and no generation.
    of: the same for a person. path: of the folder, below the root of the checkpoints.
    closed_at: since when it is not needed: the next generation was opened, or a refresh cannot be taken back any more.
    """

    stream: str
    generation: int | None
    of: str
    checkpoint: str
    path: str
    closed_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownCheckpoints:
    """What the ledger knows of checkpoints.

    generations: by stream, oldest first. live: stream and generation of each live run.
    begun: the streams whose newest generation has recorded a batch: from then on the tables say where it stands.
    abandoned_at: when refreshes were given up, by number, as far as that is kept.
    """

    generations: Sequence[GenerationObservation]
    refreshes: Sequence[RefreshObservation]
    live: Collection[tuple[str, int]]
    begun: Collection[str]
    abandoned_at: Mapping[int, datetime] = field(default_factory=dict)


def newest_generations(generations: Sequence[GenerationObservation]) -> dict[str, GenerationObservation]:
    """The newest generation of each stream. generations: by stream, oldest first."""
    return {one.stream: one for one in generations}


def closed_checkpoints(known: KnownCheckpoints) -> Iterator[ClosedCheckpoint]:
    """The checkpoints that nothing needs, each folder once, whether or not there still is one."""
    shadows = {one.shadow: one for one in known.refreshes}
    of_folder: dict[str, list[ClosedCheckpoint | None]] = {}
    for generation in known.generations:
        refresh = shadows.get(generation.stream)
        if refresh is not None and refresh.state in (RefreshState.SWAPPED, RefreshState.TAKEN_BACK):
            continue  # its stream has the folder since, as a generation of its own
        closed = _closed(generation, known) if refresh is None else _abandoned(generation, refresh, known)
        of_folder.setdefault(generation.checkpoint, []).append(closed)
    for found in of_folder.values():
        closed_ones = [one for one in found if one is not None]
        if len(closed_ones) == len(found):
            yield max(closed_ones, key=lambda one: one.closed_at)


def _abandoned(
    generation: GenerationObservation, refresh: RefreshObservation, known: KnownCheckpoints
) -> ClosedCheckpoint | None:
    """The checkpoint of a shadow; none while the refresh is open. When its end was noted says nothing: that may have
    been long after it was given up. Where that time is not kept any more, the newest change of a file counts."""
    if refresh.state in OPEN_STATES or (generation.stream, generation.generation) in known.live:
        return None
    return ClosedCheckpoint(
        stream=refresh.stream,
        generation=None,
        of=f"refresh {refresh.number}, {refresh.state}",
        checkpoint=generation.checkpoint,
        path=_path(generation.stream, generation.generation),
        closed_at=known.abandoned_at.get(refresh.number, refresh.began_at),
    )


def _closed(generation: GenerationObservation, known: KnownCheckpoints) -> ClosedCheckpoint | None:
    """The checkpoint of a generation; none while something runs in it, may go back to it, or has not replaced it."""
    stream, number = generation.stream, generation.generation
    later = [one for one in known.generations if one.stream == stream and one.generation > number]
    refreshes = [one for one in known.refreshes if one.stream == stream]
    is_open = any(one.state in OPEN_STATES for one in refreshes)
    if not later or is_open or stream not in known.begun or (stream, number) in known.live:
        return None
    kept = [one.keeps_until for one in refreshes if one.leaves == number and one.keeps_until is not None]
    return ClosedCheckpoint(
        stream=stream,
        generation=number,
        of=f"generation {number}",
        checkpoint=generation.checkpoint,
        path=_placed(generation, known),
        closed_at=max([later[0].opened_at, *kept]),
    )


def _placed(generation: GenerationObservation, known: KnownCheckpoints) -> str:
    """The path of the folder of a generation: its own, or that of the generation from which it was handed over."""
    alike = (one for one in known.generations if one.checkpoint == generation.checkpoint)
    paths = (_path(one.stream, one.generation) for one in alike)
    return next(
        (path for path in paths if generation.checkpoint.endswith(f"/{path}")),
        _path(generation.stream, generation.generation),
    )


def _path(stream: str, generation: int) -> str:
    return checkpoint_of(stream, generation, checkpoints_root="").removeprefix("/")


def doubt_of(catalog: Catalog, newest: GenerationObservation, batch: BatchObservation) -> str:
    """Why it is not known that the tables of a stream stand in its newest generation, for a person; empty if it is.

    Parameters
    ----------
    newest: the generation. batch: the newest one of it in the ledger.
    """
    names = (name.removeprefix(OUTPUT_TABLE) for name in newest.identities if name.startswith(OUTPUT_TABLE))
    try:
        doubts = (_doubt_of(catalog, name, newest, batch) for name in names)
        return next(filter(None, doubts), "")
    except (DeliveryError, LakehouseError) as error:  # the checks name it, too
        return error.message


def _doubt_of(catalog: Catalog, name: str, newest: GenerationObservation, batch: BatchObservation) -> str:
    table = load_table(catalog, name)
    if table is None:
        return f"{name} is away, and may come back from a backup of another generation."
    found = _generations_on(table, newest.stream, batch)
    if not found:
        return f"{name} has no mark of {newest.stream}, so that it is not known in which generation it stands."
    if max(found) != newest.generation:  # outputs that had another name before keep the mark of an earlier one
        return f"{name} stands in generation {max(found)}, and the ledger in {newest.generation}: one was restored."
    return ""


def _generations_on(table: Table, stream: str, batch: BatchObservation) -> list[int]:
    """The generations that the marks of a stream show, or where they were removed its earlier marks and batches; those
    of its batches alone where it is delivered without marks."""
    own = (one for one in marked_outputs(table) if one.stream == stream)
    marks = (read_mark(table, stream=stream, output=one.output) for one in own)
    if found := [mark.generation for mark in marks if mark is not None]:
        return found
    target = ".".join(table.name())
    outputs = [*batch.published_rows, QUARANTINE_OUTPUT]
    lost = (find_lost_mark(table, StagedOutput(stream=stream, output=one, target=target)) for one in outputs)
    direct = (next(direct_batches(table, stream=stream, output=one), None) for one in outputs)
    return [one.generation for one in (*lost, *direct) if one is not None]
