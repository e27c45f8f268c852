"""What Airflow loads of Sluice in each of its long-lived processes, once, before it forks.

The dag-processor parses every DAG file in a child of its own every half minute, and the scheduler runs every task in
one. What the parent has imported the child need not import: half a second of processor time for each DAG file.
"""

from __future__ import annotations

from airflow.plugins_manager import AirflowPlugin

import sluice.declarations.load_declarations
import sluice.settings  # noqa: F401  # it and what follows are used by the children alone
import sluice_airflow.dag_builders.backfills
import sluice_airflow.dag_builders.broken_declarations
import sluice_airflow.dag_builders.increments
import sluice_airflow.dag_builders.platform_dags
import sluice_airflow.dag_builders.stream_control
import sluice_airflow.dag_builders.streams
import sluice_airflow.dag_builders.table_jobs  # noqa: F401  # used by the children alone
from sluice_airflow.adapters.api_permissions import ControlPermission, FormPermission
from sluice_airflow.pages.page_addresses import EXTERNAL_VIEWS, FASTAPI_APPS, REACT_APPS
from sluice_airflow.timetables.backfill_timetable import BackfillTimetable


class SluicePlugin(AirflowPlugin):
    """Sluice among Airflow's plugins."""

    name = "sluice"
    timetables = [BackfillTimetable]  # noqa: RUF012  # Airflow reads plain lists here
    fastapi_apps = FASTAPI_APPS
    fastapi_root_middlewares = [  # noqa: RUF012  # as above
        {"name": "control of streams", "middleware": ControlPermission},
        {"name": "choices in forms", "middleware": FormPermission},
    ]
    external_views = EXTERNAL_VIEWS
    react_apps = REACT_APPS
