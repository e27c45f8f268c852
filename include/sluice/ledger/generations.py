"""The checkpoint lineages. A checkpoint lies where stream and generation say, never where a person says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Row, Select, cast, func, or_, select, update
from sqlalchemy.dialects.postgresql import JSONB, insert

from sluice.errors import CheckpointError
from sluice.ledger.connection import Ledger
from sluice.ledger.models import Generation
from sluice.observations.generations import GenerationObservation


def current_generation(ledger: Ledger, stream: str, *, checkpoints_root: str) -> GenerationObservation:
    """The newest generation of a stream; the first one is opened when there is none.

    Parameters
    ----------
    checkpoints_root: the URI below which checkpoints lie. It places a new generation only; an open one does not move.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    with ledger.transaction() as connection:
        row = connection.execute(_newest(stream)).one_or_none()
        if row is None:
            checkpoint = f"{checkpoints_root.rstrip('/')}/{stream}/1"
            first = insert(Generation).values(stream=stream, generation=1, checkpoint=checkpoint)
            connection.execute(first.on_conflict_do_nothing())
            row = connection.execute(_newest(stream)).one()
    return _observation_of(row)


def find_generation(ledger: Ledger, stream: str) -> GenerationObservation | None:
    """The newest generation of a stream; none before its first start. Unlike `current_generation` it opens nothing.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    with ledger.transaction() as connection:
        row = connection.execute(_newest(stream)).one_or_none()
    return None if row is None else _observation_of(row)


def record_query_id(ledger: Ledger, stream: str, generation: int, query_id: str) -> GenerationObservation:
    """Bind a generation to the id that Spark wrote into its checkpoint. Idempotent for the same id.

    Raises
    ------
    CheckpointError: when the generation is unknown or has another id: its checkpoint was replaced or lost.
    LedgerError: when the ledger cannot be reached.
    """
    is_it = (Generation.stream == stream, Generation.generation == generation)
    with ledger.transaction() as connection:
        bound = connection.execute(
            update(Generation)
            .where(*is_it, or_(Generation.query_id.is_(None), Generation.query_id == query_id))
            .values(query_id=query_id)
            .returning(*Generation.__table__.columns)
        ).one_or_none()
        if bound is not None:
            return _observation_of(bound)
        known = connection.execute(select(Generation.query_id).where(*is_it)).scalar_one_or_none()
    if known is None:
        raise CheckpointError(f"Stream {stream} has no generation {generation}.")
    raise CheckpointError(
        f"The checkpoint of stream {stream}, generation {generation}, belongs to query {known}, got {query_id}: "
        "it was replaced or lost, and going on would read the source anew.",
        next_step="Restore the checkpoint, or open a new generation knowingly.",
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
    LedgerError: when the ledger cannot be reached.
    """
    taken = cast(dict(fingerprint), JSONB)
    with ledger.transaction() as connection:
        row = connection.execute(
            update(Generation)
            .where(Generation.stream == stream, Generation.generation == generation)
            .values(fingerprint=taken if is_empty else func.coalesce(Generation.fingerprint, taken))
            .returning(*Generation.__table__.columns)
        ).one_or_none()
    if row is None:
        raise CheckpointError(f"Stream {stream} has no generation {generation}.")
    return _observation_of(row)


def _newest(stream: str) -> Select[Any]:
    return (
        select(*Generation.__table__.columns)
        .where(Generation.stream == stream)
        .order_by(Generation.generation.desc())
        .limit(1)
    )


def _observation_of(row: Row[Any]) -> GenerationObservation:
    return GenerationObservation(
        stream=row.stream,
        generation=row.generation,
        checkpoint=row.checkpoint,
        opened_at=row.opened_at,
        query_id=row.query_id,
        fingerprint=row.fingerprint or {},
    )
