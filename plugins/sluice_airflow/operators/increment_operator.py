"""An increment as a task: without new input it ends as success before any JVM starts, and without an asset event."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from sluice.errors import LaunchError, SluiceError
from sluice.launching.job_command import RunIncrement, parse_arguments
from sluice_airflow.operators.spark_job_operator import SparkJobOperator

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.types import RuntimeTaskInstanceProtocol

    from sluice.launching.spark_submit import SparkConnection
    from sluice.ledger.announcements import UnannouncedPublications
    from sluice_airflow.composition import Deployment

_LAST_LINES = 10
"""Of a failed increment's log: its reason and its error are the last two."""


def is_last_attempt(task: RuntimeTaskInstanceProtocol, error: AirflowException) -> bool:
    """Whether Airflow does not try again after this error."""
    return isinstance(error, AirflowFailException) or task.try_number > task.max_tries


class IncrementOperator(SparkJobOperator):
    """Run an increment, unless the ledger and the heads of its sources show that there is nothing to do.

    Its outlets are the assets of the tables that it may write. Only those into which rows were published since the last
    announcement get an event. What was announced is recorded when Airflow has the end of the task: a worker that dies
    before announces again, and what a failed run had published is announced by the next one.
    """

    def __init__(self, *, command: RunIncrement, **kwargs: Any) -> None:
        super().__init__(command=command, on_success_callback=record_announcements, **kwargs)
        self.stream = command.stream
        self.announced: tuple[UnannouncedPublications, ...] = ()
        self._kept_group: int | None = None

    def execute(self, context: Context) -> None:
        """Run the increment and wait for it.

        Raises
        ------
        AirflowException, AirflowFailException: as `SparkJobOperator.execute` raises them.
        """
        if self._has_nothing_to_do():
            self.log.info("There is no new input for %s: Spark is not started.", self.stream)
        else:
            try:
                super().execute(context)
            except AirflowException as error:
                if is_last_attempt(context["ti"], error):
                    self._report(context, sentence=str(error))
                raise
        self._announce(context)
        self._report(context)

    def on_kill(self) -> None:
        """End the increment when its task is ended, with the driver that was kept for it."""
        from sluice.processes.driver_processes import kill_group

        if self._kept_group is None:
            super().on_kill()
        else:
            kill_group(self._kept_group)

    def _submit(self, context: Context, deployment: Deployment, connection: SparkConnection) -> None:
        """Have the driver that is kept for the stream run the increment; a new application when there can be none."""
        from sluice.launching.kept_driver import NoKeptDriverError
        from sluice.launching.launch_settings import is_local

        if self.engine.kept_minutes and is_local(connection.master):
            try:
                self._ask_kept_driver(deployment, connection)
            except NoKeptDriverError as error:
                self.log.warning("The increment gets an application of its own: %s", error)
            else:
                return
        super()._submit(context, deployment, connection)

    def _ask_kept_driver(self, deployment: Deployment, connection: SparkConnection) -> None:
        from sluice.launching.kept_driver import (
            IncrementRequest,
            NoKeptDriverError,
            deployment_digest,
            kept_driver_of,
        )

        last_lines: deque[str] = deque(maxlen=_LAST_LINES)

        def take(line: str) -> None:
            self.log.info("%s", line)
            last_lines.append(line)

        def is_begun(group: int) -> None:
            self._kept_group = group
            self.log.info("The driver that is kept for %s runs the increment: process group %d.", self.stream, group)

        driver = kept_driver_of(self.stream, self.engine, deployment.settings, connection)
        launched_by = parse_arguments(RunIncrement, self.application_args or ()).launched_by
        request = IncrementRequest(digest=deployment_digest(deployment.settings), launched_by=launched_by)
        try:
            exit_code = driver.run(request, on_line=take, on_start=is_begun)
        except NoKeptDriverError:
            raise
        except LaunchError as error:
            raise AirflowException(str(error)) from error
        finally:
            self._kept_group = None
        if exit_code:
            raise AirflowException("\n".join(last_lines))

    def _report(self, context: Context, *, sentence: str = "") -> None:
        """Leave an event in the ledger that the increment is red, or that it is not any more.

        Parameters
        ----------
        sentence: why it is red; empty when it succeeded.
        """
        from sluice.supervision.red_increments import report_good_increment, report_red_increment
        from sluice_airflow.composition import load_deployment

        by = f"airflow: {context['ti'].dag_id}, {context['ti'].run_id}"
        try:
            with load_deployment().open_ledger() as ledger:
                if sentence:
                    report_red_increment(ledger, self.stream, sentence=sentence, by=by)
                else:
                    report_good_increment(ledger, self.stream, by=by)
        except SluiceError as error:  # the task ends as it would without the event
            self.log.error("How the increment of %s ended is no event in the ledger: %s", self.stream, error)

    def _has_nothing_to_do(self) -> bool:
        """Whether it is known that there is nothing to do. What cannot be observed, the increment itself reports."""
        from sluice.declarations.load_declarations import load_declarations
        from sluice.sources.source_heads import SourceHeads
        from sluice.supervision.empty_increment import has_nothing_to_do, observe_increment
        from sluice_airflow.composition import load_deployment  # it imports SQLAlchemy: too slow for parsing a DAG file

        try:
            deployment = load_deployment()
            stream = load_declarations(deployment.settings.pipelines, only=self.stream).stream(self.stream)
            with deployment.open_ledger() as ledger:
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
        from sluice.declarations.iceberg_output import IcebergOutput
        from sluice.declarations.load_declarations import load_declarations
        from sluice.ledger.announcements import find_unannounced
        from sluice_airflow.composition import load_deployment

        deployment = load_deployment()
        stream = load_declarations(deployment.settings.pipelines, only=self.stream).stream(self.stream)
        with deployment.open_ledger() as ledger:
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
        with load_deployment().open_ledger() as ledger:
            for publications in task.announced:
                note_announcement(ledger, publications)
