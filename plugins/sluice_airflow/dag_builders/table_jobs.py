"""A DAG with one task for each table, and a form that chooses among them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, CronTriggerTimetable, TaskGroup, task

from sluice.declarations.table_declaration import TableDeclaration
from sluice.work.requests import WorkRequest
from sluice_airflow.dag_builders.assets import table_asset
from sluice_airflow.dag_builders.choices import choice_param, chosen
from sluice_airflow.dag_builders.storable_dags import storable_owners, storable_page
from sluice_airflow.operators.work_operator import WorkOperator

CHOICE = "tables"
"""The parameter that names the tables of a run."""

CHOOSE_TASK = "choose_tables"
"""The task that leaves the other tables out, so that they cost nothing."""

PLATFORM_OWNER = "sluice"
"""Who owns the platform's own tasks."""

_RETRY_DELAY = timedelta(minutes=1)

_NOT_WHEN_UNPAUSED = timedelta(seconds=1)
"""How late a first run may still be made up for when the DAG is unpaused. Airflow's own answer, also to `False`, is
minutes, and whoever unpauses the DAG to run one table would wait for all of them."""


def table_jobs_dag(
    dag_id: str,
    *,
    description: str,
    document: str,
    cron: str,
    tables: Iterable[TableDeclaration],
    request: Callable[[str], WorkRequest],
    retries: int,
    operator: type[WorkOperator] = WorkOperator,
    due: Callable[[Sequence[str], str], Sequence[str]] | None = None,
) -> DAG:
    """Build a DAG that runs a job on every table, or on those that are chosen.

    Parameters
    ----------
    document: the page of the DAG.
    cron: when all tables are due, in UTC.
    tables: the tables, in the order in which they are shown.
    request: what is asked for a table, by the table's name.
    retries: how often Airflow tries a failed task again.
    operator: of the tasks.
    due: which of these tables have anything to do, for the run of this name; called when the DAG runs, in one process
        for all of them. Unset: all have.
    """
    chosen_tables = {table.table: table for table in tables}
    owners = storable_owners((table.owner for table in chosen_tables.values()), otherwise=PLATFORM_OWNER)
    owner_of = dict(zip(chosen_tables, owners, strict=True))
    with DAG(
        dag_id,
        description=description,
        doc_md=document,
        schedule=CronTriggerTimetable(cron, timezone="UTC", run_immediately=_NOT_WHEN_UNPAUSED),
        catchup=False,
        max_active_runs=1,
        tags=["platform", "tables"],
        default_args={"owner": PLATFORM_OWNER},
        params={CHOICE: choice_param(CHOICE, among=list(chosen_tables))},
        auto_register=False,
    ) as dag:
        choose = _choose_tables(list(chosen_tables), due, retries=retries)
        for namespace, members in _by_namespace(chosen_tables).items():
            with TaskGroup(namespace):
                for table in members:
                    choose >> operator(
                        task_id=table.table.partition(".")[2],
                        request=request(table.table),
                        owner=owner_of[table.table],
                        doc_md=storable_page(f"{table.description}\n\nOwner: {table.owner}"),
                        retries=retries,
                        retry_delay=_RETRY_DELAY,
                        inlets=[table_asset(table.table)],
                    )
    return dag


def _choose_tables(
    tables: list[str], due: Callable[[Sequence[str], str], Sequence[str]] | None, *, retries: int
) -> Any:
    @task.branch(task_id=CHOOSE_TASK, retries=retries, retry_delay=_RETRY_DELAY)
    def choose_tables(params: Mapping[str, Any] | None = None, run_id: str | None = None) -> list[str]:
        """The ids of the tasks to run: a task is called like its table."""
        names = chosen(CHOICE, wanted=list((params or {}).get(CHOICE) or []), among=tables)
        return names if due is None else list(due(names, run_id or ""))

    return choose_tables()


def _by_namespace(tables: Mapping[str, TableDeclaration]) -> dict[str, list[TableDeclaration]]:
    groups: dict[str, list[TableDeclaration]] = {}
    for table in tables.values():
        groups.setdefault(table.namespace, []).append(table)
    return groups
