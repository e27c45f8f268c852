"""When an unhealthy state of a stream calls for a person. Pure.

| the stream is                                                | a person is alerted              |
|--------------------------------------------------------------|----------------------------------|
| stalled, late, crash looping, unable to follow its change    | at once                          |
| undeclared, broken, of another mode than its run             | at once                          |
| declared differently on several hosts                        | at once                          |
| stopped by a paused DAG whose newest run failed              | at once                          |
| silent, unknown, without its driver, to be started           | after a minute                   |
| never started                                                | after a minute, once a person    |
|                                                              | has unpaused its DAG             |
| given up                                                     | after a minute, unless its own   |
|                                                              | DAG is red, as its newest run is |
| restarting, stopping, queued                                 | after ten minutes                |

It stays alerted until the stream is healthy again.
"""

from __future__ import annotations

from datetime import timedelta

from sluice.ledger.airflow_owner import DagObservation
from sluice.ledger.stream_troubles import StreamTrouble
from sluice.supervision.stream_health import StreamState

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
}


def is_alert_due(trouble: StreamTrouble, dag: DagObservation | None) -> bool:
    """Whether a person is to look at a stream; the table above is the whole rule.

    Parameters
    ----------
    dag: the DAG of the stream; unset when Airflow does not know it.
    """
    is_red_already = dag is not None and dag.is_paused and dag.has_failed
    if trouble.reason == StreamState.GIVEN_UP and is_red_already:
        return False
    if trouble.reason == StreamState.NEVER_STARTED and (dag is None or dag.is_paused):
        return False
    return trouble.lasted >= _PATIENCE.get(StreamState(trouble.reason), _AT_ONCE)
