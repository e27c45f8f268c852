"""The highest fencing token that the tables of a stream have seen: in their marks, staging tables and snapshots.

A ledger that was replaced by an older copy, or by an empty one, may give a run a token that its tables refuse. The
tables remember the tokens longer, so a run compares its token with theirs before it begins.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.ledger.connection import Ledger
from sluice.ledger.run_values import RunObservation
from sluice.ledger.token_raising import raise_token
from sluice.publication.batch_commands import staged_outputs
from sluice.publication.direct_history import direct_batches
from sluice.publication.marks import read_mark
from sluice.stored_keys import TOKEN
from sluice.tables.declared_tables import load_table

_log = logging.getLogger(__name__)


def with_raised_token(
    run: RunObservation, declaration: StreamDeclaration, *, ledger: Ledger, catalog: Catalog
) -> RunObservation:
    """The run with a token that its tables admit. It is raised at most once, before the run publishes anything.

    Raises
    ------
    LeaseLostError: when the token has to be raised and the run does not hold its lease.
    MarkError, LakehouseError: when the tables cannot be read.
    """
    seen = highest_seen_token(catalog, declaration)
    if seen < run.token:
        return run
    raised = raise_token(ledger, run.run_id, above=seen)
    _log.warning(
        "the tables of %s have seen token %d and the ledger gave %d: an older copy of the ledger, or another one, has "
        "replaced it; this run continues with token %d",
        run.stream,
        seen,
        run.token,
        raised.token,
    )
    return raised


def highest_seen_token(catalog: Catalog, declaration: StreamDeclaration) -> int:
    """The highest token that the tables of a stream have seen; 0 before its first run.

    Raises
    ------
    MarkError: when a mark cannot be read.
    LakehouseError: when a table cannot be loaded.
    """
    return max((*_of_staged(catalog, declaration), *_of_direct(catalog, declaration)), default=0)


def _of_staged(catalog: Catalog, declaration: StreamDeclaration) -> Iterator[int]:
    for output in staged_outputs(declaration):
        if (target := load_table(catalog, output.target)) is not None:
            mark = read_mark(target, stream=output.stream, output=output.output)
            yield mark.token if mark is not None else 0
        if (staging := load_table(catalog, output.staging)) is not None:
            yield _newest_staged(staging)


def _newest_staged(staging: Table) -> int:
    summaries = (snapshot.summary for snapshot in staging.metadata.snapshots if snapshot.summary is not None)
    return max((int(summary.additional_properties.get(TOKEN, 0)) for summary in summaries), default=0)


def _of_direct(catalog: Catalog, declaration: StreamDeclaration) -> Iterator[int]:
    for name, declared in declaration.outputs.items():
        if declared.iceberg is None or not declared.iceberg.is_direct:
            continue
        if (target := load_table(catalog, declared.iceberg.table)) is not None:
            batches = direct_batches(target, stream=declaration.stream, output=name)
            yield max((batch.token for batch in batches), default=0)
