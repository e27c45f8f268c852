"""The DAGs with one task for each table, and a form that chooses among them: maintenance and quality."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow.sdk import (
    DAG,
    AssetAny,
    AssetOrTimeSchedule,
    BaseOperatorLink,
    CronTriggerTimetable,
    Param,
    TaskGroup,
    conf,
    task,
)
from airflow.sdk.exceptions import AirflowFailException

from sluice.declarations.loaded_declarations import Declarations, all_tables
from sluice.declarations.table_declaration import TableDeclaration
from sluice.errors import SluiceError
from sluice.launching.job_output import FAILURE_MARK
from sluice.supervision.platform_dags import MAINTENANCE_DAG, QUALITY_DAG
from sluice.work.requests import CheckTable, MaintainTable, WorkRequest
from sluice_airflow.dag_builders.broken_declarations import storable_owners, storable_page
from sluice_airflow.operators import WorkOperator, failure_of_work
from sluice_airflow.pages.page_addresses import quality_address
from sluice_airflow.triggers.publication_trigger import table_asset, table_assets

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, Context
    from airflow.sdk.types import TaskInstanceKey


def choice_param(kind: str, *, among: Sequence[str]) -> Param:
    """The parameter of a DAG: in Airflow's form a list to pick from; by the API, other names are refused.

    Parameters
    ----------
    kind: what is chosen, in the plural: the parameter's name.
    among: what there is to choose.
    """
    return Param(
        [],
        type="array",
        items={"type": "string", "enum": list(among)},
        examples=list(among),
        title=kind.capitalize(),
        description_md=f"The {kind} of this run. **None chosen means all.**",
    )


def chosen(kind: str, *, wanted: Sequence[str], among: Sequence[str]) -> list[str]:
    """What a run is about: what was chosen, all when nothing was; in the order of `among`.

    Raises
    ------
    AirflowFailException: when something is wanted that is not there, for example because it was removed meanwhile.
    """
    if unknown := sorted(set(wanted) - set(among)):
        raise AirflowFailException(
            f"The parameter {kind} names {', '.join(unknown)}; allowed are {', '.join(among) or 'none'}."
        )
    return [name for name in among if name in wanted] if wanted else list(among)


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
    on_publication: Sequence[str] = (),
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
    on_publication: the tables that are due after a publication into them, too.
    """
    chosen_tables = {table.table: table for table in tables}
    owners = storable_owners((table.owner for table in chosen_tables.values()), otherwise=PLATFORM_OWNER)
    owner_of = dict(zip(chosen_tables, owners, strict=True))
    with DAG(
        dag_id,
        description=description,
        doc_md=document,
        schedule=_schedule(cron, on_publication),
        catchup=False,
        max_active_runs=1,
        is_paused_upon_creation=False,
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


def _schedule(cron: str, on_publication: Sequence[str]) -> AssetOrTimeSchedule | CronTriggerTimetable:
    clock = CronTriggerTimetable(cron, timezone="UTC", run_immediately=_NOT_WHEN_UNPAUSED)
    if not on_publication:
        return clock
    return AssetOrTimeSchedule(timetable=clock, assets=AssetAny(*table_assets(on_publication)))


def _choose_tables(
    tables: list[str], due: Callable[[Sequence[str], str], Sequence[str]] | None, *, retries: int
) -> Any:
    @task.branch(task_id=CHOOSE_TASK, retries=retries, retry_delay=_RETRY_DELAY)
    def choose_tables(
        params: Mapping[str, Any] | None = None, run_id: str | None = None, triggering_asset_events: Any = None
    ) -> list[str]:
        """The ids of the tasks to run: a task is called like its table. After publications, those of their tables."""
        published = {key.name for key in triggering_asset_events or ()}
        wanted = list((params or {}).get(CHOICE) or []) or [name for name in tables if name in published]
        names = chosen(CHOICE, wanted=wanted, among=tables)
        return names if due is None else list(due(names, run_id or ""))

    return choose_tables()


def _by_namespace(tables: Mapping[str, TableDeclaration]) -> dict[str, list[TableDeclaration]]:
    groups: dict[str, list[TableDeclaration]] = {}
    for table in tables.values():
        groups.setdefault(table.namespace, []).append(table)
    return groups


_QUALITY_PAGE = """\
# data_quality
Checks the newest committed snapshot of every table that declares expectations (`quality:`), and writes a report that
says what was checked, when, and on which snapshot. One task for each table; they share one Spark application.

## How to operate it
- It runs every six hours, and after publications into tables that declare `quality: {on_publication: true}`.
- **Trigger** it to check now, and choose the tables in the form; none chosen means all.
- What each rule found over time: the page *Quality*, or `sluice quality report TABLE`.

## What to do when it is red
The link *Quality report* of the task shows the rules that do not hold, with values and their history; the end of the
task's log names them, too. Bad data is the business of the table's owner: repair the source or the transformation. A
check that could not be made is named as such: repair its cause and clear the task. Checking only reads, so clearing is
always safe.
"""


def data_quality_dag(declarations: Declarations) -> DAG:
    """Build the DAG with a task for every table that declares expectations."""
    return table_jobs_dag(
        QUALITY_DAG,
        description="Checks every table against its declared expectations",
        document=_QUALITY_PAGE,
        cron="47 */6 * * *",
        tables=[table.declaration for table in declarations.tables.values() if table.declaration.quality is not None],
        request=lambda table: CheckTable(table=table),
        retries=1,
        operator=CheckOperator,
        on_publication=[
            name
            for name, table in declarations.tables.items()
            if table.declaration.quality is not None and table.declaration.quality.on_publication
        ],
    )


_MAINTENANCE_PAGE = """\
# table_maintenance
Removes old rows, compacts small files, rewrites manifests, expires snapshots and moves what dead writers left behind
to the trash, as each table declares (`maintenance:`) or inherits from `maintenance.yaml`. The first task looks at all
tables and does what needs no Spark; the tables that it skips are in order. The others have a task each, and those
whose steps need Spark share one application.

## How to operate it
- It runs every hour. **Trigger** it to run now, and choose the tables in the form; none chosen means all.
- What was done, with the figures before and after: `sluice table status TABLE`.
- Clearing a task is always safe: maintenance changes the layout of a table, and writers go first. Old rows go only
  by a policy to which a person has agreed with `sluice table maintain TABLE`.

## What to do when it is red
The end of the task's log names the step that was not done and why. A step that yields to writers is tried again in
the next hour and turns the task red only when it yields then, too; a step that a reader or a late writer has blocked
for two days turns it red as well. Repair the cause and clear the task.
"""


def table_maintenance_dag(declarations: Declarations) -> DAG:
    """Build the DAG with a task for every table whose declaration asks for any maintenance, quarantines included."""
    return table_jobs_dag(
        MAINTENANCE_DAG,
        description="Keeps every table in order: small files, manifests, snapshots",
        document=_MAINTENANCE_PAGE,
        cron="17 * * * *",
        tables=[table for table in all_tables(declarations).values() if table.maintenance.is_any],
        request=lambda table: MaintainTable(table=table),
        retries=1,
        operator=MaintenanceOperator,
        due=_due_tables,
    )


def _due_tables(names: Sequence[str], run_id: str) -> Sequence[str]:
    """Those of the tables that need a task of their own; called when the DAG runs, not when it is parsed."""
    from sluice.declarations.load_declarations import load_declarations
    from sluice.maintenance.due_tables import due_tables
    from sluice_airflow.composition import load_deployment

    deployment = load_deployment()
    declarations = load_declarations(deployment.settings.pipelines)
    return due_tables(deployment.settings, declarations, names, launched_by=f"airflow: {MAINTENANCE_DAG}, {run_id}")


class QualityReportLink(BaseOperatorLink):
    """The button on the page of the task. Airflow saves its address whenever the task stops running on a worker, so it
    is there while the check is awaited and when it has failed."""

    @property
    def name(self) -> str:
        """What the button says."""
        return "Quality report"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # Airflow's signature
        """The page of the table's quality, in this Airflow: with the path below which it lies, without its host."""
        below = urlsplit(conf.get("api", "base_url", fallback="")).path.rstrip("/")
        return f"{below}/{quality_address(getattr(operator, 'subject', ''))}"


class CheckOperator(WorkOperator):
    """Check a table against its rules."""

    operator_extra_links = (QualityReportLink(),)


class MaintenanceOperator(WorkOperator):
    """Maintain a table: here as far as no Spark is needed, else as a work item.

    So a table that is red, because a step is refused or has been blocked for long, shows that without a JVM.
    """

    def __init__(self, *, request: MaintainTable, **kwargs: Any) -> None:
        super().__init__(request=request, **kwargs)
        self.table = request.table

    def work(self, context: Context) -> None:
        """Maintain the table, or ask for it and wait."""
        try:
            is_maintained = self._is_maintained_here()
        except SluiceError as error:
            raise failure_of_work(f"{FAILURE_MARK}{type(error).__name__}: {error}", subject=self.table) from error
        if is_maintained:
            self._report_end()
        else:
            super().work(context)

    def _is_maintained_here(self) -> bool:
        """Maintain the table, unless that needs Spark."""
        from sluice.declarations.load_declarations import load_declarations
        from sluice.maintenance.maintenance_records import run_sentences
        from sluice.maintenance.run_maintenance import open_maintenance, require_no_problems

        deployment = self._deployment()
        declarations = load_declarations(deployment.settings.pipelines)
        with deployment.open_owned_ledger() as ledger:
            maintenance = open_maintenance(deployment.settings, ledger, declarations, launched_by=self.asked_by)
            run = maintenance.maintain_without_spark(self.table)
            if run is None:
                return False
            for sentence in run_sentences(run):
                self.log.info("%s", sentence)
            require_no_problems(ledger, run)
        return True
