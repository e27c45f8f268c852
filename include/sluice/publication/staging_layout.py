"""Keeps the staging table of an output equal to its target, so that a file written once is right in both."""

from __future__ import annotations

from contextlib import suppress

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError, TableAlreadyExistsError
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import (
    AddPartitionSpecUpdate,
    AddSchemaUpdate,
    AddSortOrderUpdate,
    AssertRefSnapshotId,
    AssertTableUUID,
    RemovePropertiesUpdate,
    RemoveSnapshotRefUpdate,
    RemoveSnapshotsUpdate,
    SetCurrentSchemaUpdate,
    SetDefaultSortOrderUpdate,
    SetDefaultSpecUpdate,
    SetPropertiesUpdate,
    TableUpdate,
)
from pyiceberg.types import NestedField, StringType

from sluice.errors import UnpublishableError
from sluice.publication.data_files import Writer, folder_of
from sluice.publication.marks import refuse_unpublishable
from sluice.publication.pyiceberg_committer import UNCERTAIN
from sluice.publication.staged_batch import StagedOutput
from sluice.publication.staging_table import readable
from sluice.stored_keys import OPERATION_COLUMN, STAGING_TARGET, STAGING_TARGET_UUID
from sluice.tables.catalog import catalog_refusals
from sluice.tables.declared_tables import load_table, require_table

BACKFILL_NAMESPACE = "backfill_staging"
"""The namespace of the staging tables of backfills. Those in the namespace of streams are taken for outputs."""

REFRESH_NAMESPACE = "refresh_staging"
"""The namespace of the shadows into which refreshes build the new content of a table."""

_OPERATION_FIELD_ID = 1_000_000_000
"""Far above the ids that a target assigns to its own columns."""

_OWN_PLACES = frozenset({"write.metadata.path", "write.data.path", "write.wap.enabled"})
"""Properties that a staging table does not copy from its target: it has its own metadata, its data folder is set
explicitly, and a staged batch is not staged a second time."""

_DISTRIBUTION = "write.distribution-mode"

_LAST_ADDED = -1

_MOST_TRIES = 5


def ensure_staging_table(
    catalog: Catalog, *, stream: str, output: str, target: str, token: int, is_merged: bool = False
) -> str:
    """Create the staging table of an output, or make it equal to its target again. Nothing happens when it is equal.

    Field ids, partition spec, sort order and `write.*` properties are the target's. Files are written into the folder
    of the run below the target's data folder and stay there (`data_files`); `gc.enabled=false` keeps the maintenance
    of every engine from deleting them. Rows are sorted within files and not over all files of a batch: for that Spark
    would compute the batch twice, the first time for a sample.

    Parameters
    ----------
    target: `<namespace>.<table>`; it must exist.
    token: the fencing token of the run that stages.
    is_merged: whether Spark merges the staged rows; then the table has the column `OPERATION_COLUMN`.

    Returns
    -------
    The staging table's identifier, `staging.<stream>__<output>`.

    Raises
    ------
    LakehouseError: when the target does not exist, or the catalog refuses.
    UnpublishableError: when staged delivery cannot write into the target, or when batches for a dropped table of the
        same name are staged.
    """
    names = StagedOutput(stream=stream, output=output, target=target)
    wanted = require_table(catalog, target)
    refuse_unpublishable(wanted)
    folder = folder_of(wanted.metadata, Writer.of_run(token))
    staging = load_table(catalog, names.staging) or _create(catalog, names.staging, wanted, folder)
    _refuse_anothers_batches(staging, wanted)
    schema = _with_operation(wanted) if is_merged else wanted.schema()
    _make_equal(catalog, staging, wanted, schema=schema, folder=folder)
    return names.staging


def create_staging_copy(catalog: Catalog, name: str, *, target: str, writer: Writer) -> str:
    """Create an empty staging table of its own for a target, in place of one that an earlier attempt has left.

    The data files of the earlier attempt stay where they are: some of them may be live in the target.

    Parameters
    ----------
    name: its identifier. target: `<namespace>.<table>`; it must exist. writer: of the attempt.

    Raises
    ------
    LakehouseError: when the target does not exist, or the catalog refuses.
    UnpublishableError: when staged delivery cannot write into the target.
    """
    wanted = require_table(catalog, target)
    refuse_unpublishable(wanted)
    drop_staging_copy(catalog, name)
    folder = folder_of(wanted.metadata, writer)
    _make_equal(catalog, _create(catalog, name, wanted, folder), wanted, schema=wanted.schema(), folder=folder)
    return name


def drop_staging_copy(catalog: Catalog, name: str) -> None:
    """Drop a staging table, if there is one, without its files.

    Raises
    ------
    LakehouseError: when the catalog refuses.
    """
    with catalog_refusals(f"drop the table {name}"), suppress(NoSuchTableError):
        catalog.drop_table(name)


def empty_staging_table(catalog: Catalog, name: str) -> None:
    """Let a staging table list nothing, where nothing of what it lists can be read. What else it has and remembers
    stays; there need not be one.

    Raises
    ------
    LakehouseError: when the catalog refuses, as when somebody commits to it meanwhile.
    """
    staging = load_table(catalog, name)
    if staging is None or staging.metadata.current_snapshot_id is None:
        return
    unchanged = AssertRefSnapshotId(ref=MAIN_BRANCH, snapshot_id=staging.metadata.current_snapshot_id)
    listed = [snapshot.snapshot_id for snapshot in staging.metadata.snapshots]
    updates = (RemoveSnapshotRefUpdate(ref_name=MAIN_BRANCH), RemoveSnapshotsUpdate(snapshot_ids=listed))
    with catalog_refusals(f"empty the table {name}"):
        catalog.commit_table(staging, (AssertTableUUID(uuid=staging.metadata.table_uuid), unchanged), updates)


def _make_equal(catalog: Catalog, staging: Table, wanted: Table, *, schema: Schema, folder: str) -> None:
    """Others may commit at the same time: a driver that this run has replaced still stages a batch."""
    target, name = ".".join(wanted.name()), ".".join(staging.name())
    for left in reversed(range(_MOST_TRIES)):
        updates = plan_staging_updates(staging.metadata, wanted.metadata, schema=schema, folder=folder)
        if staging.properties.get(STAGING_TARGET) != target:
            updates = (*updates, SetPropertiesUpdate(updates={STAGING_TARGET: target}))
        if not updates:
            return
        with catalog_refusals(f"make {name} equal to {target}"):
            try:
                catalog.commit_table(staging, (AssertTableUUID(uuid=staging.metadata.table_uuid),), updates)
                return
            except UNCERTAIN:
                if not left:
                    raise
                staging = catalog.load_table(name)


def plan_staging_updates(
    staging: TableMetadata, target: TableMetadata, *, schema: Schema, folder: str
) -> tuple[TableUpdate, ...]:
    """Plan the updates that make a staging table equal to its target, with a schema and a folder of its own; none when
    it is."""
    return (
        *_schema_updates(staging, schema),
        *_spec_updates(staging, target),
        *_sort_updates(staging, target),
        *_property_updates(staging, target, folder),
    )


def _create(catalog: Catalog, name: str, target: Table, folder: str) -> Table:
    """Create it with the columns alone: the catalog assigns new field ids, so the layout is set afterwards."""
    namespace = name.partition(".")[0]
    with catalog_refusals(f"create the table {name}"):
        catalog.create_namespace_if_not_exists(namespace)
        try:
            return catalog.create_table(
                name,
                schema=target.schema(),
                partition_spec=UNPARTITIONED_PARTITION_SPEC,
                sort_order=UNSORTED_SORT_ORDER,
                properties={
                    "format-version": str(target.metadata.format_version),
                    **_properties(target.metadata, folder),
                },
            )
        except TableAlreadyExistsError:  # another driver has created it meanwhile
            return catalog.load_table(name)


def _refuse_anothers_batches(staging: Table, target: Table) -> None:
    known = staging.properties.get(STAGING_TARGET_UUID)
    newest = staging.current_snapshot()
    if known in (None, str(target.metadata.table_uuid)) or newest is None:
        return
    with (
        readable(staging),
        catalog_refusals(f"read the manifests of {'.'.join(staging.name())}", but_not=(FileNotFoundError,)),
    ):
        if any(m.has_added_files() or m.has_existing_files() for m in newest.manifests(staging.io)):
            raise UnpublishableError(
                f"{'.'.join(staging.name())} holds batches for an earlier table {'.'.join(target.name())}, which was "
                "dropped and created again.",
                next_step="Restore the earlier table, or discard the batches: `sluice batch abandon STREAM OUTPUT`.",
            )


def _with_operation(target: Table) -> Schema:
    """The schema of a target with the operation column.

    Raises
    ------
    UnpublishableError: when the target has a column of that name.
    """
    schema = target.schema()
    if OPERATION_COLUMN in schema.column_names:
        raise UnpublishableError(
            f"{'.'.join(target.name())} has a column {OPERATION_COLUMN}, a name that is reserved for staging tables.",
            next_step="Rename the column.",
        )
    operation = NestedField(_OPERATION_FIELD_ID, OPERATION_COLUMN, StringType(), required=False)
    return Schema(*schema.fields, operation, identifier_field_ids=schema.identifier_field_ids)


def _schema_updates(staging: TableMetadata, wanted: Schema) -> tuple[TableUpdate, ...]:
    if staging.schema() == wanted:
        return ()
    for known in staging.schemas:
        if known == wanted:
            return (SetCurrentSchemaUpdate(schema_id=known.schema_id),)
    schema_id = max(schema.schema_id for schema in staging.schemas) + 1
    return (
        AddSchemaUpdate(schema_=wanted.model_copy(update={"schema_id": schema_id})),
        SetCurrentSchemaUpdate(schema_id=_LAST_ADDED),
    )


def _spec_updates(staging: TableMetadata, target: TableMetadata) -> tuple[TableUpdate, ...]:
    wanted = target.spec()
    if staging.spec().fields == wanted.fields:
        return ()
    for known in staging.partition_specs:
        if known.fields == wanted.fields:
            return (SetDefaultSpecUpdate(spec_id=known.spec_id),)
    spec_id = max(spec.spec_id for spec in staging.partition_specs) + 1
    return (
        AddPartitionSpecUpdate(spec=wanted.model_copy(update={"spec_id": spec_id})),
        SetDefaultSpecUpdate(spec_id=_LAST_ADDED),
    )


def _sort_updates(staging: TableMetadata, target: TableMetadata) -> tuple[TableUpdate, ...]:
    wanted = target.sort_order_by_id(target.default_sort_order_id) or UNSORTED_SORT_ORDER
    default = staging.sort_order_by_id(staging.default_sort_order_id)
    if default is not None and default.fields == wanted.fields:
        return ()
    for known in staging.sort_orders:
        if known.fields == wanted.fields:
            return (SetDefaultSortOrderUpdate(sort_order_id=known.order_id),)
    order_id = max(order.order_id for order in staging.sort_orders) + 1
    return (
        AddSortOrderUpdate(sort_order=wanted.model_copy(update={"order_id": order_id})),
        SetDefaultSortOrderUpdate(sort_order_id=_LAST_ADDED),
    )


def _property_updates(staging: TableMetadata, target: TableMetadata, folder: str) -> tuple[TableUpdate, ...]:
    wanted = _properties(target, folder)
    changed = {name: value for name, value in wanted.items() if staging.properties.get(name) != value}
    gone = sorted(name for name in staging.properties if name.startswith("write.") and name not in wanted)
    updates: list[TableUpdate] = []
    if changed:
        updates.append(SetPropertiesUpdate(updates=changed))
    if gone:
        updates.append(RemovePropertiesUpdate(removals=gone))
    return tuple(updates)


def _properties(target: TableMetadata, folder: str) -> dict[str, str]:
    copied = {
        name: value
        for name, value in target.properties.items()
        if name.startswith(("write.", "commit.")) and name not in _OWN_PLACES
    }
    return copied | {
        **({_DISTRIBUTION: "hash"} if _is_sorted_over_all_files(target) else {}),
        "write.data.path": folder,
        "gc.enabled": "false",
        STAGING_TARGET_UUID: str(target.table_uuid),
    }


def _is_sorted_over_all_files(target: TableMetadata) -> bool:
    """Whether engines distribute the rows of a write by ranges, which is the default for a sorted table.

    Source: https://iceberg.apache.org/docs/latest/spark-writes/#writing-distribution-modes
    """
    order = target.sort_order_by_id(target.default_sort_order_id) or UNSORTED_SORT_ORDER
    return target.properties.get(_DISTRIBUTION, "range" if order.fields else "none") == "range"
