"""Publications that were not announced to Airflow as asset events yet, and when the increments of streams ended well.

Asynchronous for the triggerer, which watches continuous streams; without that for the tasks of increments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import BigInteger, ColumnElement, Integer, Row, Select, and_, cast, func, or_, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Mapped, mapped_column
from sqlalchemy.sql.dml import ReturningInsert

from sluice.ledger.batches import Batch, PublicationKey
from sluice.ledger.connection import Ledger
from sluice.ledger.ledger_table import LedgerTable
from sluice.ledger.trigger_queries import query_row


class Announcement(LedgerTable):
    """Up to which batch of a stream the publications on a table were announced to Airflow."""

    __tablename__ = "announcements"

    table: Mapped[str] = mapped_column(primary_key=True)
    stream: Mapped[str] = mapped_column(primary_key=True)
    generation: Mapped[int]
    batch: Mapped[int]
    announced_at: Mapped[datetime] = mapped_column(server_default=func.now())


_BEFORE_ALL = -1
"""Less than every generation and every batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnannouncedPublications:
    """The batches of one stream that became visible in one table since the last announcement.

    newest: the newest of them. batches, rows: how many they are, and how many rows they brought together.
    snapshot_id: of the newest; unset when its run ended before it reported one. watermark: of the newest; unset without
        one.
    """

    table: str
    newest: PublicationKey
    batches: int
    rows: int
    snapshot_id: int | None
    watermark: datetime | None = None


async def observe_unannounced(
    ledger_url: str, *, table: str, stream: str, output: str
) -> UnannouncedPublications | None:
    """What a stream has published on a table since its last announcement; none when there is nothing.

    Before the first announcement everything is unannounced, so that no publication is lost while no triggerer runs.

    Parameters
    ----------
    output: the stream's output that writes the table.
    """
    query = _unannounced(table=table, stream=stream, output=output, is_visible=is_published(output, by="snapshot"))
    return _publications(await query_row(ledger_url, query), table=table, stream=stream)


def find_unannounced(ledger: Ledger, *, table: str, stream: str, output: str) -> UnannouncedPublications | None:
    """What the increments of a stream have published on a table since the last announcement; none without anything.

    Every batch of an increment is visible when the increment has ended. One whose run ended before it was recorded has
    rows and no snapshot.

    Parameters
    ----------
    output: the stream's output that writes the table.
    """
    is_visible = is_published(output, by="rows")
    with ledger.transaction() as connection:
        row = connection.execute(
            _unannounced(table=table, stream=stream, output=output, is_visible=is_visible)
        ).one_or_none()
    return _publications(row, table=table, stream=stream)


async def record_announcement(ledger_url: str, publications: UnannouncedPublications) -> None:
    """Record that everything up to the newest of these publications was announced.

    Raises
    ------
    LedgerError: when the ledger cannot be reached; the same publications are then announced once more.
    """
    await query_row(ledger_url, _announcement(publications))


def note_announcement(ledger: Ledger, publications: UnannouncedPublications) -> None:
    """Record that everything up to the newest of these publications was announced.

    Raises
    ------
    LedgerError: when the ledger cannot be reached; the same publications are then announced once more.
    """
    with ledger.transaction() as connection:
        connection.execute(_announcement(publications))


def _unannounced(*, table: str, stream: str, output: str, is_visible: ColumnElement[bool]) -> Select[*tuple[Any, ...]]:
    announced = (
        select(Announcement.generation, Announcement.batch)
        .where(Announcement.table == table, Announcement.stream == stream)
        .subquery()
    )
    generation = func.coalesce(select(announced.c.generation).scalar_subquery(), cast(_BEFORE_ALL, Integer))
    batch = func.coalesce(select(announced.c.batch).scalar_subquery(), cast(_BEFORE_ALL, BigInteger))
    is_newer = or_(Batch.generation > generation, and_(Batch.generation == generation, Batch.batch > batch))
    return (
        select(
            Batch.generation,
            Batch.batch,
            cast(Batch.snapshot_ids[output].astext, BigInteger).label("snapshot_id"),
            Batch.watermark,
            func.count().over().label("batches"),
            cast(func.sum(_rows_of(output)).over(), BigInteger).label("rows"),
        )
        .where(Batch.stream == stream, is_visible, is_newer)
        .order_by(Batch.generation.desc(), Batch.batch.desc())
        .limit(1)
    )


def is_published(output: str, *, by: Literal["snapshot", "rows"]) -> ColumnElement[bool]:
    """Whether a batch has published something by an output: what is announced to those who read its table.

    Parameters
    ----------
    by: the snapshot of a continuous stream's batch, which it reports once it is visible; the rows of an increment's.
    """
    is_there = Batch.snapshot_ids.has_key(output) if by == "snapshot" else _rows_of(output) > 0
    return and_(is_there, Batch.is_rejected.is_(False))


def _rows_of(output: str) -> ColumnElement[int]:
    return cast(func.coalesce(Batch.published_rows[output].astext, "0"), BigInteger)


def _publications(row: Row[Any] | None, *, table: str, stream: str) -> UnannouncedPublications | None:
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


def _announcement(publications: UnannouncedPublications) -> ReturningInsert[Any]:
    newest = {"generation": publications.newest.generation, "batch": publications.newest.batch}
    return (
        insert(Announcement)
        .values(table=publications.table, stream=publications.newest.stream, **newest)
        .on_conflict_do_update(
            index_elements=[Announcement.table, Announcement.stream], set_={**newest, "announced_at": func.now()}
        )
        .returning(Announcement.table)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class IncrementObservation:
    """The newest increment of a stream that ended well. ended_at: by the database's clock."""

    stream: str
    ended_at: datetime


class NewestIncrement(LedgerTable, record=IncrementObservation, key=("stream",), now=("ended_at",)):
    """When an increment of a stream last ended well."""

    __tablename__ = "newest_increments"


def record_increment(ledger: Ledger, stream: str) -> None:
    """Record that an increment of a stream has ended well now."""
    now = {"ended_at": func.now()}
    recorded = insert(NewestIncrement).values(stream=stream)
    with ledger.transaction() as connection:
        connection.execute(recorded.on_conflict_do_update(index_elements=[NewestIncrement.stream], set_=now))


@dataclass(frozen=True, slots=True, kw_only=True)
class TableWriter:
    """An output of a stream that writes a table. is_incremental: whether its batches are those of increments."""

    stream: str
    output: str
    is_incremental: bool


def rows_since(ledger: Ledger, writers: Mapping[str, Sequence[TableWriter]], since: datetime) -> datetime | None:
    """Since when every one of some tables has had batches newer than a time; none when one has none, or no writer.

    Only a batch counts that is announced to those who wait for the table: it has published into it.

    Parameters
    ----------
    writers: of each table what writes it.
    """
    if not writers or not all(writers.values()):
        return None
    firsts: list[datetime | None] = []
    with ledger.transaction() as connection:
        for of_table in writers.values():
            publishes = or_(*(_publishes(writer) for writer in of_table))
            first = select(func.min(Batch.recorded_at)).where(publishes, Batch.recorded_at > since)
            firsts.append(connection.execute(first).scalar_one())
    known = [first for first in firsts if first is not None]
    return max(known) if len(known) == len(firsts) else None


def _publishes(writer: TableWriter) -> ColumnElement[bool]:
    by: Literal["rows", "snapshot"] = "rows" if writer.is_incremental else "snapshot"
    return and_(Batch.stream == writer.stream, is_published(writer.output, by=by))
