"""Records a refresh whose commit has landed and whose process died before it could say so.

Every run of a stream, and every command over its refreshes, settles first: the mark on the table shows whether the
commit landed, because no one else opens the generation of a refresh that is not settled.
"""

from __future__ import annotations

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.ledger.connection import Ledger
from sluice.ledger.refreshes import RefreshObservation, RefreshState, record_swap, record_taken_back, unsettled_refresh
from sluice.publication.marks import read_mark
from sluice.refresh.observe_refresh import refreshed_output
from sluice.tables.declared_tables import require_table


def settle_refresh(catalog: Catalog, ledger: Ledger, declaration: StreamDeclaration) -> RefreshObservation | None:
    """Record what the table shows of an unsettled refresh.

    Returns
    -------
    The refresh as it is recorded now; none when the stream has none that is unsettled.

    Raises
    ------
    MarkError, LakehouseError, LedgerError: when the mark, the table or the ledger cannot be read.
    """
    refresh = unsettled_refresh(ledger, declaration.stream)
    if refresh is None:
        return None
    output = refreshed_output(declaration)
    target = require_table(catalog, output.target)
    mark = read_mark(target, stream=output.stream, output=output.output)
    if mark is None or mark.generation != refresh.opens:
        return refresh
    snapshot_ids = {output.output: mark.snapshot_id}
    if refresh.state is RefreshState.TAKING_BACK:
        return record_taken_back(ledger, refresh.number, batch=mark.batch, snapshot_ids=snapshot_ids)
    rows = rows_at(target, mark.snapshot_id)
    return record_swap(ledger, refresh.number, batch=mark.batch, snapshot_ids=snapshot_ids, rows=rows)


def rows_at(table: Table, snapshot_id: int) -> int:
    """The rows of a snapshot as its summary counts them; 0 when it is not listed any more."""
    snapshot = table.snapshot_by_id(snapshot_id)
    summary = snapshot.summary.additional_properties if snapshot is not None and snapshot.summary is not None else {}
    return int(summary.get("total-records", 0))
