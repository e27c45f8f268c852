"""Reads the batches of Iceberg's own streaming sink from a table's history, and decides whether a run may begin.

A stream with `delivery: direct` has no staging table and no mark. Only a snapshot with the id of Spark's query and the
number of the batch proves that a batch is visible, as long as it is an ancestor of main: the sink skips a batch when an
ancestor of main has that number or a later one. Check and append are two steps, so a driver that was suspended in
between can make its batch visible a second time. Decision 0024 says what is done about that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pyiceberg.table import Table

from sluice.errors import DivergedError, StaleTokenError
from sluice.publication.marks import entries_of, history_of_main
from sluice.stored_keys import GENERATION, OUTPUT, RUN_ID, STREAM, TOKEN

QUERY_ID = "spark.sql.streaming.queryId"
EPOCH = "spark.sql.streaming.epochId"
"""The number of the batch, in Iceberg's words. Source: `org.apache.iceberg.spark.source.SparkWrite`."""

_ADDED_ROWS = "added-records"

CLOCKS_APART = timedelta(minutes=10)
"""How far the clocks of two writers of a table may be apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectWriter:
    """A run that writes through Iceberg's own sink. query_id: of the checkpoint; none before the first start."""

    stream: str
    output: str
    generation: int
    run_id: str
    token: int
    query_id: str | None = None

    def properties(self) -> dict[str, str]:
        """The entries that each of its snapshots carries beside Iceberg's own."""
        return {
            STREAM: self.stream,
            OUTPUT: self.output,
            GENERATION: str(self.generation),
            RUN_ID: self.run_id,
            TOKEN: str(self.token),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectBatch:
    """A batch in a table's history.

    rows: as Iceberg counted them. run_id, token: of the run that made it visible.
    """

    generation: int
    batch: int
    snapshot_id: int
    committed_at: datetime
    rows: int
    run_id: str
    token: int
    query_id: str

    @property
    def position(self) -> tuple[int, int]:
        """What batches are ordered by: generation, then number."""
        return (self.generation, self.batch)


ENTRIES = (STREAM, OUTPUT, GENERATION, EPOCH, QUERY_ID, RUN_ID, TOKEN, _ADDED_ROWS)
"""The entries of a summary that `read_direct_batch` reads."""


def read_direct_batch(
    entries: Mapping[str, str], *, snapshot_id: int, committed_at_ms: int, stream: str, output: str
) -> DirectBatch | None:
    """Read the batch from a snapshot's summary; none when the sink of this output did not write it."""
    if (entries.get(STREAM), entries.get(OUTPUT)) != (stream, output) or EPOCH not in entries:
        return None
    return DirectBatch(
        generation=int(entries[GENERATION]),
        batch=int(entries[EPOCH]),
        snapshot_id=snapshot_id,
        committed_at=_instant(committed_at_ms),
        rows=int(entries.get(_ADDED_ROWS, 0)),
        run_id=entries[RUN_ID],
        token=int(entries[TOKEN]),
        query_id=entries[QUERY_ID],
    )


def direct_batches(table: Table, *, stream: str, output: str) -> Iterator[DirectBatch]:
    """The batches in main's history, the newest first, as far as the metadata lists it."""
    for snapshot in history_of_main(table):
        found = read_direct_batch(
            entries_of(snapshot),
            snapshot_id=snapshot.snapshot_id,
            committed_at_ms=snapshot.timestamp_ms,
            stream=stream,
            output=output,
        )
        if found is not None:
            yield found


def require_direct_start(table: Table, writer: DirectWriter, *, unfinished_since: datetime | None) -> None:
    """Check that a run may begin: no newer run has written, and the sink will recognise a batch that is repeated.

    Parameters
    ----------
    table: the target, freshly loaded.
    unfinished_since: when the batch that the checkpoint has planned and not committed was planned; none without one.

    Raises
    ------
    StaleTokenError: when a newer run has made a batch visible.
    DivergedError: when main's history does not reach back to that time: it is unknown whether the batch is visible, and
        the sink would append it.
    """
    newest = next(direct_batches(table, stream=writer.stream, output=writer.output), None)
    if newest is not None and newest.token > writer.token:
        raise stale(writer, newest, target=".".join(table.name()))
    if unfinished_since is not None and (newest is None or newest.query_id != writer.query_id):
        refuse_unknown_batch(table, stream=writer.stream, unfinished_since=unfinished_since)


def refuse_unknown_batch(table: Table, *, stream: str, unfinished_since: datetime) -> None:
    """Refuse when a history that shows no batch of a query does not reach back to when it planned one.

    Parameters
    ----------
    unfinished_since: when the batch was planned.

    Raises
    ------
    DivergedError: it is unknown whether the batch is visible.
    """
    oldest = _oldest_listed_at(table)
    if oldest is not None and oldest > unfinished_since - CLOCKS_APART:
        raise DivergedError(
            f"A batch of {stream} was planned {unfinished_since:%Y-%m-%d %H:%M:%S %Z} and not committed in the "
            f"checkpoint, and the history of {'.'.join(table.name())} begins {oldest:%Y-%m-%d %H:%M:%S %Z}: its "
            "snapshots were expired or replaced meanwhile, so it is unknown whether the batch is in the table.",
            next_step=f"Compare the table with the newest recorded batch (`sluice stream show {stream}`), then "
            f"read the inputs again into a new generation: `sluice stream reset {stream}` shows what that "
            "repeats. `delivery: staged` has a mark for this.",
        )


def stale(writer: DirectWriter, newest: DirectBatch, *, target: str) -> StaleTokenError:
    """The error of a run that finds a batch of a newer run."""
    return StaleTokenError(
        f"This run's token is {writer.token}, and batch {newest.batch} on {target} was written with {newest.token}: a "
        "newer run has taken the stream over.",
        next_step="No action is needed: the newer run continues.",
    )


def _oldest_listed_at(table: Table) -> datetime | None:
    """The commit time of the oldest listed ancestor of main; none when the history is complete.

    A snapshot without a parent is not always the first one: pyiceberg's expiry removes the parent's id from the
    snapshots that it keeps. The first commit of a table has the sequence number 1.
    """
    snapshot = table.current_snapshot()
    while snapshot is not None:
        parent = table.snapshot_by_id(snapshot.parent_snapshot_id) if snapshot.parent_snapshot_id is not None else None
        if parent is None:
            is_whole = snapshot.parent_snapshot_id is None and (snapshot.sequence_number or 0) <= 1
            return None if is_whole else _instant(snapshot.timestamp_ms)
        snapshot = parent
    return None


def _instant(since_1970_ms: int) -> datetime:
    return datetime.fromtimestamp(since_1970_ms / 1000, UTC)
