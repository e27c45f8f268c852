"""The runs of the streams. The database admits one live run for each stream, however many callers ask.

A live run holds the stream's lease: it is acquired, renewed and released in the transactions of this module.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any
from uuid import uuid4

from sqlalchemy import ColumnElement, Connection, Row, Select, and_, case, func, literal, or_, select, true, update
from sqlalchemy.dialects.postgresql import insert

from sluice.errors import LedgerError, RunAlreadyLiveError, UnknownRunError
from sluice.failure_reasons import Failure
from sluice.ledger import run_leases
from sluice.ledger.connection import Ledger
from sluice.ledger.desired_states import effective_desired_state
from sluice.ledger.events import Event, add_event
from sluice.ledger.generations import Generation
from sluice.ledger.run_leases import RUN_IS_LIVE, Lease, Run
from sluice.ledger.run_values import (
    LIVE_STATES,
    DesiredState,
    HeartbeatAnswer,
    RunObservation,
    RunState,
)
from sluice.ledger.stored_values import record_of, values_of
from sluice.processes.process_identity import ProcessIdentity
from sluice.stored_keys import is_shadow_name

_log = logging.getLogger(__name__)

_IS_LIVE = Run.state.in_(sorted(LIVE_STATES))
_ADMISSION_TRIES = 3
"""A refused admission finds no live run when that run ended in between; then it is tried again."""


def admit_run(
    ledger: Ledger,
    *,
    stream: str,
    mode: str,
    declaration_digest: str,
    launched_by: str,
    event: Event | None = None,
) -> RunObservation:
    """Admit a new run of a stream with its lease, in the current generation and with the current desired state.

    Parameters
    ----------
    stream: the stream's name.
    mode: `continuous` or `incremental`.
    declaration_digest: what the run is to carry out, as `LoadedStream.digest`.
    launched_by: the Airflow task or command that asked, for messages.
    event: the decision to start it; saved with the run's id, and only when the run is admitted.

    Raises
    ------
    RunAlreadyLiveError: when the stream has a live run; the error names it.
    """
    admission = {
        "stream": stream,
        "generation": _current_generation(stream),
        "mode": mode,
        "state": RunState.LAUNCHING,
        "desired_state": effective_desired_state(literal(stream)),
        "declaration_digest": declaration_digest,
        "launched_by": launched_by,
        "version": version("sluice"),
    }
    for _ in range(_ADMISSION_TRIES):
        with ledger.transaction() as connection:
            admitted = _admitted(connection, str(uuid4()), admission)
            live = None if admitted else live_run(connection, stream)
            if admitted is not None and event is not None:
                add_event(connection, event, run_id=admitted.run_id)
        if admitted is not None:
            return record_of(RunObservation, admitted)
        if live is not None:
            raise already_live(live)
    raise LedgerError(f"Stream {stream} was refused {_ADMISSION_TRIES} times by runs that ended in between.")


def already_live(live: RunObservation) -> RunAlreadyLiveError:
    """The refusal of another run beside a live one."""
    launch = f"{live.state}, launched by {live.launched_by} at {live.launched_at:%Y-%m-%d %H:%M:%S %Z}"
    return RunAlreadyLiveError(stream=live.stream, run_id=live.run_id, launch=launch)


def _admitted(connection: Connection, run_id: str, admission: Mapping[str, Any]) -> Row[Any] | None:
    """The admitted run with its lease; none when another run is live. The index decides before a token is used up."""
    admitted = connection.execute(
        insert(Run)
        .values(run_id=run_id, token=0, **admission)
        .on_conflict_do_nothing(index_elements=[Run.stream], index_where=RUN_IS_LIVE)
        .returning(Run.run_id)
    ).one_or_none()
    if admitted is None:
        return None
    stream = admission["stream"]
    token = run_leases.acquire(connection, stream=stream, run_id=run_id)
    # Who resets a stream holds its lease's row meanwhile: the generation is read again now that it is ours.
    values = {"token": token, "generation": _current_generation(stream)}
    return connection.execute(update(Run).where(Run.run_id == run_id).values(**values).returning(*Run.columns())).one()


def record_process(ledger: Ledger, run_id: str, identity: ProcessIdentity, log_file: Path | None) -> RunObservation:
    """Bind a run to the process that carries it out. A run has one process for all its life.

    Parameters
    ----------
    identity: the process, which has not begun its work yet.
    log_file: its log; unset when another program keeps it, as Airflow does for its tasks.

    Raises
    ------
    LedgerError: when the run is unknown, has ended, or has another process. The process must not begin then.
    """
    same_process = and_(
        Run.process_host == identity.host,
        Run.process_pid == identity.pid,
        Run.process_started_at_seconds == identity.started_at_seconds,
        Run.process_application.is_not_distinct_from(identity.application),
        Run.process_boot_id.is_not_distinct_from(identity.boot_id),
        Run.process_pid_namespace.is_not_distinct_from(identity.pid_namespace),
    )
    with ledger.transaction() as connection:
        bound = connection.execute(
            update(Run)
            .where(Run.run_id == run_id, _IS_LIVE, or_(Run.process_pid.is_(None), same_process))
            .values(
                **{f"process_{name}": value for name, value in values_of(identity).items()},
                log_file=str(log_file) if log_file is not None else None,
            )
            .returning(*Run.columns())
        ).one_or_none()
        if bound is not None:
            return record_of(RunObservation, bound)
        run = _run(connection, run_id)
    if not run.is_live:
        raise LedgerError(f"Run {run_id} of stream {run.stream} has ended ({run.state}: {run.reason}); nothing begins.")
    raise LedgerError(f"Run {run_id} of stream {run.stream} has a process already: {run.process}.")


def beat(ledger: Ledger, run_id: str) -> HeartbeatAnswer:
    """Record a heartbeat of a run's driver, renew its lease, and return its desired state.

    A run that the ledger counts as ended has lost its lease, and its driver must end.

    Raises
    ------
    UnknownRunError: when the ledger has no such run, which has lost its lease then.
    """
    # Every heartbeat reads the desired state again: a request made while the run was being admitted is not lost.
    wanted = case(
        (Run.end_asked_at.is_not(None), literal(str(DesiredState.STOPPED))), else_=effective_desired_state(Run.stream)
    )
    with ledger.transaction() as connection:
        desired = connection.execute(
            update(Run)
            .where(Run.run_id == run_id, _IS_LIVE)
            .values(heartbeat_at=func.now(), state=RunState.RUNNING, desired_state=wanted)
            .returning(Run.desired_state)
        ).scalar_one_or_none()
        if desired is not None and run_leases.renew(connection, run_id=run_id):
            return HeartbeatAnswer(desired_state=DesiredState(desired), holds_lease=True)
        _run(connection, run_id)
    return HeartbeatAnswer(desired_state=DesiredState.STOPPED, holds_lease=False)


def record_replay(ledger: Ledger, run_id: str) -> None:
    """Record that a live run has just run a batch again for the state of a copy, which the batches do not show.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    with ledger.transaction() as connection:
        connection.execute(update(Run).where(Run.run_id == run_id, _IS_LIVE).values(replayed_at=func.now()))


def record_end(
    ledger: Ledger,
    run_id: str,
    *,
    state: RunState,
    exit_code: int | None,
    reason: str,
    failure: Failure | None = None,
) -> RunObservation:
    """Record that a run ended, and free its lease. Idempotent: the first state, time, reason and failure stay; a
    missing exit code is filled in.

    Parameters
    ----------
    state: FINISHED, FAILED or LOST.
    exit_code: the process's; unset when its end was not observed.
    reason: one line for a person.
    failure: its class and reason, where they are known better than from this line.

    Returns
    -------
    The run as the ledger holds it now.

    Raises
    ------
    UnknownRunError: when the ledger has no such run.
    LedgerError: when the state is a live one, or the ledger cannot be reached.
    """
    if state in LIVE_STATES:
        raise LedgerError(f"A run does not end as {state}: allowed are finished, failed and lost.")
    with ledger.transaction() as connection:
        ended = connection.execute(
            update(Run)
            .where(Run.run_id == run_id)
            .values(
                state=case((_IS_LIVE, literal(str(state))), else_=Run.state),
                ended_at=func.coalesce(Run.ended_at, func.now()),
                exit_code=func.coalesce(Run.exit_code, exit_code),
                reason=func.coalesce(Run.reason, reason),
                failure=func.coalesce(Run.failure, None if failure is None else failure.reason),
            )
            .returning(*Run.columns())
        ).one_or_none()
        run_leases.release(connection, run_id=run_id)
    if ended is None:
        raise UnknownRunError(run_id)
    return record_of(RunObservation, ended)


def take_over(ledger: Ledger, run_id: str, *, reason: str, event: Event | None = None) -> RunObservation:
    """End a live run whose lease has run out by the database's clock, whether or not its driver lives.

    The next run of the stream is admitted with a higher token, so what the old driver may still publish is refused.
    Nothing happens to a run whose lease was renewed meanwhile, or that has ended.

    Parameters
    ----------
    event: the decision; saved only when the run is taken over.

    Returns
    -------
    The run as the ledger holds it now: LOST when it was taken over.

    Raises
    ------
    LedgerError: when the run is unknown or the ledger cannot be reached.
    """
    has_run_out = select(Lease.run_id).where(Lease.run_id == run_id, Lease.expires_at <= func.now()).with_for_update()
    with ledger.transaction() as connection:
        # Runs are locked before leases, as by `beat` and `record_end`: the other order would be a deadlock with them.
        connection.execute(select(Run.run_id).where(Run.run_id == run_id).with_for_update())
        if connection.execute(has_run_out).one_or_none() is not None:
            connection.execute(
                update(Run)
                .where(Run.run_id == run_id, _IS_LIVE)
                .values(state=RunState.LOST, ended_at=func.now(), reason=reason)
            )
            run_leases.release(connection, run_id=run_id)
            if event is not None:
                add_event(connection, event, run_id=run_id)
        return _run(connection, run_id)


def ask_to_end(ledger: Ledger, run_id: str, *, because: str, event: Event | None = None) -> RunObservation:
    """Ask one live run to end between two batches. The desired state of its stream stays, so another run may follow.

    Idempotent: the first reason stays. Nothing happens to a run that has ended. Its end is not a failure.

    Parameters
    ----------
    because: why, to follow "asked to end: ".
    event: the decision; saved only when the run was not asked before.

    Raises
    ------
    LedgerError: when the run is unknown or the ledger cannot be reached.
    """
    with ledger.transaction() as connection:
        asked = connection.execute(
            update(Run)
            .where(Run.run_id == run_id, _IS_LIVE, Run.end_asked_at.is_(None))
            .values(end_asked_at=func.now(), end_asked_because=because, desired_state=str(DesiredState.STOPPED))
        )
        if asked.rowcount == 1 and event is not None:
            add_event(connection, event, run_id=run_id)
        return _run(connection, run_id)


def find_run(ledger: Ledger, run_id: str) -> RunObservation:
    """The run of this id.

    Raises
    ------
    LedgerError: when there is none.
    """
    with ledger.transaction() as connection:
        return _run(connection, run_id)


def live_run(connection: Connection, stream: str) -> RunObservation | None:
    """The live run of a stream, inside the transaction of the caller; none when none lives."""
    row = connection.execute(_runs(stream).where(_IS_LIVE)).one_or_none()
    return None if row is None else record_of(RunObservation, row)


def live_streams(ledger: Ledger) -> frozenset[str]:
    """The streams that have a live run, declared or not."""
    with ledger.transaction() as connection:
        return frozenset(connection.execute(select(Run.stream).where(_IS_LIVE)).scalars())


def live_generations(ledger: Ledger) -> frozenset[tuple[str, int]]:
    """Stream and generation of each live run, of the runs of refreshes too."""
    with ledger.transaction() as connection:
        rows = connection.execute(select(Run.stream, Run.generation).where(_IS_LIVE)).all()
    return frozenset((row.stream, row.generation) for row in rows)


def starting_on(ledger: Ledger, host: str, *, within: timedelta) -> int:
    """How many live runs were launched so lately on a host, those that are not bound to a process yet included."""
    is_there = or_(Run.process_host.is_(None), Run.process_host == host)
    query = select(func.count()).where(_IS_LIVE, Run.launched_at > func.now() - within, is_there)
    with ledger.transaction() as connection:
        return int(connection.execute(query).scalar_one())


def newest_run(ledger: Ledger, stream: str) -> RunObservation | None:
    """The newest run of a stream, live or ended; none before its first."""
    return next(iter(recent_runs(ledger, stream, limit=1)), None)


def recent_runs(ledger: Ledger, stream: str, limit: int) -> tuple[RunObservation, ...]:
    """The newest runs of a stream, newest first, at most `limit`."""
    with ledger.transaction() as connection:
        rows = connection.execute(_runs(stream).order_by(Run.number.desc()).limit(limit)).all()
    return tuple(record_of(RunObservation, row) for row in rows)


def newest_runs(ledger: Ledger) -> tuple[RunObservation, ...]:
    """The newest run of every stream that ever ran, by the stream's name.

    Every stream that ran has a lease for ever, so that one run of each stream is read by its index and not all of them.
    The runs of refreshes are left out: no declaration has their names, and their command looks after them.
    """
    newest = select(Run).where(Run.stream == Lease.stream).order_by(Run.number.desc()).limit(1).lateral()
    query = select(*newest.c).select_from(Lease).join(newest, true()).order_by(Lease.stream)
    with ledger.transaction() as connection:
        rows = connection.execute(query).all()
    found: list[RunObservation] = []
    for row in rows:
        try:
            found.extend([] if is_shadow_name(row.stream) else [record_of(RunObservation, row)])
        except LedgerError as unreadable:  # that of one stream; who looks at that one reports it
            _log.warning("stream=%s %s", row.stream, unreadable)
    return tuple(found)


def _runs(stream: str) -> Select[Any]:
    return select(*Run.columns()).where(Run.stream == stream)


def _run(connection: Connection, run_id: str) -> RunObservation:
    row = connection.execute(select(*Run.columns()).where(Run.run_id == run_id)).one_or_none()
    if row is None:
        raise UnknownRunError(run_id)
    return record_of(RunObservation, row)


def _current_generation(stream: str) -> ColumnElement[int]:
    newest = select(func.max(Generation.generation)).where(Generation.stream == stream).scalar_subquery()
    return func.coalesce(newest, 1)
