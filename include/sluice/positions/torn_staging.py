"""Looks for staging tables of which nothing can be read: what they list is gone.

Clearing a staging table removes what it does not list any more, so that a catalog which was set back to before that
refers to files that are gone. Others may remove them, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from sluice.positions.stream_position import TableWitness
from sluice.publication.staged_batch import StagedOutput
from sluice.publication.undeclared_outputs import OutputTables, find_undeclared_outputs
from sluice.tables.catalog import catalog_refusals
from sluice.tables.declared_tables import require_table
from sluice.tables.inspection import READERS


def missing_list(staging: Table | None, *, is_whole: bool = False) -> str:
    """A file that a staging table refers to and that is gone: the manifest list of its newest snapshot. Empty while it
    can be read, or there is no table.

    Parameters
    ----------
    is_whole: whether the manifests in the list are looked for as well.

    Raises
    ------
    LakehouseError: when the object store or the catalog does not answer.
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
    DeliveryError, LakehouseError: when a table cannot be loaded.
    """
    for one in find_undeclared_outputs(catalog, stream, declared):
        lost = missing_list(require_table(catalog, one.staging), is_whole=True)
        names = StagedOutput(stream=stream, output=one.output, target=one.target or "")
        if lost and one.waiting_in(generation):
            problem = (
                f"{one.rows:,} rows wait for the former output {one}, and {lost} is gone, without which none is read"
            )
            step = f"Declare {one.output} again for {names.target}: a repair has them read again for it then."
            yield TableWitness(output=names, position=None, problem=problem, next_step=step)
        elif lost:
            yield TableWitness(output=names, position=None, lost=lost)
