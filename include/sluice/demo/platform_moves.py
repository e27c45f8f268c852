"""What the platform has done so far for the demo: another value is a move, see `standstill`."""

from __future__ import annotations

from sluice.demo.airflow_api import AirflowApi
from sluice.demo.dag_runs import CHECKED_TABLES, DAGS, MAINTAINED_TABLES
from sluice.demo.stream_watch import GOLD, SILVER, STREAMS
from sluice.ledger.backfill_attempts import recent_attempts
from sluice.ledger.batches import all_totals
from sluice.ledger.connection import Ledger
from sluice.ledger.maintenance_runs import newest_maintenance
from sluice.ledger.quality_checks import newest_quality
from sluice.ledger.runs import newest_runs
from sluice.ledger.work_items import find_items

_ATTEMPTS = 50
"""More than a demo makes for one stream."""

_ITEMS = 100
"""More work items than a demo asks for."""


def observe_moves(ledger: Ledger, airflow: AirflowApi) -> object:
    """The batches, runs and work items in the ledger, and the states of the tasks that the demo waits for.

    Heartbeats are left out: a driver that hangs sends them too.

    Raises
    ------
    DemonstrationError: when Airflow does not answer.
    """
    return (
        [(run.run_id, run.state) for run in newest_runs(ledger)],
        all_totals(ledger, STREAMS),
        [recent_attempts(ledger, stream, limit=_ATTEMPTS) for stream in (SILVER, GOLD)],
        find_items(ledger, limit=_ITEMS),
        [newest_maintenance(ledger, table) for table in MAINTAINED_TABLES],
        [newest_quality(ledger, table) for table in CHECKED_TABLES],
        airflow.observe_tasks(DAGS),
    )
