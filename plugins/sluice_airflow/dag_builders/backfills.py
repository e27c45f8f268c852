"""The DAG of a stream's backfills, each run of which replaces one interval, and the DAG that searches for gaps."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, CronTriggerTimetable, Param
from airflow.sdk.api.datamodels._generated import DagRunType
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from sluice.declarations.loaded_declarations import Declarations, LoadedStream
from sluice.errors import SluiceError
from sluice.supervision.platform_dags import GAPS_DAG
from sluice.work.requests import FindGaps, ReplaceInterval
from sluice_airflow.dag_builders.documents import backfill_document
from sluice_airflow.operators import WorkOperator
from sluice_airflow.timetables.backfill_timetable import BackfillTimetable
from sluice_airflow.triggers.publication_trigger import table_assets

if TYPE_CHECKING:
    from airflow.sdk import Context

    from sluice.ledger.connection import Ledger

BACKFILL_SUFFIX = "__backfill"
"""After a stream's name, the id of the DAG of its backfills; no stream has `__` in its name."""

BACKFILL_TASK = "replace_interval"
"""The one task of that DAG."""

_BOUNDARY = "{{{{ {0}.isoformat() if {0} is defined else '' }}}}"
"""A boundary of the run's interval, in the template of its task; a run that was triggered by hand has none."""

_ALLOWED = "{{{{ 'yes' if dag_run is defined and (dag_run.conf or {{}}).get('{0}') is sameas true else 'no' }}}}"
"""Whether the conf of the backfill allows something: `allow_fewer`, that intervals have fewer rows afterwards;
`allow_repeated`, that the table may hold rows of them elsewhere."""

_AGREED = "{{ (dag_run.conf or {}).get('agreed', '') if dag_run is defined else '' }}"
"""The declarations that a person agreed to on a page, as `backfill_request` puts them into the conf."""

_RETRIES = 2

_BEHIND_INCREMENTS = 5
"""The priority in the pool of Spark jobs: new data come first, compactions last."""


def backfill_dag(loaded: LoadedStream) -> DAG:
    """Build the DAG of a stream's backfills. It appears unpaused: no run of it starts by itself."""
    declaration, backfill = loaded.declaration, loaded.declaration.backfill
    if backfill is None:
        raise ValueError(f"{loaded.file}: {declaration.stream} declares no backfill")
    with DAG(
        f"{declaration.stream}{BACKFILL_SUFFIX}",
        description=f"Computes intervals of {declaration.stream} again",
        doc_md=backfill_document(loaded, backfill),
        schedule=BackfillTimetable(backfill.interval),
        catchup=False,
        is_paused_upon_creation=False,
        # Airflow wants SCHEDULED for every DAG with a timetable; this timetable yields no such run. Without MANUAL the
        # UI disables the button whose dialog has the form for backfills; the task refuses such a run.
        allowed_run_types={DagRunType.SCHEDULED, DagRunType.MANUAL, DagRunType.BACKFILL},
        max_active_runs=backfill.at_once,
        tags=[*declaration.tags, "backfill"],
        default_args={"owner": declaration.owner},
        auto_register=False,
    ) as dag:
        BackfillOperator(
            task_id=BACKFILL_TASK,
            request=ReplaceInterval(
                stream=declaration.stream,
                start=_BOUNDARY.format("data_interval_start"),
                end=_BOUNDARY.format("data_interval_end"),
                allow_fewer=_ALLOWED.format("allow_fewer"),
                allow_repeated=_ALLOWED.format("allow_repeated"),
                agreed=_AGREED,
            ),
            priority_weight=_BEHIND_INCREMENTS,
            retries=_RETRIES,
            retry_delay=timedelta(seconds=30),
            inlets=table_assets(declaration.tables_read),
        )
    return dag


DAYS = "days"
"""The parameter that says how far back a run looks."""

_DEFAULT_DAYS = 8
"""A week and the day that is not over, so that every interval is looked at seven times."""

_START = f"{{{{ (dag_run.run_after - macros.timedelta(days=params.{DAYS})).isoformat() }}}}"

_BEHIND_BACKFILLS = 3
"""The priority in the pool of Spark jobs."""

_GAPS_PAGE = """\
# backfill_gaps
Computes the result of the sources again for the newest closed intervals of every stream that declares `backfill`, and
compares it with the table. It writes nothing. One task for each stream; they share Spark applications.

## How to operate it
- It runs every night. **Trigger** it to look further back: the form asks for the number of days.
- A task is skipped while its stream has published nothing yet: there is nothing to compare.
- The same from the command line, for one stream: `sluice stream gaps NAME`.

## What to do when it is red
The end of the task's log names the intervals that are missing, different or too many. `sluice backfill NAME --gaps`
replaces just those, or a backfill of the DAG `NAME__backfill` (button *Trigger*, choice *Backfill*). Late rows that the
stream has dropped are a difference too, because a backfill brings them in.
"""


def backfill_gaps_dag(declarations: Declarations) -> DAG:
    """Build the DAG with a task for every stream that declares a backfill."""
    with DAG(
        GAPS_DAG,
        description="Compares the newest intervals of tables with what their sources give",
        doc_md=_GAPS_PAGE,
        schedule=CronTriggerTimetable("23 3 * * *", timezone="UTC", run_immediately=timedelta(seconds=1)),
        catchup=False,
        max_active_runs=1,
        is_paused_upon_creation=False,
        tags=["platform", "backfill"],
        default_args={"owner": "sluice"},
        params={DAYS: Param(_DEFAULT_DAYS, type="integer", minimum=1, title="Days to look back")},
        auto_register=False,
    ) as dag:
        for name, stream in sorted(declarations.streams.items()):
            if stream.declaration.backfill is not None:
                GapOperator(
                    task_id=name,
                    request=FindGaps(stream=name, start=_START, end="", fails="yes"),
                    owner=stream.declaration.owner,
                    priority_weight=_BEHIND_BACKFILLS,
                    retries=1,
                    retry_delay=timedelta(minutes=1),
                    inlets=table_assets(stream.declaration.tables_written),
                )
    return dag


class BackfillOperator(WorkOperator):
    """Replace an interval, and show what the ledger recorded of it: for the stream, and for those that followed."""

    def __init__(self, *, request: ReplaceInterval, **kwargs: Any) -> None:
        super().__init__(request=request, **kwargs)

    def execute(self, context: Context) -> Any:
        """Have the interval replaced; Airflow's page of the task shows its results under XCom.

        Raises
        ------
        AirflowFailException: when the run is not a backfill run.
        AirflowException, AirflowFailException: as `WorkOperator.execute` raises them.
        """
        _require_backfill(context)
        super().execute(context)

    def finish(self, context: Context, ledger: Ledger) -> None:
        """Push the results by stream."""
        from sluice.backfill.results import RESULTS, results_of_run

        context["ti"].xcom_push(RESULTS, results_of_run(ledger, self.asked_by))


def _require_backfill(context: Context) -> None:
    """Refuse a run that was triggered by hand: it names no interval to replace."""
    run = context["dag_run"]
    if run.run_type != "backfill":
        raise AirflowFailException(
            f"{run.dag_id} runs for backfills only, and {run.run_id} is not a backfill run: no interval is replaced. "
            "In the dialog of the button Trigger choose Backfill, and give the first and the last interval."
        )


class GapOperator(WorkOperator):
    """Compare a table with the sources of its stream, unless the stream has published nothing yet."""

    def __init__(self, *, request: FindGaps, **kwargs: Any) -> None:
        super().__init__(request=request, **kwargs)
        self.stream = request.stream

    def execute(self, context: Context) -> Any:
        """Search for gaps and wait for the result.

        Raises
        ------
        AirflowSkipException: when there is nothing to compare; Spark is not started.
        AirflowException, AirflowFailException: as `WorkOperator.execute` raises them.
        """
        if self._has_published_nothing():
            raise AirflowSkipException(
                f"{self.stream} has published nothing yet, so there is nothing to compare with its sources."
            )
        super().execute(context)

    def _has_published_nothing(self) -> bool:
        """Whether it is known that nothing was published. What cannot be observed, the search itself reports."""
        from sluice.backfill.observe_backfill import has_published
        from sluice.declarations.load_declarations import load_declarations
        from sluice.tables.catalog import open_catalog
        from sluice_airflow.composition import load_deployment  # it imports SQLAlchemy: too slow for parsing a DAG file

        try:
            settings = load_deployment().settings
            stream = load_declarations(settings.pipelines, only=self.stream).stream(self.stream)
            return not has_published(open_catalog(settings), stream)
        except SluiceError as error:
            self.log.warning("What %s has published is unknown: %s", self.stream, error)
            return False
