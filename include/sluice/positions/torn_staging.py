"""Looks for staging tables of which nothing can be read: what they list is gone.

Clearing a staging table removes what it does not list any more, so that a catalog which was set back to before that
refers to files that are gone. Others may remove them, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from sluice.errors import DeliveryError, LakehouseError
from sluice.positions.stream_position import TableWitness
from sluice.publication.staged_batch import StagedOutput
from sluice.publication.undeclared_outputs import OutputTables, former_output, former_staging_tables
from sluice.stored_keys import STAGING_TARGET
from sluice.tables.catalog import catalog_refusals
from sluice.tables.inspection import READERS


def missing_list(staging: Table | None, *, is_whole: bool = False) -> str:
    """A file that a staging table refers to and that is gone: the manifest list of its newest snapshot. Empty while it
    can be read, or there is no table.

    Parameters
    ----------
    is_whole: whether the manifests in the list are looked for as well.

    Raises
    ------
    LakehouseError: when the object store or the catalog does not answer, or is another one than the catalog's.
    """
    if staging is None:
        return ""
    with catalog_refusals(f"look for the manifests of {'.'.join(staging.name())}"):
        while missing := next(_missing(staging, is_whole=is_whole), ""):
            before, staging = staging.metadata_location, staging.refresh()
            if staging.metadata_location == before:  # whoever clears it meanwhile moves it on first
                return missing
    return ""


def _missing(staging: Table, *, is_whole: bool) -> Iterator[str]:
    newest, io = staging.current_snapshot(), staging.io
    if newest is None:
        return
    if not io.new_input(staging.metadata_location).exists():  # its storage is not the one of the catalog, or not there
        raise LakehouseError(
            f"{staging.metadata_location}, the metadata that the catalog knows of {'.'.join(staging.name())}, is not "
            "in the storage, so nothing is said of what else is not there.",
            next_step="See that the storage that is configured is the one of the catalog.",
        )
    if not io.new_input(newest.manifest_list).exists():
        yield newest.manifest_list
    elif is_whole:
        paths = [manifest.manifest_path for manifest in newest.manifests(io)]
        with ThreadPoolExecutor(READERS) as pool:
            exist = list(pool.map(lambda path: io.new_input(path).exists(), paths))
        yield from (path for path, exists in zip(paths, exist, strict=True) if not exists)


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
            names = StagedOutput(stream=stream, output=output, target=staging.properties.get(STAGING_TARGET, ""))
            problem, step = _kept_from(catalog, staging, names, lost, generation=generation)
            yield TableWitness(
                output=names, position=None, lost="" if problem else lost, problem=problem, next_step=step
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
    return problem, f"Declare {names.output} again for {names.target}: a repair has them read again for it then."
