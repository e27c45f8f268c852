"""Puts tasks of an Airflow into the state in which their operator leaves them: deferred, with their trigger.

A program of its own, because Airflow reads its settings while it is imported: `python -m benchmarks.deferring FILE`
with a JSON list of `{"dag_id": …, "trigger": …, "arguments": {…}}`, in the environment of that Airflow. The DAGs are
serialised already (`airflow dags reserialize`), each with one task.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.models.dagbag import DBDagBag
from airflow.models.trigger import Trigger
from airflow.sdk.timezone import utcnow
from airflow.utils.session import create_session
from airflow.utils.state import DagRunState, TaskInstanceState
from airflow.utils.types import DagRunTriggeredByType, DagRunType

if TYPE_CHECKING:
    from sqlalchemy.orm import Session


def defer(wanted: Mapping[str, Any], dags: DBDagBag, session: Session) -> None:
    """Make a run of a DAG whose task is deferred, as the scheduler and the task would have."""
    dag = dags.get_latest_version_of_dag(wanted["dag_id"], session=session)
    if dag is None:
        raise LookupError(f"Airflow has not serialised the DAG {wanted['dag_id']}.")
    run = dag.create_dagrun(
        run_id="benchmark",
        run_after=utcnow(),
        run_type=DagRunType.MANUAL,
        triggered_by=DagRunTriggeredByType.TEST,
        state=DagRunState.RUNNING,
        session=session,
    )
    trigger = Trigger(classpath=wanted["trigger"], kwargs=wanted["arguments"])
    session.add(trigger)
    session.flush()
    (task,) = run.get_task_instances(session=session)
    task.state = TaskInstanceState.DEFERRED
    task.trigger_id = trigger.id
    task.next_method = "look_again"
    task.start_date = utcnow()
    task.try_number = 1


def main() -> None:
    """Defer all tasks of the file, in one transaction."""
    dags = DBDagBag()
    with create_session() as session:
        for wanted in json.loads(Path(sys.argv[1]).read_text()):
            defer(wanted, dags, session)


if __name__ == "__main__":
    main()
