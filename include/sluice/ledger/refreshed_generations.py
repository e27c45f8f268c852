"""Opens a generation of a stream on the checkpoint of another one: of a shadow, or of the generation before it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, select, update
from sqlalchemy.dialects.postgresql import insert

from sluice.ledger.batches import Batch, StreamTotals
from sluice.ledger.generations import OUTPUT_TABLE, Generation, select_newest_generation
from sluice.ledger.run_leases import Run
from sluice.ledger.run_values import LIVE_STATES

_COUNTED = ("input_rows", "refused_rows", "late_rows", "duplicate_rows")
_SET = frozenset({*_COUNTED, "published_rows", "recorded_at"})


@dataclass(frozen=True, slots=True, kw_only=True)
class HandedOver:
    """The generation whose checkpoint and newest batch are taken over.

    snapshot_ids: of that batch from now on. totals: the rows of all batches that became visible with it; unset when
        they are counted already.
    """

    stream: str
    generation: int
    batch: int
    snapshot_ids: Mapping[str, int]
    totals: StreamTotals | None = None


def hand_over_generation(
    connection: Connection, stream: str, generation: int, source: HandedOver, *, opened_by: str
) -> None:
    """Open a generation of a stream with the checkpoint of another one, inside the transaction of the caller.

    The newest batch becomes one of the new generation too: it says where the stream reads on, for its lag and its pins.
    A live run of the stream, which has settled the refresh itself, is one of the new generation from now on.
    """
    row = connection.execute(
        select(*Generation.columns()).where(
            Generation.stream == source.stream, Generation.generation == source.generation
        )
    ).one()
    taken = {**row._mapping, "stream": stream, "generation": generation, "opened_by": opened_by}
    del taken["opened_at"]
    taken["identities"] = _identities(connection, stream, row.identities)
    connection.execute(insert(Generation).values(**taken).on_conflict_do_nothing())
    _copy_batch(connection, stream, generation, source)
    is_live = Run.state.in_(sorted(LIVE_STATES))
    connection.execute(update(Run).where(Run.stream == stream, is_live).values(generation=generation))


def _identities(connection: Connection, stream: str, taken: Mapping[str, str]) -> Mapping[str, str]:
    """The ids of what is read, as the other checkpoint knows them, and of the tables that the stream itself writes: a
    shadow writes others."""
    left = connection.execute(select_newest_generation(stream)).one_or_none()
    known = {} if left is None else left.identities
    own = {name: one for name, one in known.items() if name.startswith(OUTPUT_TABLE)}
    return {**{name: one for name, one in taken.items() if not name.startswith(OUTPUT_TABLE)}, **own}


def _copy_batch(connection: Connection, stream: str, generation: int, source: HandedOver) -> None:
    columns = [column.label(column.key) for column in Batch.__table__.columns if column.key not in _SET]
    row = connection.execute(
        select(*columns).where(
            Batch.stream == source.stream, Batch.generation == source.generation, Batch.batch == source.batch
        )
    ).one_or_none()
    if row is None:  # forgotten by the retention of the ledger: the next batch says it
        return
    copied = {**row._mapping, "stream": stream, "generation": generation, "snapshot_ids": dict(source.snapshot_ids)}
    connection.execute(insert(Batch).values(**copied, **_counts(source.totals)).on_conflict_do_nothing())


def _counts(totals: StreamTotals | None) -> dict[str, Any]:
    """The counts of the taken batch: those of all batches that it stands for."""
    if totals is None:
        return {**dict.fromkeys(_COUNTED, 0), "published_rows": {}}
    return {**{name: getattr(totals, name) for name in _COUNTED}, "published_rows": dict(totals.published_rows)}
