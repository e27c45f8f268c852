"""What a person is to look at, and when an unhealthy state of a stream calls for one.

| the stream is                                                | a person is alerted              |
|--------------------------------------------------------------|----------------------------------|
| stalled, late, crash looping, unable to follow its change    | at once                          |
| undeclared, broken, of another mode than its run             | at once                          |
| not reconciled in a pass, for an error or for want of time   | at once                          |
| declared differently on several hosts                        | at once                          |
| rejecting every row of its newest batch, or beyond its limit | at once                          |
| holding a batch                                              | at once                          |
| running beside a DAG of which no person paused it            | at once                          |
| stopped by a paused DAG whose newest run failed              | at once                          |
| silent, unknown, without its driver, to be started           | after a minute                   |
| never started                                                | after a minute, once a person    |
|                                                              | has unpaused its DAG             |
| given up                                                     | at once beside a paused DAG, and |
|                                                              | else after a minute, unless its  |
|                                                              | own task is red for that very run|
| restarting, stopping, queued                                 | after ten minutes                |
| an increment that failed                                     | at once, by its task             |
| an increment that is overdue                                 | at once                          |

It stays alerted until the stream is healthy again. An alert belongs to an occasion: that the DAG is red since a stream
was given up before is no reason to be silent when it is given up again.

An increment that is red leaves the same alert: its task reports it, and the reconciler does after ten minutes when the
task could not. It stays reported until an increment succeeds; further red ones leave no second alert.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from sluice.declarations.loaded_declarations import LoadedStream
from sluice.ledger.airflow_owner import DagObservation
from sluice.ledger.announcements import record_increment
from sluice.ledger.clock_jumps import follow_clock
from sluice.ledger.connection import Ledger, connection_use
from sluice.ledger.stream_records import read_stream
from sluice.ledger.stream_troubles import StreamTrouble, clear_trouble, record_report, record_trouble
from sluice.messages import in_words
from sluice.supervision.row_verdicts import with_rows
from sluice.supervision.supervision_values import StreamState, StreamVerdict
from sluice.supervision.supervisor import Supervisor, read_to_judge

_AT_ONCE, _SOON, _LATER = timedelta(0), timedelta(minutes=1), timedelta(minutes=10)

_PATIENCE = {
    StreamState.SILENT: _SOON,
    StreamState.UNKNOWN: _SOON,
    StreamState.DRIVER_GONE: _SOON,
    StreamState.TO_BE_STARTED: _SOON,
    StreamState.NEVER_STARTED: _SOON,
    StreamState.GIVEN_UP: _SOON,
    StreamState.RESTARTING: _LATER,
    StreamState.STOPPING: _LATER,
    StreamState.QUEUED: _LATER,
    StreamState.FAILED: _LATER,
}

CONNECTIONS_SHARE = 0.8
"""Of the connections that the ledger's server allows; beyond it a person is alerted."""

THE_LEDGER = "the ledger"
"""The subject of troubles of the ledger itself; no stream can have this name."""

FEW_CONNECTIONS = "few connections"

THE_CLOCK = "the ledger's clock"
SET_BACK = "clock set back"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """An unhealthy stream, or a job that failed: as every failing task of Sluice carries it, one form for all channels.

    stream: its name; the table of a job that has no stream.
    sentence: the whole message for a person, with the next step.
    reason: the state of the stream, or the reason of the failure; empty when it is unknown.
    is_new: whether it was not reported before. The reconciler reports a stream each minute as long as it is unhealthy.
    """

    stream: str
    sentence: str
    reason: str = ""
    is_new: bool = True


def is_alert_due(trouble: StreamTrouble, dag: DagObservation | None) -> bool:
    """Whether a person is to look at a stream; the table above is the whole rule.

    Parameters
    ----------
    dag: the DAG of the stream; unset when Airflow does not know it.
    """
    is_red = dag is not None and dag.is_paused and dag.has_failed
    if trouble.reason == StreamState.GIVEN_UP and is_red and trouble.by_its_task:
        return False
    if trouble.reason == StreamState.GIVEN_UP and dag is not None and dag.is_paused:
        return True  # it has no task that could report it
    if is_of_increment(trouble) and trouble.by_its_task:
        return False
    if trouble.reason == StreamState.NEVER_STARTED and (dag is None or dag.is_paused):
        return False
    return trouble.lasted >= _PATIENCE.get(StreamState(trouble.reason), _AT_ONCE)


def report_given_up(ledger: Ledger, stream: str, *, sentence: str, occasion: str, by: str) -> bool:
    """Record, with an event, that the task of a continuous stream fails because the stream is given up.

    Parameters
    ----------
    sentence: why, and what to do. occasion: of the decision. by: the task.

    Returns
    -------
    Whether a person was not alerted to it before.
    """
    state = StreamState.GIVEN_UP
    trouble = record_trouble(ledger, stream, reason=state, explanation=sentence, occasion=occasion, by=by)
    return record_report(ledger, trouble, by=by, is_its_task=True)


def report_red_increment(ledger: Ledger, stream: str, *, sentence: str, by: str) -> bool:
    """Record, with an event, that the last attempt of an increment failed.

    Parameters
    ----------
    sentence: why, and what to do. by: the task.

    Returns
    -------
    Whether a person was not alerted before, because the increment before it was not red.
    """
    trouble = record_trouble(ledger, stream, reason=StreamState.FAILED, explanation=sentence, by=by)
    return record_report(ledger, trouble, by=by, is_its_task=True)


def report_good_increment(ledger: Ledger, stream: str, *, by: str, wanted: LoadedStream | None = None) -> None:
    """Record that an increment succeeded, with an event when the one before was red or this one was overdue; or what is
    wrong with the rows of its batches, which the reconciler alerts to.

    Parameters
    ----------
    wanted: the stream as it is declared, with its limit; unset when it cannot be read.
    """
    record_increment(ledger, stream)
    done = StreamVerdict(state=StreamState.FINISHED, is_healthy=True, explanation="")
    limit = None if wanted is None else wanted.declaration.supervision.max_rejected
    seen = read_stream(ledger, stream) if wanted is None else read_to_judge(ledger, [wanted])[stream]
    verdict = with_rows(done, seen, limit)
    if verdict.is_healthy:
        clear_trouble(ledger, stream, by=by)
    else:
        record_trouble(
            ledger,
            stream,
            reason=verdict.state,
            explanation=verdict.explanation,
            occasion=verdict.occasion,
            by=by,
        )


def is_of_increment(trouble: StreamTrouble) -> bool:
    """Whether the task of an increment has reported it."""
    return trouble.reason == StreamState.FAILED


def connection_alerts(supervisor: Supervisor) -> list[Alert]:
    """An alert while the server of the ledger has hardly a connection left: each driver holds two."""
    use = connection_use(supervisor.ledger)
    if use.used < use.allowed * CONNECTIONS_SHARE:
        clear_trouble(supervisor.ledger, THE_LEDGER, by=supervisor.launched_by)
        return []
    sentence = (
        f"{use.used} of {use.allowed} connections of the ledger's PostgreSQL are in use; when none is left, drivers "
        "stop after two minutes. Raise its max_connections, or put a connection pooler in front of it."
    )
    return [report_at_once(supervisor, THE_LEDGER, reason=FEW_CONNECTIONS, sentence=sentence)]


def clock_alerts(supervisor: Supervisor) -> list[Alert]:
    """An alert when the clock of the ledger's server was set back since the pass before."""
    ahead = follow_clock(supervisor.ledger)
    if not ahead:
        clear_trouble(supervisor.ledger, THE_CLOCK, by=supervisor.launched_by)
        return []
    sentence = (
        f"The clock of the ledger's PostgreSQL was set back by {in_words(ahead)}, as by a standby that took over. What "
        "was recorded in its future counts as of now; drivers that are lost are noticed within five minutes. See that "
        "the clocks of its servers are synchronised."
    )
    return [report_at_once(supervisor, THE_CLOCK, reason=SET_BACK, sentence=sentence)]


def report_at_once(supervisor: Supervisor, subject: str, *, reason: str, sentence: str) -> Alert:
    """Record a trouble of which a person is alerted at once."""
    ledger, by = supervisor.ledger, supervisor.launched_by
    trouble = record_trouble(ledger, subject, reason=reason, explanation=sentence, by=by)
    return Alert(stream=subject, sentence=sentence, reason=reason, is_new=record_report(ledger, trouble, by=by))
