"""Leaves the generation of a stream behind and opens the next one, or forgets the newest batches of one that is taken
back; the stream is at rest meanwhile.

Of what is recorded by the number of a batch, what came first stays. So what the batches of these numbers were, what
their rules found and up to where they were announced has to go before the first of them runs again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, and_, delete, func, select, update
from sqlalchemy.dialects.postgresql import insert

from sluice.errors import UsageError
from sluice.ledger.announcements import Announcement
from sluice.ledger.batch_findings import StoredRuleResult
from sluice.ledger.batches import Batch
from sluice.ledger.connection import Ledger
from sluice.ledger.desired_states import desired_state_of, select_desired_state
from sluice.ledger.events import Event, add_event
from sluice.ledger.generations import Generation, GenerationObservation, checkpoint_of, select_newest_generation
from sluice.ledger.held_batches import forget_held
from sluice.ledger.refreshes import UNSETTLED_STATES, Refresh
from sluice.ledger.run_leases import Lease
from sluice.ledger.run_values import DesiredState
from sluice.ledger.runs import already_live, live_run
from sluice.ledger.stored_values import record_of


def require_at_rest(ledger: Ledger, stream: str) -> None:
    """Require that a stream has no live run and is to be stopped, so that its generation may be left.

    Raises
    ------
    RunAlreadyLiveError: when a run lives.
    UsageError: when the stream is to run.
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
    query_id: str | None = None,
    continues_behind: int | None = None,
    fingerprint: Mapping[str, str] | None = None,
    identities: Mapping[str, str] | None = None,
) -> GenerationObservation:
    """Leave the generation of a stream behind and open the next one, whose checkpoint is empty, or continues the last.

    Nothing of the old one changes: its row, its batches and its checkpoint stay.

    Parameters
    ----------
    leaving: the generation that is left. When it is not the newest any more, another reset was quicker.
    checkpoints_root: the URI below which checkpoints lie.
    opened_by: who asks, for a person.
    event: the decision; saved only when the generation is opened.
    query_id, continues_behind, fingerprint: whose a checkpoint is that continues another, behind which batch, and what
        it depends on; the first start binds an empty one.
    identities: the ids of what it reads and writes, where these are known.

    Raises
    ------
    RunAlreadyLiveError, UsageError: as `require_at_rest`; a UsageError also when `leaving` is not the newest.
    """
    with ledger.transaction() as connection:
        # An admission takes this lease before it reads the generation: no run is admitted into the one that is left.
        connection.execute(select(Lease.stream).where(Lease.stream == stream).with_for_update())
        _require_at_rest(connection, stream)
        _require_settled(connection, stream)
        newest = connection.execute(select_newest_generation(stream)).one_or_none()
        if newest is None or newest.generation != leaving:
            raise _left_already(stream, leaving, newest)
        number = leaving + 1
        given = {"fingerprint": fingerprint, "identities": identities}
        known: dict[str, Any] = {name: dict(values) for name, values in given.items() if values}
        checkpoint = checkpoint_of(stream, number, checkpoints_root=checkpoints_root)
        row = connection.execute(
            insert(Generation)
            .values(
                stream=stream,
                generation=number,
                checkpoint=checkpoint,
                opened_by=opened_by,
                query_id=query_id,
                continues_behind=continues_behind,
                **known,
            )
            .returning(*Generation.columns())
        ).one()
        forget_held(connection, stream)  # its batches are never published
        if event is not None:
            add_event(connection, event)
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


def _left_already(stream: str, leaving: int, newest: Row[Any] | None) -> UsageError:
    if newest is None:
        return UsageError(f"Stream {stream} has no generation {leaving}: it has never been started.")
    return UsageError(
        f"Stream {stream} is at generation {newest.generation}, opened {newest.opened_at:%Y-%m-%d %H:%M:%S %Z} by "
        f"{newest.opened_by or 'its first run'}; generation {leaving} is not the newest.",
        next_step=f"See it with `sluice stream show {stream}`; to leave that one behind, too, make another plan.",
    )


def count_batches_behind(ledger: Ledger, stream: str, *, generation: int, batch: int) -> int:
    """How many later batches of a generation are recorded."""
    query = select(func.count()).select_from(Batch).where(_is_later(Batch, stream, generation, batch))
    with ledger.transaction() as connection:
        return connection.execute(query).scalar_one()


def forget_batches_behind(ledger: Ledger, stream: str, *, generation: int, batch: int) -> None:
    """Delete what is recorded of later batches of a generation, and announce their numbers once more when they are
    published again. The totals stay, as for other batches that are deleted."""
    announced = _is_later(Announcement, stream, generation, batch)
    with ledger.transaction() as connection:
        connection.execute(delete(Batch).where(_is_later(Batch, stream, generation, batch)))
        connection.execute(delete(StoredRuleResult).where(_is_later(StoredRuleResult, stream, generation, batch)))
        connection.execute(update(Announcement).where(announced).values(batch=batch))


def _is_later(
    table: type[Batch] | type[StoredRuleResult] | type[Announcement], stream: str, generation: int, batch: int
) -> ColumnElement[bool]:
    columns = table.__table__.columns
    return and_(columns.stream == stream, columns.generation == generation, columns.batch > batch)
