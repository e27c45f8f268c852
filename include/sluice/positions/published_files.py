"""Looks whether files that a stream has published are still there: a sample, because the store is asked for each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from pyiceberg.catalog import Catalog
from pyiceberg.manifest import ManifestEntry
from pyiceberg.table import Table

from sluice.errors import DeliveryError, LakehouseError
from sluice.publication.marks import batch_of
from sluice.publication.present_files import absent_files, named
from sluice.publication.staged_batch import StagedOutput
from sluice.tables.catalog import catalog_refusals
from sluice.tables.declared_tables import load_table

MOST_FILES = 20
"""How many files of a table are looked for: with eight requests at once below 0.1 s."""

_MOST_MANIFESTS = 4


def look_for_files(catalog: Catalog | None, outputs: Sequence[StagedOutput]) -> tuple[str, int]:
    """What is wrong, empty when nothing is, and how many files were looked for. A catalog that does not answer is no
    problem of the files."""
    problems, looked = [], 0
    if catalog is None:
        return "", 0
    for output in outputs:
        try:
            table = load_table(catalog, output.target)
            entries = list(islice(_entries(table), MOST_FILES)) if table is not None else []
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
