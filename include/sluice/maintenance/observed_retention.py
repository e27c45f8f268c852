"""Observes what decides about the old rows of a table: the files, the streams that read them, and their refreshes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime, timedelta

from pyiceberg.table import Table

from sluice.declarations.loaded_declarations import Declarations
from sluice.declarations.maintenance_declaration import RetentionDeclaration
from sluice.ledger.connection import Ledger
from sluice.ledger.refreshes import OPEN_STATES, newest_refresh
from sluice.ledger.runs import live_run
from sluice.maintenance import row_retention
from sluice.maintenance.old_files import find_old_files
from sluice.maintenance.pin_plan import ReaderObservation
from sluice.maintenance.row_retention import NO_RETENTION, OldFiles, RowRetention, read_up_to, stands_at
from sluice.maintenance.table_readers import streamed_tables
from sluice.sources.iceberg_positions import history_of
from sluice.stored_keys import is_shadow_name
from sluice.tables.removed_rows import removed_from
from sluice.tables.table_observation import TableObservation


def observe_retention(
    ledger: Ledger,
    declarations: Declarations,
    table: Table,
    *,
    policy: RetentionDeclaration | None,
    seen: TableObservation,
    readers: Sequence[ReaderObservation],
    kept_streams: Collection[str],
    unreadable: Collection[str],
    now: datetime,
    agreed: RetentionDeclaration | None = None,
) -> RowRetention:
    """Observe a table that declares a retention of rows; of another one nothing is read.

    Parameters
    ----------
    table: freshly loaded, after its readers were observed. seen: the same, observed.
    kept_streams: streams whose declaration cannot be read now, or that run, and the shadows of refreshes.
    unreadable: those of them whose declaration cannot be read now.
    now: by the clock of the ledger. Where that of this process is behind it, that one counts.
    agreed: the retention to which a person agrees now; unset for none.

    Raises
    ------
    LedgerError, LakehouseError: when the ledger or the table cannot be read.
    """
    if policy is None or policy.column is None or policy.older_than is None:
        return NO_RETENTION
    observed = {(reader.stream, reader.input) for reader in readers}
    outdated = outdated_runs(ledger, declarations, {stream for stream, _ in observed} | set(kept_streams))
    respected = set(kept_streams) - (set(declarations.streams) - outdated)
    others = tuple(stands_at(seen.references, respected, besides=observed))
    pinned = {stream for stream, _ in others}
    bound = read_up_to(
        readers,
        history=tuple(history_of(table)),
        numbers={one.snapshot_id: one.sequence_number or 0 for one in table.snapshots()},
        kept=[reference.snapshot_id for _, reference in others],
    )
    unknown = sorted(one for one in pinned - outdated if not is_shadow_name(one))
    waits = (
        *_refreshes(ledger, readers),
        *map(_of_an_earlier_one, sorted(outdated & (pinned | {stream for stream, _ in observed}))),
        *map(_of_a_broken_file, sorted(set(unreadable) - pinned)),
    )
    return RowRetention(
        old=_old_files(table, policy.column, policy.older_than, bound, now=now),
        stopping=(
            *_stopping(declarations, seen.table),
            *(_of_an_unknown_one(stream, is_declared=stream in unreadable) for stream in unknown),
        ),
        waits_for="; ".join(waits),
        format_version=table.metadata.format_version,
        rows=seen.rows,
        earlier=removed_from(table),
        agreed=agreed,
    )


def _old_files(table: Table, column: str, older_than: timedelta, bound: int | None, *, now: datetime) -> OldFiles:
    now = min(now.astimezone(UTC), datetime.now(UTC))  # no row goes because one clock is ahead
    arrived = now - row_retention.ARRIVAL_GRACE
    return find_old_files(table, column=column, before=now - older_than, read_up_to=bound, arrived_before=arrived).seen


def outdated_runs(ledger: Ledger, declarations: Declarations, streams: Collection[str]) -> frozenset[str]:
    """Those of some streams with a run that carries out another declaration than the one that is loaded."""
    with ledger.transaction() as connection:
        runs = {one: live_run(connection, one) for one in sorted(streams) if one in declarations.streams}
    return frozenset(
        name for name, run in runs.items() if run and run.declaration_digest != declarations.streams[name].digest
    )


def _of_an_earlier_one(stream: str) -> str:
    return (
        f"the run of {stream} carries out an earlier declaration, by which it may stop where rows are deleted, or read "
        f"from elsewhere: `sluice stream restart {stream}`"
    )


def _of_a_broken_file(stream: str) -> str:
    return (
        f"the declaration of {stream} cannot be read, and {stream} may read this table from its beginning: repair it, "
        "`sluice validate` shows what is wrong"
    )


def _of_an_unknown_one(stream: str, *, is_declared: bool) -> str:
    way_out = "repair it, `sluice validate` shows what is wrong" if is_declared else f"`sluice stream stop {stream}`"
    return f"{stream}, whose declaration is not known, would stop where rows are deleted, if it says so: {way_out}"


def _stopping(declarations: Declarations, table: str) -> Iterator[str]:
    for loaded in declarations.streams.values():
        for name, source in streamed_tables(loaded.declaration):
            if source.table == table and source.on_delete == "fail":
                yield f"{loaded.name} (input {name}) would stop where rows are deleted: declare `on_delete: skip` there"


def _refreshes(ledger: Ledger, readers: Sequence[ReaderObservation]) -> Iterator[str]:
    """The refreshes that read the table again, of streams that read it."""
    for stream in dict.fromkeys(reader.stream for reader in readers):
        newest = newest_refresh(ledger, stream)
        if newest is not None and newest.state in OPEN_STATES:
            yield f"refresh {newest.number} of {stream} reads the table"
