"""The checkpoint generations. The path of a checkpoint follows from stream and generation; it cannot be chosen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Row, Select, cast, func, or_, select, update
from sqlalchemy.dialects.postgresql import JSONB, insert

from sluice.errors import CheckpointError, UsageError
from sluice.ledger.connection import Ledger
from sluice.ledger.desired_states import desired_state_of, select_desired_state
from sluice.ledger.events import add_event
from sluice.ledger.models import Generation, Lease, Refresh
from sluice.ledger.records.event import Actor, Event, EventAction
from sluice.ledger.records.generation import GenerationObservation
from sluice.ledger.records.refresh import UNSETTLED_STATES
from sluice.ledger.records.run import DesiredState
from sluice.ledger.runs import already_live, live_run
from sluice.ledger.stored_values import record_of


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
            checkpoint = checkpoint_of(stream, 1, checkpoints_root=checkpoints_root)
            first = insert(Generation).values(stream=stream, generation=1, checkpoint=checkpoint)
            opened = connection.execute(first.on_conflict_do_nothing().returning(Generation.generation))
            if opened.one_or_none() is not None:
                add_event(connection, _first_generation(stream, checkpoint))
            row = connection.execute(_newest(stream)).one()
    return record_of(GenerationObservation, row)


def find_generation(ledger: Ledger, stream: str) -> GenerationObservation | None:
    """The newest generation of a stream; none before its first start. Unlike `current_generation` it opens nothing.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    with ledger.transaction() as connection:
        row = connection.execute(_newest(stream)).one_or_none()
    return None if row is None else record_of(GenerationObservation, row)


def checkpoint_of(stream: str, generation: int, *, checkpoints_root: str) -> str:
    """The URI at which the checkpoint of a generation is placed when it opens."""
    return f"{checkpoints_root.rstrip('/')}/{stream}/{generation}"


def require_at_rest(ledger: Ledger, stream: str) -> None:
    """Require that a stream has no live run and is to be stopped, so that its generation may be left.

    Raises
    ------
    RunAlreadyLiveError: when a run lives.
    UsageError: when the stream is to run.
    LedgerError: when the ledger cannot be reached.
    """
    with ledger.transaction() as connection:
        _require_at_rest(connection, stream)


def open_next_generation(
    ledger: Ledger,
    stream: str,
    *,
    leaving: int,
    checkpoints_root: str,
    opened_by: str,
    event: Event | None = None,
) -> GenerationObservation:
    """Leave the generation of a stream behind and open the next one, whose checkpoint is empty.

    Nothing of the old one changes: its row, its batches and its checkpoint stay.

    Parameters
    ----------
    leaving: the generation that is left. When it is not the newest any more, another reset was quicker.
    checkpoints_root: the URI below which checkpoints lie.
    opened_by: who asks, for a person.
    event: the decision; saved only when the generation is opened.

    Raises
    ------
    RunAlreadyLiveError, UsageError: as `require_at_rest`; a UsageError also when `leaving` is not the newest.
    LedgerError: when the ledger cannot be reached.
    """
    with ledger.transaction() as connection:
        # An admission takes this lease before it reads the generation: no run is admitted into the one that is left.
        connection.execute(select(Lease.stream).where(Lease.stream == stream).with_for_update())
        _require_at_rest(connection, stream)
        _require_settled(connection, stream)
        newest = connection.execute(_newest(stream)).one_or_none()
        if newest is None or newest.generation != leaving:
            raise _left_already(stream, leaving, newest)
        number = leaving + 1
        checkpoint = checkpoint_of(stream, number, checkpoints_root=checkpoints_root)
        row = connection.execute(
            insert(Generation)
            .values(stream=stream, generation=number, checkpoint=checkpoint, opened_by=opened_by)
            .returning(*Generation.columns())
        ).one()
        if event is not None:
            add_event(connection, event)
    return record_of(GenerationObservation, row)


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
            .returning(*Generation.columns())
        ).one_or_none()
        if bound is not None:
            return record_of(GenerationObservation, bound)
        known = connection.execute(select(Generation.query_id).where(*is_it)).scalar_one_or_none()
    if known is None:
        raise CheckpointError(f"Stream {stream} has no generation {generation}.")
    raise CheckpointError(
        f"The checkpoint of stream {stream}, generation {generation}, belongs to query {known}, got {query_id}: "
        "it was replaced or lost, and going on would read the source again from its start.",
        next_step=f"Restore the checkpoint, or reread the source from its start: `sluice stream reset {stream}`.",
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
            .returning(*Generation.columns())
        ).one_or_none()
    if row is None:
        raise CheckpointError(f"Stream {stream} has no generation {generation}.")
    return record_of(GenerationObservation, row)


def _require_at_rest(connection: Connection, stream: str) -> None:
    if (live := live_run(connection, stream)) is not None:
        raise already_live(live)
    desired = desired_state_of(stream, connection.execute(select_desired_state(stream)).one_or_none())
    if desired.effective_state is not DesiredState.STOPPED:
        raise UsageError(
            f"Stream {stream} is to run: its next run may begin at any moment.",
            next_step=f"Stop it first: `sluice stream stop {stream}`.",
        )


def _require_settled(connection: Connection, stream: str) -> None:
    """The commit of a refresh may have opened the next generation on the table, where the ledger does not have it."""
    is_unsettled = (Refresh.stream == stream, Refresh.state.in_(sorted(UNSETTLED_STATES)))
    seen = connection.execute(select(Refresh.number, Refresh.state).where(*is_unsettled)).one_or_none()
    if seen is not None:
        raise UsageError(
            f"Refresh {seen.number} of {stream} is {seen.state}: its commit may have landed.",
            next_step=f"End it first: `sluice stream refresh {stream}`, with `--take-back` or `--abandon` if you want.",
        )


def _first_generation(stream: str, checkpoint: str) -> Event:
    return Event(
        name=stream,
        actor=Actor.component("driver"),
        action=EventAction.OPEN_GENERATION,
        reason="never_started",
        explanation=f"Stream {stream} has no generation yet: its first one is opened.",
        evidence={"generation": 1, "checkpoint": checkpoint},
    )


def _left_already(stream: str, leaving: int, newest: Row[Any] | None) -> UsageError:
    if newest is None:
        return UsageError(f"Stream {stream} has no generation {leaving}: it has never been started.")
    return UsageError(
        f"Stream {stream} is at generation {newest.generation}, opened {newest.opened_at:%Y-%m-%d %H:%M:%S %Z} by "
        f"{newest.opened_by or 'its first run'}; generation {leaving} is not the newest.",
        next_step=f"See it with `sluice stream show {stream}`; to leave that one behind, too, make another plan.",
    )


def _newest(stream: str) -> Select[Any]:
    return (
        select(*Generation.columns()).where(Generation.stream == stream).order_by(Generation.generation.desc()).limit(1)
    )
