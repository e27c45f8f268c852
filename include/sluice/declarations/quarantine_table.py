"""The quarantine: a table of rejected rows, which the platform declares for each stream that has `quarantine: true`."""

from __future__ import annotations

from sluice.declarations.loaded_declarations import Declarations
from sluice.declarations.maintenance_policy import LoadedPolicy, OwnMaintenance
from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.declarations.table_declaration import PartitionField, TableColumn, TableDeclaration
from sluice.declarations.value_declaration import Column

REASON_COLUMNS = (
    Column(name="reason", type="string", required=True, doc="why it was rejected, as a sentence"),
    Column(name="kind", type="string", doc="why, in a word of Sluice; null where the transformation says why"),
    Column(name="path", type="string", doc="the column or field that the reason is about"),
    Column(name="quotes_data", type="boolean", doc="whether the reason repeats data of the row; null if unknown"),
)
"""Why a row is rejected. A transformation may leave out all but the reason."""

REJECTED_COLUMNS = (
    *REASON_COLUMNS,
    Column(name="position", type="string", doc="where it stood in its source, as JSON"),
    Column(name="payload", type="string", doc="the row as it came"),
)
"""What a rejected row consists of, before it is known of which batch it is."""

_COLUMNS = (
    Column(name="stream", type="string", required=True, doc="the stream that rejected the row"),
    Column(name="generation", type="int", required=True, doc="the generation of the stream's checkpoint"),
    Column(name="batch", type="long", required=True, doc="the batch within the generation"),
    *REJECTED_COLUMNS,
    Column(name="refused_at", type="timestamptz", required=True, doc="when"),
    Column(name="resolved_at", type="timestamptz", doc="when it was resolved; null while it is open"),
    Column(name="resolution", type="string", doc="how: corrected by a backfill, replayed, or discarded by a person"),
    Column(name="resolved_by", type="string", doc="what resolved it: the key of a backfill, or who asked"),
)


def quarantine_declaration(stream: StreamDeclaration, policy: LoadedPolicy | None = None) -> TableDeclaration:
    """The declaration of the table that holds the rejected rows of a stream. policy: of the deployment, for its
    maintenance; unset: by the defaults."""
    policy = policy or LoadedPolicy()
    return TableDeclaration(
        table=stream.quarantine_table,
        description=f"Rows that the stream {stream.stream} refused, each with the reason.",
        owner=stream.owner,
        tags=("quarantine",),
        columns=tuple(map(TableColumn.of, _COLUMNS)),
        partitioning=(PartitionField(column="refused_at", transform="month"),),
        maintenance=policy.maintenance_of(OwnMaintenance(table=stream.quarantine_table)),
    )


def all_tables(declarations: Declarations) -> dict[str, TableDeclaration]:
    """Every valid table by name: the declared ones, then the quarantine of each stream that has one."""
    declared = {name: table.declaration for name, table in sorted(declarations.tables.items())}
    streams = (stream.declaration for _, stream in sorted(declarations.streams.items()))
    return declared | {
        stream.quarantine_table: quarantine_declaration(stream, declarations.policy)
        for stream in streams
        if stream.quarantine
    }
