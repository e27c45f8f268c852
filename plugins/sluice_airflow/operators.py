"""Bounded work of Spark as a task: it asks for a work item, waits without a worker slot, and ends as the item ended.

When no Spark application takes the item, the task whose item is the first of its pool starts one, which outlives the
task. `sluice_airflow.triggers` and the ledger are imported when the task runs: DAG files are parsed all the time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from airflow.sdk.log import mask_secret

from sluice.errors import (
    ERROR_CLASSES,
    DeclarationError,
    SchemaError,
    SettingsError,
    SluiceError,
    UnhealthyError,
    UsageError,
)
from sluice.failure_reasons import Failure, FailureReason, describe_failure, next_step
from sluice.launching.job_output import FAILURE_MARK, REASON_MARK, last_after
from sluice.messages import redacted
from sluice.supervision.limits import helps_to_restart

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow.sdk import Context

    from sluice.ledger.connection import Ledger
    from sluice.ledger.work_values import WorkObservation
    from sluice.settings import Settings
    from sluice.work.pools import EngineProfile
    from sluice.work.requests import WorkRequest
    from sluice.work.start_application import WorkQueue
    from sluice_airflow.composition import Deployment

SPARK_POOL = "spark"
"""The Airflow pool of the tasks that ask for work: short ones, which wait in the triggerer."""

LAUNCHED_BY = "airflow: {{ dag.dag_id }}, {{ run_id }}"
"""Who asks, in the ledger; Airflow fills in the DAG and its run."""

FAILED = "failed"
"""The reason of the recorded trouble of a table whose work failed."""

POLL_SECONDS = 1.0
"""Between two looks at an item while its task is deferred."""

_LOG_LINES = 400
"""Of the log of an item, in the log of its task."""

_LASTING = (UsageError, SettingsError, DeclarationError, SchemaError, UnhealthyError)
"""Errors that another try would only repeat: the input must change first."""


class WorkOperator(BaseOperator):
    """Ask for a piece of work, and wait for its end.

    Parameters
    ----------
    request: what is asked for; templates in its fields are rendered.
    """

    template_fields: Sequence[str] = ("fields", "asked_by")
    ends_in_trigger = True
    """Whether the task needs no worker when its item is done."""

    def __init__(self, *, request: WorkRequest, **kwargs: Any) -> None:
        super().__init__(pool=SPARK_POOL, **kwargs)
        self.kind = str(request.kind)
        self.subject = request.subject
        self.fields = {name: str(value) for name, value in asdict(request).items()}
        self.asked_by = LAUNCHED_BY
        self._item = ""

    def execute(self, context: Context) -> Any:
        """Ask for the work, start an application if none takes it, and defer.

        Raises
        ------
        AirflowException: with the work's own reason; Airflow tries again as often as the task allows.
        AirflowFailException: when another try could only repeat the failure.
        """
        with self._reporting_failures(context):
            self.work(context)

    def work(self, context: Context) -> None:
        """Ask for the work and wait; for subclasses that may have nothing to ask for."""
        with _errors_of_airflow():
            deployment = self._deployment()
            with deployment.open_owned_ledger() as ledger:
                queue = deployment.work_queue(ledger, asked_by=self.asked_by)
                self._ask(queue, self._profile(queue))
                self._go_on(context, queue)

    def look_again(self, context: Context, event: Mapping[str, Any] | None = None, *, item: str) -> Any:
        """Continue after a trigger fired. Airflow's database holds this name for every deferred task."""
        self._item = item
        with self._reporting_failures(context), _errors_of_airflow():
            deployment = self._deployment()
            with deployment.open_owned_ledger() as ledger:
                self._go_on(context, deployment.work_queue(ledger, asked_by=self.asked_by))

    def on_kill(self) -> None:
        """Withdraw the item of a task that is ended on its worker. While it waits, its trigger does that."""
        from sluice.ledger.work_items import withdraw_items

        if self._item:
            with self._deployment().open_owned_ledger() as ledger:
                withdraw_items(ledger, [self._item])

    def finish(self, context: Context, ledger: Ledger) -> None:
        """What is left to do on a worker when the item is done; for subclasses."""

    def record_end(self, ledger: Ledger, sentence: str) -> bool:
        """Record in the ledger that the work is red, or that it is not any more: of a table, whose work comes again.

        Parameters
        ----------
        sentence: why it is red; empty when it is done.

        Returns
        -------
        Whether a person was not alerted to it before.
        """
        from sluice.ledger.stream_troubles import clear_trouble, record_report, record_trouble
        from sluice.ledger.work_values import trouble_of

        subject = trouble_of(self.kind, self.subject)
        if subject is None:
            return True
        if not sentence:
            clear_trouble(ledger, subject, by=self.asked_by)
            return True
        trouble = record_trouble(ledger, subject, reason=FAILED, explanation=sentence, by=self.asked_by)
        return record_report(ledger, trouble, by=self.asked_by)

    def _report_end(self, sentence: str = "") -> bool:
        try:
            with self._deployment().open_owned_ledger() as ledger:
                return self.record_end(ledger, sentence)
        except SluiceError as error:  # the task ends as it would without the event
            self.log.error("How the work on %s ended is no event in the ledger: %s", self.subject, error)
        return True

    @contextmanager
    def _reporting_failures(self, context: Context) -> Iterator[None]:
        """Leave an event in the ledger when the last try fails."""
        try:
            yield
        except AirflowException as error:
            is_new = self._report_end(str(error)) if _is_last_try(context, error) else True
            if isinstance(error, WorkFailedError):
                error.alerts = tuple(replace(alert, is_new=is_new) for alert in error.alerts)
            raise

    @property
    def request(self) -> WorkRequest:
        """What is asked for, with rendered fields."""
        from sluice.ledger.work_values import WorkKind
        from sluice.work.requests import REQUESTS

        return REQUESTS[WorkKind(self.kind)](**self.fields)

    def _ask(self, queue: WorkQueue, profile: EngineProfile) -> None:
        from sluice.ledger.work_items import ask

        (self._item,) = ask(queue.ledger, queue.item(self.request, profile))

    def _go_on(self, context: Context, queue: WorkQueue) -> None:
        """Start an application for the item, wait for it, or end as it has ended."""
        from sluice.ledger.work_items import observe_item
        from sluice.ledger.work_values import WorkState

        seen = observe_item(queue.ledger, self._item)
        if seen.needs_application:
            self._start_application(queue)
            seen = observe_item(queue.ledger, self._item)
        if seen.state.is_open:
            self._wait()
        if seen.state is WorkState.WITHDRAWN:
            raise AirflowException(f"Work item {self._item} of {self.subject} was withdrawn.")
        self._show_log(seen, queue.settings)
        if seen.state is WorkState.FAILED:
            raise failure_of_work(seen.failure or "", subject=self.subject)
        self.finish(context, queue.ledger)

    def _start_application(self, queue: WorkQueue) -> None:
        """Start an application for the item as the deployment is now. When its files have changed since the item was
        asked for, no application could take that any more: another one is asked for."""
        from sluice.ledger.work_items import find_pool

        profile = self._profile(queue)
        pool = queue.item(self.request, profile).pool
        if pool != find_pool(queue.ledger, self._item):
            self._ask(queue, profile)
        queue.start_application(self._item, pool, profile)

    def _wait(self) -> NoReturn:
        from sluice.ledger.work_values import WorkKind
        from sluice_airflow.triggers.work_trigger import WorkTrigger

        trigger = WorkTrigger(
            stream=self.subject,
            item=self._item,
            results_of=self.asked_by if self.kind == WorkKind.INTERVAL else "",
            ends_task=self.ends_in_trigger,
            poll_seconds=POLL_SECONDS,
        )
        self.log.info("Work item %s is in the queue; its log: sluice work logs %s", self._item, self._item[:8])
        self.defer(trigger=trigger, method_name=self.look_again.__name__, kwargs={"item": self._item})

    def _show_log(self, seen: WorkObservation, settings: Settings) -> None:
        """Repeat what the application has logged about the item, if its log is on this host."""
        from sluice.work.pools import last_lines_of_item

        for secret in settings.secret_values():
            mask_secret(secret)  # whatever a library of the application has written into its log
        for line in last_lines_of_item(seen, limit=_LOG_LINES):
            self.log.info("%s", line)

    def _profile(self, queue: WorkQueue) -> EngineProfile:
        from sluice.work.start_application import profile_for

        return profile_for(self.request, queue.settings.pipelines)

    def _deployment(self) -> Deployment:
        from sluice_airflow.composition import load_deployment  # SQLAlchemy: too slow for the parsing of a DAG file

        return load_deployment()


def _is_last_try(context: Context, error: AirflowException) -> bool:
    """Whether Airflow does not try again after this error."""
    task = context.get("ti")
    return isinstance(error, AirflowFailException) or task is None or task.try_number > task.max_tries


@contextmanager
def _errors_of_airflow() -> Iterator[None]:
    """Raise an error of ours as one of Airflow's, which does not try again what another try could only repeat."""
    try:
        yield
    except _LASTING as error:
        raise AirflowFailException(str(error)) from error
    except SluiceError as error:
        raise AirflowException(str(error)) from error


class WorkFailedError(AirflowException):
    """A piece of work failed; Airflow tries again as often as its task allows. It is `context["exception"]` of a
    callback.

    Parameters
    ----------
    sentence: the whole message for a person.
    subject: the stream or the table.
    failure_reason: the reason of the failure; empty when none was reported.

    Attributes
    ----------
    alerts: the same as the one alert that every channel knows.
    """

    def __init__(self, sentence: str, *, subject: str, failure_reason: str = "") -> None:
        from sluice.supervision.alerts import Alert  # it imports SQLAlchemy: too slow for parsing a DAG file

        super().__init__(sentence)
        self.failure_reason = failure_reason
        self.alerts: tuple[Alert, ...] = (Alert(stream=subject, sentence=sentence, reason=failure_reason),)


class WorkFailedForGoodError(WorkFailedError, AirflowFailException):
    """A piece of work failed, and another try would only repeat it."""


def failure_of_work(said: str, *, subject: str) -> WorkFailedError:
    """Return the exception for a failed item.

    Parameters
    ----------
    said: the last lines of the item: its reason and its error.
    subject: the stream or the table.
    """
    lines = redacted(said).splitlines()
    name, colon, message = (last_after(FAILURE_MARK, lines) or "").partition(": ")
    if not colon:
        return WorkFailedError("\n".join(lines), subject=subject)
    is_lasting = issubclass(ERROR_CLASSES.get(name, SluiceError), _LASTING)
    reason = last_after(REASON_MARK, lines)
    explains_itself = reason == FailureReason.UNEXPLAINED and name in ERROR_CLASSES
    if reason in set(FailureReason) and not explains_itself:
        failure = Failure.of(FailureReason(reason))
        message = f"{message} That is {describe_failure(failure)}. {next_step(failure.reason, stream=subject)}"
        is_lasting = is_lasting or not helps_to_restart(failure.failure_class)
    kind = WorkFailedForGoodError if is_lasting else WorkFailedError
    return kind(message, subject=subject, failure_reason=reason or "")
