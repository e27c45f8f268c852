"""The DAG of an incremental stream: every run reads what is new, writes it, and ends."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, AssetAll, AssetOrTimeSchedule, CronTriggerTimetable

from sluice.declarations.loaded_declarations import LoadedStream
from sluice.declarations.stream_declaration import ScheduleDeclaration
from sluice.errors import SluiceError
from sluice.work.requests import Increment
from sluice_airflow.dag_builders.documents import incremental_stream_document
from sluice_airflow.operators import WorkOperator
from sluice_airflow.timetables.backfill_timetable import ALL_BUT_BACKFILLS
from sluice_airflow.triggers.publication_trigger import table_assets

if TYPE_CHECKING:
    from airflow.sdk import Context

    from sluice.ledger.announcements import UnannouncedPublications
    from sluice.ledger.connection import Ledger

RUN_TASK = "run"
"""The one task of an incremental stream's DAG."""

_RETRIES = 2
"""What a second try cannot repair, a third rarely does; the checkpoint makes any number of tries safe."""

_AHEAD_OF_MAINTENANCE = 10
"""The priority in the pool of Spark jobs: new data come before a compaction."""

Schedule = AssetAll | AssetOrTimeSchedule | CronTriggerTimetable


def incremental_stream_dag(loaded: LoadedStream) -> DAG:
    """Build the DAG of an incremental stream. Its id is the stream's name."""
    declaration = loaded.declaration
    if declaration.schedule is None:
        raise ValueError(f"{loaded.file}: an incremental stream has a schedule, {declaration.stream} has none")
    with DAG(
        declaration.stream,
        description=declaration.description,
        doc_md=incremental_stream_document(loaded),
        schedule=_schedule(declaration.schedule),
        catchup=False,
        allowed_run_types=ALL_BUT_BACKFILLS,
        max_active_runs=1,
        tags=[*declaration.tags, "incremental", "stream"],
        default_args={"owner": declaration.owner},
        auto_register=False,
    ) as dag:
        IncrementOperator(
            task_id=RUN_TASK,
            stream=declaration.stream,
            priority_weight=_AHEAD_OF_MAINTENANCE,
            retries=_RETRIES,
            retry_delay=timedelta(seconds=30),
            retry_exponential_backoff=2,
            inlets=table_assets(declaration.tables_read),
            outlets=table_assets(declaration.tables_written),
        )
    return dag


def _schedule(declared: ScheduleDeclaration) -> Schedule:
    """By the clock, by new rows in all of the tables, or by whichever comes first."""
    assets = AssetAll(*table_assets(declared.tables)) if declared.tables else None
    timetable = CronTriggerTimetable(declared.cron, timezone="UTC") if declared.cron else None
    if assets is not None and timetable is not None:
        return AssetOrTimeSchedule(timetable=timetable, assets=assets)
    scheduled = assets or timetable
    if scheduled is None:
        raise ValueError("a schedule names a cron, tables, or both")
    return scheduled


class IncrementOperator(WorkOperator):
    """Run an increment, unless the ledger and the heads of its sources show that there is nothing to do.

    Its outlets are the assets of the tables that it may write. Only those into which rows were published since the last
    announcement get an event. What was announced is recorded when Airflow has the end of the task: a worker that dies
    before announces again, and what a failed run had published is announced by the next one.
    """

    ends_in_trigger = False  # asset events need a worker

    def __init__(self, *, stream: str, **kwargs: Any) -> None:
        super().__init__(request=Increment(stream=stream), on_success_callback=record_announcements, **kwargs)
        self.stream = stream
        self.announced: tuple[UnannouncedPublications, ...] = ()

    def work(self, context: Context) -> None:
        """Run the increment and wait for it, unless there is nothing to do."""
        if self._has_nothing_to_do():
            self.log.info("There is no new input for %s: Spark is not started.", self.stream)
            self._end_well(context)
        else:
            super().work(context)

    def finish(self, context: Context, ledger: Ledger) -> None:
        """Announce what was published."""
        self._end_well(context)

    def _end_well(self, context: Context) -> None:
        self._announce(context)
        self._report_end()

    def record_end(self, ledger: Ledger, sentence: str) -> bool:
        """Leave an event that the increment is red, or that it is not any more."""
        from sluice.supervision.alerts import report_good_increment, report_red_increment

        if sentence:
            return report_red_increment(ledger, self.stream, sentence=sentence, by=self.asked_by)
        report_good_increment(ledger, self.stream, by=self.asked_by, wanted=self._declared())
        return True

    def _declared(self) -> LoadedStream | None:
        """The stream as it is declared now; none when it cannot be read, which the reconciler reports."""
        from sluice.declarations.load_declarations import load_declarations
        from sluice_airflow.composition import load_deployment

        try:
            return load_declarations(load_deployment().settings.pipelines, only=self.stream).stream(self.stream)
        except SluiceError as error:
            self.log.warning("Whether %s rejects too much is unknown: %s", self.stream, error)
            return None

    def _has_nothing_to_do(self) -> bool:
        """Whether it is known that there is nothing to do. What cannot be observed, the increment itself reports."""
        from sluice.declarations.load_declarations import load_declarations
        from sluice.sources.source_heads import SourceHeads
        from sluice.supervision.source_watch import has_nothing_to_do, observe_increment
        from sluice_airflow.composition import load_deployment  # it imports SQLAlchemy: too slow for parsing a DAG file

        try:
            deployment = load_deployment()
            stream = load_declarations(deployment.settings.pipelines, only=self.stream).stream(self.stream)
            with deployment.open_owned_ledger() as ledger:
                return has_nothing_to_do(observe_increment(ledger, SourceHeads(deployment.settings), stream))
        except SluiceError as error:
            self.log.warning("Whether there is new input is unknown: %s", error)
            return False

    def _announce(self, context: Context) -> None:
        """Keep the outlets whose tables have new rows, and show in their events what is new."""
        from sluice_airflow.triggers.publication_stream import payload_of

        try:
            self.announced = self._publications()
        except SluiceError as error:
            self.log.warning("Which tables have new rows is unknown, so all of them get an event: %s", error)
            return
        by_table = {publications.table: publications for publications in self.announced}
        self.outlets = [outlet for outlet in self.outlets if outlet.name in by_table]
        for outlet in self.outlets:
            context["outlet_events"][outlet].extra = {"payload": payload_of(by_table[outlet.name])}
        if not self.outlets:
            self.log.info("%s has published no new rows: no asset event is raised.", self.stream)

    def _publications(self) -> tuple[UnannouncedPublications, ...]:
        """What was published into each table since the last announcement."""
        from sluice.declarations.load_declarations import load_declarations
        from sluice.declarations.output_declaration import IcebergOutput
        from sluice.ledger.announcements import find_unannounced
        from sluice_airflow.composition import load_deployment

        deployment = load_deployment()
        stream = load_declarations(deployment.settings.pipelines, only=self.stream).stream(self.stream)
        with deployment.open_owned_ledger() as ledger:
            found = [
                find_unannounced(ledger, table=declared.output.table, stream=self.stream, output=output)
                for output, declared in stream.declaration.outputs.items()
                if isinstance(declared.output, IcebergOutput)
            ]
        return tuple(publications for publications in found if publications is not None)


def record_announcements(context: Context) -> None:
    """Record the announcements of a task whose end Airflow has: a callback of `IncrementOperator`.

    Raises
    ------
    LedgerError: when the ledger cannot be reached; the next run announces the same publications again.
    """
    from sluice.ledger.announcements import note_announcement
    from sluice_airflow.composition import load_deployment

    task = context["task"]
    if isinstance(task, IncrementOperator) and task.announced:
        with load_deployment().open_owned_ledger() as ledger:
            for publications in task.announced:
                note_announcement(ledger, publications)
