"""Writes a decided repair into the folder of a checkpoint, file by file, and says beforehand what it writes; records
what staging tables of which nothing can be read had promised, and finds which of former outputs they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from sluice.checkpoints.checkpoint_copies import copies_location, forget_copies_behind
from sluice.checkpoints.checkpoint_files import CheckpointFiles, open_checkpoint_files
from sluice.checkpoints.checkpoint_layout import METADATA, OFFSETS, checksum_path, hidden_checksum_path, log_files
from sluice.errors import DeliveryError
from sluice.ledger.batches import find_batch, record_batch
from sluice.ledger.connection import Ledger
from sluice.positions.repair_decision import CheckpointRepair
from sluice.positions.restore_copy import put_copy
from sluice.positions.stream_position import StreamPosition, TableWitness
from sluice.publication.chain import plan_publication
from sluice.publication.crash_points import CrashPoint, Reached
from sluice.publication.data_files import missing_list
from sluice.publication.marks import batch_of, entries_of, history_of_main
from sluice.publication.staged_batch import StagedBatch, StagedOutput, recovered_observation
from sluice.publication.start_check import known_rejections
from sluice.publication.undeclared_outputs import (
    OutputTables,
    former_output,
    former_staging_tables,
    load_output_tables,
    staged_target,
)
from sluice.settings import Settings
from sluice.stored_keys import FIRST_BATCH


def write_repair(
    seen: StreamPosition,
    repair: CheckpointRepair,
    settings: Settings,
    reached: Reached,
    *,
    before_metadata: Callable[[], None] = lambda: None,
) -> None:
    """Put a copy in the place of a checkpoint where one is restored, and remove and write its files, in their order.
    Copies that have committed more than the tables hold go: these batches are read again, and get other states.

    Parameters
    ----------
    seen: where the stream stands beside its tables.
    before_metadata: does what has to be done before a driver starts, once nothing else is left to be decided.

    Raises
    ------
    CheckpointError: when a file cannot be removed or written.
    """
    files = open_checkpoint_files(seen.checkpoint, settings.object_store)
    store = open_checkpoint_files(copies_location(seen.checkpoint), settings.object_store)
    if repair.restores is not None:
        put_copy(files, store, repair.restores, reached)
    if seen.done is not None:
        forget_copies_behind(store, committed=seen.done)
    for path in repair.removes:
        _remove(files, path)
        reached(CrashPoint.FILE_CHANGED)
    _write(files, {path: text for path, text in repair.writes.items() if path != METADATA}, reached)
    before_metadata()
    _write(files, {path: text for path, text in repair.writes.items() if path == METADATA}, reached)


def write_log_entries(seen: StreamPosition, repair: CheckpointRepair, settings: Settings, reached: Reached) -> None:
    """Write what a repair brings back of the logs, and leave all else: as long as tables or ledger know later batches,
    they know where these end. Whoever is interrupted behind that finds it in the logs. An older copy of a checkpoint
    loses its `metadata` before: it has no later commit, which would keep a driver from starting behind a half of it. A
    plan that followed another batch goes before that batch is written as the tables have it: it would seem to follow.

    Parameters
    ----------
    seen: where the stream stands beside its tables.

    Raises
    ------
    CheckpointError: when a file cannot be written.
    """
    files = open_checkpoint_files(seen.checkpoint, settings.object_store)
    entries = {path: text for path, text in repair.writes.items() if path != METADATA}
    if METADATA in repair.removes and seen.done is not None and seen.committed <= seen.done:
        _remove(files, METADATA)
        reached(CrashPoint.FILE_CHANGED)
    for path in plans_of_others(seen, repair):
        _remove(files, path)
        reached(CrashPoint.FILE_CHANGED)
    _write(files, entries, reached)


def plans_of_others(seen: StreamPosition, repair: CheckpointRepair) -> Iterator[str]:
    """The plans that go and follow an entry that is written over, the newest first."""
    logged = log_files(seen.contents.files, OFFSETS) if seen.contents is not None else {}
    changed = min((number for number, one in logged.items() if one.path in repair.writes), default=None)
    for number, one in sorted(logged.items(), reverse=True):
        if changed is not None and number > changed and one.path in repair.removes:
            yield one.path


def _write(files: CheckpointFiles, writes: Mapping[str, str], reached: Reached) -> None:
    for path, text in writes.items():
        files.remove(hidden_checksum_path(path))  # Hadoop would compare the new content with it
        files.write_text(path, text)
        reached(CrashPoint.FILE_CHANGED)


def _remove(files: CheckpointFiles, path: str) -> None:
    """Remove a file after its checksums: a file without any is read as it is."""
    beside = checksum_path(path)
    for one in (hidden_checksum_path(beside), beside, hidden_checksum_path(path), path):
        files.remove(one)


def sentences_of_files(seen: StreamPosition, written: CheckpointRepair) -> Iterator[str]:
    """What is put into a checkpoint, and what is removed from it."""
    if (copy := written.restores) is not None:
        yield (
            f"Put the copy of {copy.copied_at:%Y-%m-%d %H:%M:%S} UTC, with {len(copy.files)} files behind batch "
            f"{copy.committed}, in the place of what is in {seen.checkpoint}."
        )
    removed = [path for path in written.removes if path != METADATA]
    if removed:
        yield f"Remove from {seen.checkpoint}: {_named(removed)}."
    yield f"Write into it: {_named(list(written.writes))}. It stands behind batch {written.stands_at} then."
    if written.replays:
        yield (
            f"The next start runs the batches {written.replays[0]} to {written.replays[-1]} again, one after another "
            "to the end that each had, for the state alone: their rows are in the tables and do not appear twice."
        )
    if written.runs_again is not None:
        yield f"Spark runs batch {written.runs_again} again; its rows are in the tables and do not appear twice."


def sentence_of_forgotten(recorded: int) -> str:
    """How many later batches the ledger forgets."""
    return (
        f"Forget {recorded:,} later batches in the ledger, with what their rules found; the event keeps their number."
    )


def sentence_of_rows(read_again: int | None, lost: int | None = 0, *, doubled: int | None = 0) -> str:
    """How many rows are read again, lost and doubled. Unset: unknown."""
    again, gone, twice = (f"{one:,}" if one is not None else "an unknown number" for one in (read_again, lost, doubled))
    rows = again if read_again is not None else f"{again[0].upper()}{again[1:]} of"
    return f"{rows} rows are read again, {gone} are lost, {twice} are doubled."


def sentences_of_repetition(stream: str, repeating: Sequence[str], read_again: int | None) -> Iterator[str]:
    """That outputs get rows a second time. read_again: how many rows are; unset when that is unknown."""
    if repeating and read_again != 0:
        yield (
            f"What {stream} reads again comes a second time to {', '.join(repeating)}: no mark shows what is there, "
            "and no batch is known there by its number."
        )


def _named(paths: list[str]) -> str:
    shown = ", ".join(paths[:6])
    return shown if len(paths) <= 6 else f"{shown} and {len(paths) - 6} more files"


def record_visible(ledger: Ledger, catalog: Catalog, seen: StreamPosition, *, stands_at: int) -> None:
    """Record the batches that every table shows and the ledger does not have, from what is staged of them: once the
    staging tables are emptied, no start finds these. Their summaries can be read while their files cannot.

    Parameters
    ----------
    stands_at: the newest batch that the checkpoint has committed once it is repaired. What Spark runs again behind it,
        Spark reports itself.

    Raises
    ------
    DeliveryError, LakehouseError, LedgerError: when a staging table cannot be loaded, or the ledger does not answer.
    """
    marks = [one.position.batch for one in seen.tables if one.is_declared and one.position is not None]
    visible = min((*marks, stands_at))
    staged: dict[int, dict[str, StagedBatch]] = {}
    snapshots: dict[int, dict[str, int]] = {}
    targets: list[tuple[Table, StagedOutput]] = []
    for one in seen.tables:
        tables = load_output_tables(catalog, one.output)
        if tables.target is not None:
            targets.append((tables.target, one.output))
        found = plan_publication(one.position, tables.staged).published if one.position is not None else tables.staged
        for batch in found:
            generation, number = batch.position
            if generation == seen.number and number <= visible and not batch.is_overtaken:
                staged.setdefault(number, {})[one.output.output] = batch
                snapshots.setdefault(number, {}).update(_visible_in(tables.target, one.output, batch))
    rejected = known_rejections(ledger, targets, stream=seen.stream, generation=seen.number)
    for number in sorted(staged.keys() - rejected):  # a start writes back what was rejected
        observed = replace(recovered_observation(staged[number]), snapshot_ids=snapshots[number])
        if find_batch(ledger, observed.key) is None:
            record_batch(ledger, observed)


def _visible_in(target: Table | None, output: StagedOutput, batch: StagedBatch) -> Mapping[str, int]:
    """The snapshot in which a batch became visible, as far as main lists it: batches that are published together have
    one, with the key of the last of them."""
    for snapshot in history_of_main(target) if target is not None else ():
        found = batch_of(snapshot, output)
        if found is None or found.key.generation != batch.position[0]:
            continue
        first = int(entries_of(snapshot).get(FIRST_BATCH, found.key.batch))
        if first <= batch.position[1] <= found.key.batch:
            return {output.output: snapshot.snapshot_id}
    return {}


def torn_former_outputs(
    catalog: Catalog, stream: str, declared: Sequence[OutputTables], *, generation: int
) -> Iterator[TableWitness]:
    """The outputs that a stream declares no more and whose staging tables cannot be read, which its start needs.

    Raises
    ------
    DeliveryError, LakehouseError: when a staging table cannot be loaded.
    """
    for output, staging in former_staging_tables(catalog, stream, declared):
        if lost := missing_list(staging, is_whole=True):
            # Where nothing names the target, nothing waits for it either, and the staging table stands for it.
            target = staged_target(staging, stream=stream, output=output) or ".".join(staging.name())
            names = StagedOutput(stream=stream, output=output, target=target)
            problem, step = _kept_from(catalog, staging, names, lost, generation=generation)
            yield TableWitness(
                output=names,
                position=None,
                lost="" if problem else lost,
                problem=problem,
                next_step=step,
                is_declared=False,
            )


def _kept_from(catalog: Catalog, staging: Table, names: StagedOutput, lost: str, *, generation: int) -> tuple[str, str]:
    """Why the staging table of a former output is not emptied, and what is to be done; empty where it may be."""
    try:
        former = former_output(catalog, staging, stream=names.stream, output=names.output)
    except DeliveryError as error:
        return error.message, error.next_step or ""
    # A ledger that was set back knows an earlier generation than the batches have.
    rows = [one.summary.rows or 0 for one in former.waiting if one.summary.key.generation >= generation]
    if not rows:
        return "", ""
    problem = f"{sum(rows):,} rows wait for the former output {former}, and {lost} is gone, without which none is read"
    if former.position is None:
        return problem, f"`sluice batch abandon {names.stream} {names.output}` gives them up."
    return problem, (
        f"Declare {names.output} again for {names.target}: a repair has them read again for it then. "
        f"`sluice batch abandon {names.stream} {names.output}` gives them up."
    )
