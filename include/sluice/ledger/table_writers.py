"""Which writers of data files the ledger knows, when they ended, and which snapshots of a table it has seen."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta

from sqlalchemy import BigInteger, and_, func, or_, select

from sluice.ledger.backfill_attempts import BackfillAttempt, BackfillState
from sluice.ledger.batches import Batch
from sluice.ledger.connection import Ledger
from sluice.ledger.events import WRITE, EventSubject, LedgerEvent
from sluice.ledger.maintenance_runs import MaintenanceRun
from sluice.ledger.refreshes import OPEN_STATES, Refresh, RefreshObservation
from sluice.ledger.run_leases import Run
from sluice.ledger.run_values import LIVE_STATES, RunState
from sluice.ledger.stored_values import record_of

LONGEST_WRITE = timedelta(days=1)
"""So long after its event a backfill or a compaction may still write. What is younger was not written by it."""

_MOST_DIGITS = 18
"""Every number of so many digits is a BIGINT of PostgreSQL. A folder may have any name."""


def is_number(text: str) -> bool:
    """Whether a text is a number that a column of the ledger can hold."""
    return text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS


def known_runs(ledger: Ledger, tokens: Collection[int]) -> Mapping[int, datetime | None]:
    """Of fencing tokens those that runs of this ledger had, and when the last such run ended; unset while one lives."""
    is_live = func.bool_or(Run.state.in_(sorted(LIVE_STATES)))
    found = select(Run.token, is_live, func.max(Run.ended_at)).where(Run.token.in_(sorted(tokens))).group_by(Run.token)
    with ledger.transaction() as connection:
        return {token: None if live else ended for token, live, ended in connection.execute(found)}


def exited_runs(ledger: Ledger, tokens: Collection[int]) -> Mapping[int, datetime]:
    """Of fencing tokens those of runs whose process was seen to end, and when. The driver of a run that is counted as
    lost, or whose lease others have ended, may live on and write."""
    is_seen = func.bool_and(and_(Run.state.in_((RunState.FINISHED, RunState.FAILED)), Run.exit_code.is_not(None)))
    found = select(Run.token, is_seen, func.max(Run.ended_at)).where(Run.token.in_(sorted(tokens))).group_by(Run.token)
    with ledger.transaction() as connection:
        return {token: at for token, seen, at in connection.execute(found) if seen and at is not None}


def known_refreshes(ledger: Ledger, labels: Collection[str]) -> Mapping[str, datetime | None]:
    """Of labels those of this ledger's refreshes, and when they ended; unset while a command has to continue one."""
    numbers = {int(label.partition("_")[0]) for label in labels if is_number(label.partition("_")[0])}
    found = select(*Refresh.columns()).where(Refresh.number.in_(sorted(numbers)))
    with ledger.transaction() as connection:
        refreshes = [record_of(RefreshObservation, row) for row in connection.execute(found)]
    return {one.label: None if one.state in OPEN_STATES else one.ended_at for one in refreshes if one.label in labels}


def known_writes(ledger: Ledger, identities: Collection[str], *, since: datetime) -> Mapping[str, datetime | None]:
    """Of identities those that events have announced, and until when such work may have written; unset while it may.

    Parameters
    ----------
    since: when the first of them can have been announced.

    Returns
    -------
    A backfill may write while any attempt of its stream has not reported an end. The maintenance of a table has ended
    for whoever holds its `maintenance_lock`.
    """
    written = LedgerEvent.evidence[WRITE].astext
    running = (
        select(BackfillAttempt.stream)
        .where(BackfillAttempt.stream == LedgerEvent.name, BackfillAttempt.state == BackfillState.RUNNING)
        .exists()
    )
    is_live = and_(LedgerEvent.subject == EventSubject.STREAM, running)
    found = select(written, is_live, LedgerEvent.recorded_at).where(
        LedgerEvent.recorded_at >= since, written.in_(sorted(identities))
    )
    with ledger.transaction() as connection:
        return {one: None if live else at + LONGEST_WRITE for one, live, at in connection.execute(found)}


def ended_writes(ledger: Ledger, table: str) -> frozenset[str]:
    """The identities of what has written a table under its `maintenance_lock`, and ended for whoever holds that."""
    written = LedgerEvent.evidence[WRITE].astext
    of_table = and_(LedgerEvent.subject == EventSubject.TABLE, LedgerEvent.name == table, written.is_not(None))
    with ledger.transaction() as connection:
        return frozenset(connection.execute(select(written).where(of_table)).scalars())


def recorded_snapshots(
    ledger: Ledger, table: str, *, outputs: Sequence[tuple[str, str]], streams: Collection[str], since: datetime
) -> frozenset[int]:
    """The snapshots of a table that maintenance, batches and backfills have recorded since a time.

    Parameters
    ----------
    outputs: the streams and their outputs that write the table. streams: whose backfills replace rows of it.
    """
    of_run = MaintenanceRun.__table__.c.after_snapshot
    queries = [select(of_run).where(MaintenanceRun.table == table, MaintenanceRun.ended_at >= since)]
    for stream, output in outputs:
        of_batch = Batch.snapshot_ids[output].astext.cast(BigInteger)
        queries.append(select(of_batch).where(Batch.stream == stream, Batch.recorded_at >= since))
    if streams:
        of_attempt = select(BackfillAttempt.snapshot_id)
        queries.append(
            of_attempt.where(
                or_(*(BackfillAttempt.stream == one for one in streams)), BackfillAttempt.ended_at >= since
            )
        )
    with ledger.transaction() as connection:
        found = {value for query in queries for value in connection.execute(query).scalars()}
    return frozenset(value for value in found if value is not None)
