"""What a refresh asks of the content of a loaded table: rows, delete files, and how MERGE writes it."""

from __future__ import annotations

from pyiceberg.manifest import ManifestContent
from pyiceberg.table import Table

from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.tables.catalog import catalog_refusals

_MERGE_MODE = "write.merge.mode"


def rows_of(table: Table) -> int | None:
    """The rows of the newest snapshot as its summary counts them; none when it does not say, 0 without a snapshot."""
    newest = table.current_snapshot()
    if newest is None:
        return 0
    counted = newest.summary.additional_properties.get("total-records") if newest.summary is not None else None
    return None if counted is None else int(counted)


def delete_files_of(table: Table) -> int:
    """How many live delete files the newest snapshot has.

    Raises
    ------
    LakehouseError: when a manifest cannot be read.
    """
    newest = table.current_snapshot()
    if newest is None:
        return 0
    with catalog_refusals(f"read the manifests of {'.'.join(table.name())}"):
        return sum(
            len(manifest.fetch_manifest_entry(table.io, discard_deleted=True))
            for manifest in newest.manifests(table.io)
            if manifest.content == ManifestContent.DELETES
        )


def merges_on_read(table: Table, declaration: StreamDeclaration) -> bool:
    """Whether a stream merges into a table whose MERGE writes delete files."""
    tables = (declared.iceberg for declared in declaration.outputs.values())
    is_merged = any(one is not None and one.mode == "merge" for one in tables)
    return is_merged and table.properties.get(_MERGE_MODE, "copy-on-write") != "copy-on-write"
