"""Publications that were not announced to Airflow as asset events yet. Asynchronous, for the triggerer."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import BigInteger, Integer, and_, cast, func, or_, select
from sqlalchemy.dialects.postgresql import insert

from sluice.ledger.models import Announcement, Batch
from sluice.ledger.records.stream_batch import PublicationKey
from sluice.ledger.trigger_queries import query_row

_BEFORE_ALL = -1
"""Less than every generation and every batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnannouncedPublications:
    """The batches of one stream that became visible in one table since the last announcement.

    newest: the newest of them. batches, rows: how many they are, and how many rows they brought together.
    snapshot_id: of the newest. watermark: of the newest; unset without one.
    """

    table: str
    newest: PublicationKey
    batches: int
    rows: int
    snapshot_id: int
    watermark: datetime | None = None


async def observe_unannounced(
    ledger_url: str, *, table: str, stream: str, output: str
) -> UnannouncedPublications | None:
    """What a stream has published on a table since its last announcement; none when there is nothing.

    Before the first announcement everything is unannounced, so that no publication is lost while no triggerer runs.

    Parameters
    ----------
    output: the stream's output that writes the table.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    announced = (
        select(Announcement.generation, Announcement.batch)
        .where(Announcement.table == table, Announcement.stream == stream)
        .subquery()
    )
    generation = func.coalesce(select(announced.c.generation).scalar_subquery(), cast(_BEFORE_ALL, Integer))
    batch = func.coalesce(select(announced.c.batch).scalar_subquery(), cast(_BEFORE_ALL, BigInteger))
    is_unannounced = and_(
        Batch.stream == stream,
        Batch.snapshot_ids.has_key(output),
        or_(Batch.generation > generation, and_(Batch.generation == generation, Batch.batch > batch)),
    )
    rows = cast(func.coalesce(Batch.published_rows[output].astext, "0"), BigInteger)
    query = (
        select(
            Batch.generation,
            Batch.batch,
            cast(Batch.snapshot_ids[output].astext, BigInteger).label("snapshot_id"),
            Batch.watermark,
            func.count().over().label("batches"),
            cast(func.sum(rows).over(), BigInteger).label("rows"),
        )
        .where(is_unannounced)
        .order_by(Batch.generation.desc(), Batch.batch.desc())
        .limit(1)
    )
    row = await query_row(ledger_url, query)
    if row is None:
        return None
    return UnannouncedPublications(
        table=table,
        newest=PublicationKey(stream=stream, generation=row.generation, batch=row.batch),
        batches=row.batches,
        rows=row.rows,
        snapshot_id=row.snapshot_id,
        watermark=row.watermark,
    )


async def record_announcement(ledger_url: str, publications: UnannouncedPublications) -> None:
    """Record that everything up to the newest of these publications was announced.

    Raises
    ------
    LedgerError: when the ledger cannot be reached; the same publications are then announced once more.
    """
    newest = {"generation": publications.newest.generation, "batch": publications.newest.batch}
    await query_row(
        ledger_url,
        insert(Announcement)
        .values(table=publications.table, stream=publications.newest.stream, **newest)
        .on_conflict_do_update(
            index_elements=[Announcement.table, Announcement.stream], set_={**newest, "announced_at": func.now()}
        )
        .returning(Announcement.table),
    )
