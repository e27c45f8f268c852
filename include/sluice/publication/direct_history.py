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

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.errors import DivergedError, RolledBackError, StaleTokenError
from sluice.ledger.batches import recent_batches
from sluice.ledger.connection import Ledger
from sluice.ledger.generations import all_generations
from sluice.publication.chain import MarkPosition
from sluice.publication.earlier_metadata import earlier_snapshot, led_past
from sluice.publication.marks import entries_of, history_of_main
from sluice.publication.staged_batch import StagedOutput
from sluice.stored_keys import GENERATION, OUTPUT, RUN_ID, STREAM, TOKEN
from sluice.tables.declared_tables import load_table

QUERY_ID = "spark.sql.streaming.queryId"
EPOCH = "spark.sql.streaming.epochId"
"""The number of the batch, in Iceberg's words. Source: `org.apache.iceberg.spark.source.SparkWrite`."""

_ADDED_ROWS = "added-records"

_RECORDED = 128
"""How many batches of the ledger are looked at. One whose snapshot was not found has none."""

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
    def at(self) -> MarkPosition:
        """How far the output is visible with it, as a mark would show."""
        return MarkPosition(generation=self.generation, batch=self.batch, token=self.token, end_offsets_digest=None)

    @property
    def position(self) -> tuple[int, int]:
        """What batches are ordered by: generation, then number."""
        return (self.generation, self.batch)

    def is_of_query_left_by(self, writer: DirectWriter) -> bool:
        """Whether it belongs to the query of a run and to a generation before its own, which a continuation has left.
        The sink knows a batch by query and number alone."""
        return self.query_id == writer.query_id and self.generation < writer.generation


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


def direct_tables(
    catalog: Catalog, declaration: StreamDeclaration
) -> Iterator[tuple[StagedOutput, Table, DirectBatch | None]]:
    """The output that Iceberg's own sink writes, with its table and the newest batch of it that main's history shows.

    Raises
    ------
    LakehouseError: when the table cannot be loaded.
    """
    for name, declared in declaration.outputs.items():
        if declared.iceberg is not None and declared.iceberg.is_direct:
            output = StagedOutput(stream=declaration.stream, output=name, target=declared.iceberg.table)
            table = load_table(catalog, output.target)
            if table is not None:
                yield output, table, next(direct_batches(table, stream=output.stream, output=name), None)


def require_direct_start(
    table: Table,
    writer: DirectWriter,
    *,
    planned: int,
    committed: int,
    continues_behind: int | None,
    unfinished_since: datetime | None,
    recorded: int | None,
) -> None:
    """Check that a run may begin: no newer run has written, the table stands where checkpoint and ledger do, and the
    sink will recognise a batch that is repeated.

    Parameters
    ----------
    table: the target, freshly loaded.
    planned, committed: the newest batch that the generation may have delivered, and has committed; -1 without any.
    continues_behind: the batch behind which the generation continues the one before; none where it does not.
    recorded: from `recorded_snapshot`.
    unfinished_since: when the batch that the checkpoint has planned and not committed was planned; none without one.

    Raises
    ------
    StaleTokenError: when a newer run has made a batch visible.
    RolledBackError: when main does not lead to the recorded batch any more.
    DivergedError: when the table shows a batch that the checkpoint has not planned, which the sink would take another
        one for; when main's history does not reach back to that time: it is unknown whether the batch is visible, and
        the sink would append it.
    """
    newest = next(direct_batches(table, stream=writer.stream, output=writer.output), None)
    if newest is not None and newest.token > writer.token:
        raise stale(writer, newest, target=".".join(table.name()))
    if newest is not None and newest.position > (writer.generation, planned):
        raise _newer_table(writer, newest, planned=planned, target=".".join(table.name()))
    if is_set_back(table, newest, recorded, generation=writer.generation, query_id=writer.query_id, done=committed):
        raise rolled_back_behind(committed, stream=writer.stream, target=".".join(table.name()))
    behind = committed if continues_behind is None else continues_behind
    if newest is not None and newest.is_of_query_left_by(writer) and newest.batch > behind:
        raise left_driver(writer, newest, is_skipped=committed > behind, target=".".join(table.name()))
    if unfinished_since is not None and newest is None:
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


def left_driver(writer: DirectWriter, batch: DirectBatch, *, is_skipped: bool, target: str) -> DivergedError:
    """The error of a batch that a driver of the generation before a continuation has written behind it.

    Parameters
    ----------
    is_skipped: whether the checkpoint has committed a batch that the sink has skipped for it.
    """
    again = (
        f"set main back to before snapshot {batch.snapshot_id} and start the stream: what that batch read is read again"
    )
    reset = f"`sluice stream reset {writer.stream} --dry-run` shows what reading the inputs again repeats"
    return DivergedError(
        f"{target} got batch {batch.generation}:{batch.batch} of {writer.stream} from run {batch.run_id} behind where "
        f"generation {writer.generation} continues: Iceberg's sink skips the batches of generation {writer.generation} "
        "up to that number, and their rows would be lost.",
        next_step=f"Make sure that no old driver runs. Then {reset if is_skipped else again}.",
    )


def rolled_back_behind(committed: int, *, stream: str, target: str) -> RolledBackError:
    """The error of a table that does not show a batch which the checkpoint has committed."""
    return RolledBackError(
        f"{target} was rolled back: main does not lead to batch {committed} of {stream} any more, which its checkpoint "
        "has committed.",
        next_step="Set main back to its snapshot if that was not meant; the sink does not know one that was "
        f"cherry-picked. Otherwise `sluice stream reset {stream} --dry-run` shows what reading the inputs again "
        "repeats.",
    )


def _newer_table(writer: DirectWriter, newest: DirectBatch, *, planned: int, target: str) -> DivergedError:
    shows = f"{target} shows batch {newest.generation}:{newest.batch} of {writer.stream}"
    if newest.generation > writer.generation:
        return DivergedError(
            f"{shows}, and the ledger knows no generation behind {writer.generation}: it is an older copy.",
            next_step=f"`sluice stream repair {writer.stream} --dry-run` shows what writes the ledger back.",
        )
    return older_checkpoint(writer.stream, planned=planned, shows=shows)


def older_checkpoint(stream: str, *, planned: int, shows: str) -> DivergedError:
    """The error of a checkpoint that has not planned a batch which an output has.

    Parameters
    ----------
    planned: the newest batch that it may have delivered; -1 without any. shows: where which batch is.
    """
    ends = f"ends with batch {planned}: it is" if planned >= 0 else "has delivered none: it, or the ledger, is"
    return DivergedError(
        f"{shows}, and the checkpoint of {stream} {ends} an older copy. What remembers a batch by its number would "
        "take another one for it.",
        next_step="Bring the newer copy of the checkpoint back, or of the ledger. Without one, `sluice stream reset "
        f"{stream} --dry-run` shows what reading the inputs again repeats.",
    )


def recorded_snapshot(ledger: Ledger, stream: str, output: str, *, query_id: str | None) -> int | None:
    """The snapshot of the newest batch of a query that the ledger has with one; none where it has none. A continuation
    keeps the query, and a reset does not.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    own = {one.generation for one in all_generations(ledger, stream=stream) if one.query_id == query_id}
    batches = (one for one in recent_batches(ledger, stream, _RECORDED) if one.key.generation in own)
    return next((one.snapshot_ids[output] for one in batches if output in one.snapshot_ids), None)


def is_set_back(
    table: Table,
    newest: DirectBatch | None,
    recorded: int | None,
    *,
    generation: int,
    query_id: str | None,
    done: int,
) -> bool:
    """Whether main does not show a batch that is done. The sink commits a snapshot for each, an empty one too, and a
    history that shows an older one is whole behind that.

    Parameters
    ----------
    newest: what main shows. recorded: from `recorded_snapshot`. done: the newest batch that is committed in the
        checkpoint; -1 without any.
    """
    if done < 0:
        return False
    if newest is not None and newest.query_id == query_id and newest.batch < done:
        return True
    if newest is not None and newest.query_id != query_id and newest.generation < generation:
        return True
    return recorded is not None and is_rolled_back(table, recorded)


def is_rolled_back(table: Table, snapshot_id: int) -> bool:
    """Whether main does not descend from a snapshot that the table lists, or has listed. Where earlier metadata is gone
    and history was expired before it, nothing is known."""
    oldest = None
    for oldest in history_of_main(table):
        if oldest.snapshot_id == snapshot_id:
            return False
    found = earlier_snapshot(table, snapshot_id)
    if found is None or oldest is None:
        return found is not None
    number = found.sequence_number or 0
    if number == 0:  # a table of the format version 1 has no order of commits
        return False
    is_before = (oldest.sequence_number or 0) < number
    return is_before or led_past(table, oldest, snapshot_id=snapshot_id, sequence_number=number)


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
