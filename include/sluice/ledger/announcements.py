"""Which publications were announced to Airflow, and which are news. Asynchronous, for the triggerer."""

from __future__ import annotations

from sqlalchemy import BigInteger, Integer, and_, cast, func, or_, select
from sqlalchemy.dialects.postgresql import insert

from sluice.ledger.models import Announcement, Batch
from sluice.ledger.records.batch import PublicationKey
from sluice.ledger.records.publication_news import PublicationNews
from sluice.ledger.watching import ask

_BEFORE_ALL = -1
"""Less than every generation and every batch."""


async def observe_news(ledger_url: str, *, table: str, stream: str, output: str) -> PublicationNews | None:
    """What a stream has published on a table since its last announcement; none when there is nothing.

    Before the first announcement everything is news, so that nothing that was published while nobody watched is lost.

    Parameters
    ----------
    output: the stream's output that writes the table.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    told = (
        select(Announcement.generation, Announcement.batch)
        .where(Announcement.table == table, Announcement.stream == stream)
        .subquery()
    )
    generation = func.coalesce(select(told.c.generation).scalar_subquery(), cast(_BEFORE_ALL, Integer))
    batch = func.coalesce(select(told.c.batch).scalar_subquery(), cast(_BEFORE_ALL, BigInteger))
    is_news = and_(
        Batch.stream == stream,
        Batch.snapshot_ids.has_key(output),
        or_(Batch.generation > generation, and_(Batch.generation == generation, Batch.batch > batch)),
    )
    rows = cast(func.coalesce(Batch.published_rows[output].astext, "0"), BigInteger)
    question = (
        select(
            Batch.generation,
            Batch.batch,
            cast(Batch.snapshot_ids[output].astext, BigInteger).label("snapshot_id"),
            Batch.watermark,
            func.count().over().label("batches"),
            cast(func.sum(rows).over(), BigInteger).label("rows"),
        )
        .where(is_news)
        .order_by(Batch.generation.desc(), Batch.batch.desc())
        .limit(1)
    )
    row = await ask(ledger_url, question)
    if row is None:
        return None
    return PublicationNews(
        table=table,
        newest=PublicationKey(stream=stream, generation=row.generation, batch=row.batch),
        batches=row.batches,
        rows=row.rows,
        snapshot_id=row.snapshot_id,
        watermark=row.watermark,
    )


async def record_announcement(ledger_url: str, news: PublicationNews) -> None:
    """Remember that everything up to the newest of these publications was announced.

    Raises
    ------
    LedgerError: when the ledger cannot be reached; the same news are then told once more.
    """
    told = {"generation": news.newest.generation, "batch": news.newest.batch}
    await ask(
        ledger_url,
        insert(Announcement)
        .values(table=news.table, stream=news.newest.stream, **told)
        .on_conflict_do_update(
            index_elements=[Announcement.table, Announcement.stream], set_={**told, "announced_at": func.now()}
        )
        .returning(Announcement.table),
    )
