"""Checks that the files of staged batches exist before the target refers to them.

Staged files lie in the target's folder and are not in the target yet, so an orphan removal on the target deletes them
once they are old enough for it. A table that refers to a missing file cannot be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta

from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from sluice.errors import StagedFilesMissingError
from sluice.publication.staged_batch import StagedBatch
from sluice.publication.staging_table import staged_files
from sluice.tables.catalog import catalog_refusals
from sluice.tables.inspection import READERS

ORPHAN_AGE = timedelta(hours=12)
"""A younger file that this run has staged is assumed to exist: orphan removals spare the files of a day, most of them
those of three days. About the files of earlier runs nothing is assumed."""

_NAMED_FILES = 3


def old_batches(batches: Sequence[StagedBatch], *, now: datetime) -> tuple[StagedBatch, ...]:
    """The batches that were staged long enough ago for an orphan removal to have deleted their files."""
    return tuple(batch for batch in batches if now - batch.staged_at > ORPHAN_AGE)


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingFiles:
    """A staged batch of an output, and those of its files that are gone."""

    batch: StagedBatch
    files: tuple[DataFile, ...]


def find_missing_files(staging: Table, batches: Sequence[StagedBatch]) -> tuple[MissingFiles, ...]:
    """The batches whose files are gone, in order. The store is asked for every file, with one request for each.

    Parameters
    ----------
    staging: the loaded staging table. batches: from `staged_batches` of it.

    Raises
    ------
    LakehouseError: when the object store does not answer.
    """
    if not batches:
        return ()
    files = staged_files(staging, batches)
    paths = [file.file_path for batch in batches for file in files[batch.snapshot_id]]
    with catalog_refusals(f"look for the files of {'.'.join(staging.name())}"), ThreadPoolExecutor(READERS) as pool:
        exist = list(pool.map(lambda path: staging.io.new_input(path).exists(), paths))
    gone = {path for path, exists in zip(paths, exist, strict=True) if not exists}
    missing = (
        MissingFiles(batch=batch, files=tuple(file for file in files[batch.snapshot_id] if file.file_path in gone))
        for batch in batches
    )
    return tuple(one for one in missing if one.files)


def refuse_missing_files(missing: Sequence[MissingFiles]) -> None:
    """Refuse to publish batches whose files are gone.

    Raises
    ------
    StagedFilesMissingError: when there are any, with the batches, the files and the number of their rows.
    """
    if not missing:
        return
    gone = [file for one in missing for file in one.files]
    first = missing[0].batch.summary
    keys = ", ".join(f"{one.batch.summary.key} (output {one.batch.summary.output})" for one in missing)
    named = ", ".join(sorted(file.file_path for file in gone)[:_NAMED_FILES])
    rest = f" and {len(gone) - _NAMED_FILES} more" if len(gone) > _NAMED_FILES else ""
    raise StagedFilesMissingError(
        f"{sum(file.record_count for file in gone)} staged rows cannot be published: {len(gone)} files of the batches "
        f"{keys} are gone: {named}{rest}. Later batches wait behind the first of them. An orphan removal on the target "
        "deletes staged files that are older than its limit.",
        next_step="Restore the files from the versions or a backup of the object store and start the stream again; or "
        f"give up the rows of the whole batch: `sluice batch reject {first.key.stream} {first.key.batch}`.",
    )
