"""The checkpoint generations. The path of a checkpoint follows from stream and generation; it cannot be chosen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, Select, cast, func, or_, select, update
from sqlalchemy.dialects.postgresql import JSONB, insert
from sqlalchemy.orm import Mapped

from sluice.errors import CheckpointError
from sluice.ledger.connection import Ledger
from sluice.ledger.events import Actor, Event, EventAction, add_event
from sluice.ledger.ledger_table import LedgerTable
from sluice.ledger.stored_values import record_of

LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)
"""Before any batch."""

OUTPUT_TABLE = "output table "
"""How the name begins under which a generation keeps the id of a table that it writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationObservation:
    """One checkpoint lineage.

    checkpoint: the URI of the checkpoint folder.
    fingerprint: what of the declaration the checkpoint is bound to; empty before the first start.
    query_id: the id in the checkpoint; unset before the first start, unless it continues another. It never changes.
    begun_at: when its first run began to deliver; unset before, and then no batch of it is delivered.
    continues_behind: the batch behind which it continues the generation before, with the same query; unset otherwise.
    opened_by: who left the generation before it behind; empty for the first, which the stream's first run opens.
    identities: the ids of what it reads and writes, by kind and name (`sluice.sources.source_identities`).
    """

    stream: str
    generation: int
    checkpoint: str
    opened_at: datetime
    query_id: str | None = None
    begun_at: datetime | None = None
    continues_behind: int | None = None
    opened_by: str = ""
    fingerprint: Mapping[str, str] = field(default_factory=dict, hash=False)
    identities: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def may_deliver_since(self) -> datetime:
        """Since when a batch of it may be delivered. A continuation gives the batch that it plans the time of the one
        before; a generation that was written back is older than its row."""
        return LONG_AGO if self.continues_behind is None else self.opened_at


class Generation(LedgerTable, record=GenerationObservation, key=("stream", "generation"), now=("opened_at",)):
    """A checkpoint lineage of a stream. It has no fingerprint before its first start."""

    __tablename__ = "generations"

    fingerprint: Mapped[dict[str, Any] | None]


def current_generation(ledger: Ledger, stream: str, *, checkpoints_root: str) -> GenerationObservation:
    """The newest generation of a stream; the first one is opened when there is none.

    Parameters
    ----------
    checkpoints_root: the URI below which checkpoints lie. It places a new generation only; an open one does not move.
    """
    with ledger.transaction() as connection:
        row = connection.execute(select_newest_generation(stream)).one_or_none()
        if row is None:
            checkpoint = checkpoint_of(stream, 1, checkpoints_root=checkpoints_root)
            first = insert(Generation).values(stream=stream, generation=1, checkpoint=checkpoint)
            opened = connection.execute(first.on_conflict_do_nothing().returning(Generation.generation))
            if opened.one_or_none() is not None:
                add_event(connection, _first_generation(stream, checkpoint))
            row = connection.execute(select_newest_generation(stream)).one()
    return record_of(GenerationObservation, row)


def find_generation(ledger: Ledger, stream: str) -> GenerationObservation | None:
    """The newest generation of a stream; none before its first start. Unlike `current_generation` it opens nothing."""
    with ledger.transaction() as connection:
        row = connection.execute(select_newest_generation(stream)).one_or_none()
    return None if row is None else record_of(GenerationObservation, row)


def find_numbered_generation(ledger: Ledger, stream: str, number: int) -> GenerationObservation | None:
    """A generation of a stream by its number, the newest or an earlier one; none when it was never opened."""
    is_it = (Generation.stream == stream, Generation.generation == number)
    with ledger.transaction() as connection:
        row = connection.execute(select(*Generation.columns()).where(*is_it)).one_or_none()
    return None if row is None else record_of(GenerationObservation, row)


def all_generations(ledger: Ledger, *, stream: str | None = None) -> tuple[GenerationObservation, ...]:
    """Every generation by stream, oldest first: a row for each reset.

    Parameters
    ----------
    stream: whose they are; none for those of every stream and shadow.
    """
    chosen = select(*Generation.columns()).order_by(Generation.stream, Generation.generation)
    with ledger.transaction() as connection:
        rows = connection.execute(chosen if stream is None else chosen.where(Generation.stream == stream)).all()
    return tuple(record_of(GenerationObservation, row) for row in rows)


def checkpoint_of(stream: str, generation: int, *, checkpoints_root: str) -> str:
    """The URI at which the checkpoint of a generation is placed when it opens."""
    return f"{checkpoints_root.rstrip('/')}/{stream}/{generation}"


def record_begun(ledger: Ledger, stream: str, generation: int) -> None:
    """Record that a run of a generation begins to deliver. Repeated, it changes nothing."""
    is_it = (Generation.stream == stream, Generation.generation == generation, Generation.begun_at.is_(None))
    with ledger.transaction() as connection:
        connection.execute(update(Generation).where(*is_it).values(begun_at=func.now()))


def record_query_id(ledger: Ledger, stream: str, generation: int, query_id: str) -> GenerationObservation:
    """Bind a generation to the id in its checkpoint, as its query has it. Idempotent for the same id.

    Raises
    ------
    CheckpointError: when the generation is unknown or has another id: its checkpoint was replaced or lost.
    """
    is_it = (Generation.stream == stream, Generation.generation == generation)
    with ledger.transaction() as connection:
        bound = connection.execute(
            update(Generation)
            .where(*is_it, or_(Generation.query_id.is_(None), Generation.query_id == query_id))
            .values(query_id=query_id, begun_at=func.coalesce(Generation.begun_at, func.now()))
            .returning(*Generation.columns())
        ).one_or_none()
        if bound is not None:
            return record_of(GenerationObservation, bound)
        known = connection.execute(select(Generation.query_id).where(*is_it)).scalar_one_or_none()
    if known is None:
        raise CheckpointError(f"Stream {stream} has no generation {generation}.")
    raise CheckpointError(
        f"The checkpoint of stream {stream}, generation {generation}, belongs to query {known}, got {query_id}: "
        "it was replaced or lost, and continuing would read the source again from its start.",
        next_step=f"`sluice stream repair {stream} --dry-run` shows what writes the checkpoint back.",
    )


def record_fingerprint(
    ledger: Ledger, stream: str, generation: int, fingerprint: Mapping[str, str], *, is_empty: bool = False
) -> GenerationObservation:
    """Bind a generation to what its checkpoint depends on. The first fingerprint stays for ever.

    Parameters
    ----------
    is_empty: whether the checkpoint holds no batch yet: then it is bound to nothing, and takes this fingerprint.

    Raises
    ------
    CheckpointError: when the generation is unknown.
    """
    taken = cast(dict(fingerprint), JSONB)
    kept = taken if is_empty else func.coalesce(Generation.fingerprint, taken)
    return _changed(ledger, stream, generation, fingerprint=kept)


def record_identities(
    ledger: Ledger, stream: str, generation: int, identities: Mapping[str, str], *, replacing: bool = False
) -> GenerationObservation:
    """Keep the ids of what a generation reads and writes. The first id of each stays.

    Parameters
    ----------
    identities: the ids by kind and name.
    replacing: whether they take the place of known ones: the checkpoint holds no batch yet, or the change is followed.

    Raises
    ------
    CheckpointError: when the generation is unknown.
    """
    seen = cast(dict(identities), JSONB)
    kept = Generation.identities.op("||")(seen) if replacing else seen.op("||")(Generation.identities)
    return _changed(ledger, stream, generation, identities=kept)


def _changed(ledger: Ledger, stream: str, generation: int, **values: ColumnElement[Any]) -> GenerationObservation:
    change = (
        update(Generation)
        .where(Generation.stream == stream, Generation.generation == generation)
        .values(**values)
        .returning(*Generation.columns())
    )
    with ledger.transaction() as connection:
        row = connection.execute(change).one_or_none()
    if row is None:
        raise CheckpointError(f"Stream {stream} has no generation {generation}.")
    return record_of(GenerationObservation, row)


def restore_generation(
    ledger: Ledger,
    stream: str,
    generation: int,
    *,
    checkpoint: str,
    query_id: str,
    identities: Mapping[str, str],
    restored_by: str,
) -> GenerationObservation:
    """Write the row of a generation back that an older copy of the ledger does not have. Repeated, it changes nothing.

    Parameters
    ----------
    identities: the ids of what it reads and writes, as they are now: an input that is replaced from now on is noticed.

    Raises
    ------
    CheckpointError: when the ledger has the generation with another query.
    """
    values = {"checkpoint": checkpoint, "query_id": query_id, "opened_by": restored_by, "identities": dict(identities)}
    with ledger.transaction() as connection:
        row = insert(Generation).values(stream=stream, generation=generation, **values)
        connection.execute(row.on_conflict_do_nothing())
    return record_query_id(ledger, stream, generation, query_id)


def _first_generation(stream: str, checkpoint: str) -> Event:
    return Event(
        name=stream,
        actor=Actor.component("driver"),
        action=EventAction.OPEN_GENERATION,
        reason="never_started",
        explanation=f"Stream {stream} has no generation yet: its first one is opened.",
        evidence={"generation": 1, "checkpoint": checkpoint},
    )


def select_newest_generation(stream: str) -> Select[Any]:
    """The query for the newest generation of a stream: one row, or none before its first start."""
    return (
        select(*Generation.columns()).where(Generation.stream == stream).order_by(Generation.generation.desc()).limit(1)
    )
