"""Checks the checkpoints of streams beside the other witnesses of their positions. For the DAG `checkpoint_health` and
the CLI.

A finding for each property of a checkpoint, one for the position, and one for the files that were published: those of a
table that is not read may be gone without a failure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import islice

from pyiceberg.catalog import Catalog
from pyiceberg.manifest import ManifestEntry
from pyiceberg.table import Table

from sluice.declarations.loaded_declarations import Declarations
from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.errors import DeliveryError, LakehouseError
from sluice.ledger.connection import Ledger, database_time
from sluice.ledger.recorded_checks import (
    CheckpointFinding,
    CheckpointObservation,
    CheckpointProperty,
    record_checkpoint_check,
)
from sluice.positions.judge_position import disagreeing, judge_position
from sluice.positions.observe_position import observe_position
from sluice.positions.restore_copy import observe_state_copies
from sluice.positions.stream_position import Agreement, StreamPosition, Witness
from sluice.publication.data_files import absent_files, named
from sluice.publication.marks import batch_of
from sluice.publication.staged_batch import StagedOutput
from sluice.settings import Settings
from sluice.tables.catalog import catalog_refusals, open_catalog
from sluice.tables.declared_tables import load_table

_MOST_FILES = 20
"""How many files of a table are looked for: with eight requests at once below 0.1 s."""

_MOST_MANIFESTS = 4


def check_checkpoints(
    ledger: Ledger, declarations: Declarations, settings: Settings, *, streams: Sequence[str] = ()
) -> tuple[CheckpointObservation, ...]:
    """Check the checkpoints of streams and record what was found.

    Parameters
    ----------
    streams: the streams to check; every declared one when empty.

    Returns
    -------
    One observation for each stream that has been started; a stream without a generation has no checkpoint to check.

    Raises
    ------
    UsageError: when a stream is not declared.
    LedgerError: when the ledger cannot be reached. A storage that does not answer is a finding of its stream.
    """
    names = streams or tuple(declarations.streams)
    catalog, checked = _catalog(settings), []
    for declaration in [declarations.stream(name).declaration for name in names]:
        check = _check(ledger, catalog, declaration, settings, now=database_time(ledger))
        if check is not None:
            record_checkpoint_check(ledger, check)
            checked.append(check)
    return tuple(checked)


def _catalog(settings: Settings) -> Catalog | None:
    try:
        return open_catalog(settings)
    except LakehouseError:  # each stream says that it does not answer
        return None


def _check(
    ledger: Ledger, catalog: Catalog | None, stream: StreamDeclaration, settings: Settings, *, now: datetime
) -> CheckpointObservation | None:
    seen = observe_position(ledger, catalog, stream, settings, now=now)
    if not seen.number:
        return None
    judged = seen.health or _unread(seen, now)
    return replace(judged, findings=(*judged.findings, *_beside(catalog, seen, settings)))


def _unread(seen: StreamPosition, now: datetime) -> CheckpointObservation:
    """The check of a checkpoint whose storage does not answer."""
    problem = seen.unknown.get(Witness.CHECKPOINT, "")
    return CheckpointObservation(
        stream=seen.stream,
        generation=seen.number,
        location=seen.checkpoint,
        checked_at=now,
        findings=(CheckpointFinding(name=CheckpointProperty.EXISTS, healthy=False, message=problem),),
        newest_batch=None,
        newest_commit_age_seconds=None,
    )


def _beside(catalog: Catalog | None, seen: StreamPosition, settings: Settings) -> Iterator[CheckpointFinding]:
    # What of the checkpoint alone is damaged or unknown has its findings already.
    known = {(Witness.CHECKPOINT, Agreement.DAMAGED), (Witness.CHECKPOINT, Agreement.UNKNOWN)}
    findings = judge_position(seen)
    others = [one for one in disagreeing(findings) if (one.witness, one.agreement) not in known]
    yield CheckpointFinding(
        name=CheckpointProperty.POSITION,
        healthy=not others,
        message=" ".join(f"{one}. {one.next_step}" for one in others) or "; ".join(one.message for one in findings),
    )
    problem, looked = _look_for_files(catalog, [one.output for one in seen.tables])
    yield CheckpointFinding(
        name=CheckpointProperty.PUBLISHED_FILES,
        healthy=not problem,
        message=problem or f"{looked} of the published files were looked for",
    )
    copies = observe_state_copies(seen.generation, settings.object_store)
    yield CheckpointFinding(
        name=CheckpointProperty.COPIES,
        healthy=copies is None or copies.is_usable,
        message="it has no state that needs a copy" if copies is None else copies.sentence(newest_batch=seen.committed),
    )


def _look_for_files(catalog: Catalog | None, outputs: Sequence[StagedOutput]) -> tuple[str, int]:
    """What is wrong, empty when nothing is, and how many files were looked for. A catalog that does not answer is no
    problem of the files."""
    problems, looked = [], 0
    if catalog is None:
        return "", 0
    for output in outputs:
        try:
            table = load_table(catalog, output.target)
            entries = list(islice(_entries(table), _MOST_FILES)) if table is not None else []
            problems += [_problem(table, output, entries)] if table is not None else []
            looked += len(entries)
        except (LakehouseError, DeliveryError) as error:
            problems.append(f"{output.target} cannot be looked at: {error}")
    return "; ".join(filter(None, problems)), looked


def _entries(table: Table) -> Iterator[ManifestEntry]:
    """The files of the newest manifests."""
    newest = table.current_snapshot()
    with catalog_refusals(f"read the manifests of {'.'.join(table.name())}"):
        manifests = newest.manifests(table.io) if newest is not None else []
        for manifest in sorted(manifests, key=lambda one: one.sequence_number, reverse=True)[:_MOST_MANIFESTS]:
            yield from manifest.fetch_manifest_entry(table.io)


def _problem(table: Table, output: StagedOutput, entries: Sequence[ManifestEntry]) -> str:
    gone = absent_files(table.io, [one.data_file for one in entries], table=output.target)
    if not gone:
        return ""
    paths = {file.file_path for file in gone}
    snapshots = {one.snapshot_id for one in entries if one.data_file.file_path in paths}
    listed = (table.snapshot_by_id(one) for one in snapshots if one is not None)
    batches = sorted(str(found.key) for one in listed if one is not None and (found := batch_of(one, output)))
    of = f", of the batches {', '.join(batches)}" if batches else ""
    return (
        f"{len(gone)} of {len(entries)} files of {output.target} that were looked for are gone, with "
        f"{sum(file.record_count for file in gone):,} rows{of}: {named(gone)}. The table cannot be read. Restore them "
        "from the object store's versions, or replace their interval by a backfill."
    )
