"""A bounded job as a task: submitted through Airflow's Spark connection; its failure has the job's own reason."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import NAMESPACE_URL, uuid5

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from airflow.sdk.log import mask_secret

from sluice.declarations.engine_declaration import EngineDeclaration
from sluice.errors import (
    ERROR_CLASSES,
    ClusterError,
    DeclarationError,
    LaunchError,
    SchemaError,
    SettingsError,
    SluiceError,
    UnhealthyError,
    UsageError,
)
from sluice.failure_reasons import Failure, FailureReason, describe_failure, next_step
from sluice.launching.cluster.application import ApplicationState, JobTag
from sluice.launching.job_command import JobCommand
from sluice.launching.job_environment import withheld_names
from sluice.launching.job_output import FAILURE_MARK, REASON_MARK, last_after
from sluice.launching.launch_settings import launch_conf, ui_environment
from sluice.launching.spark_submit import DEFAULT_CONNECTION
from sluice.messages.redaction import redacted
from sluice.supervision.alert import Alert
from sluice.supervision.restart_policy import helps_to_restart

if TYPE_CHECKING:
    from airflow.sdk import Context

    from sluice.launching.cluster.application import ApplicationObservation
    from sluice.launching.cluster.cluster_job import ClusterJobs
    from sluice.launching.spark_submit import SparkConnection
    from sluice_airflow.composition import Deployment

SPARK_POOL = "spark"
"""The Airflow pool that bounds how many Spark applications run beside the streams."""

LAUNCHED_BY = "airflow: {{ dag.dag_id }}, {{ run_id }}"
"""The launcher of a job in the ledger; Airflow fills in the DAG and its run."""

_LASTING = (
    UsageError,
    SettingsError,
    DeclarationError,
    SchemaError,
    UnhealthyError,
)
"""Errors that another try would only repeat: the input must change first."""


class SparkJobOperator(SparkSubmitOperator):
    """Run a job through `spark-submit` and wait for its end.

    The settings of the application are built when the task runs, not when the DAG file is parsed, because they name
    folders of the machine. They contain no secrets; the job reads those from the environment that it inherits, without
    Airflow's own (`sluice.launching.job_environment`).

    Parameters
    ----------
    command: the job and its arguments; templates in the arguments are rendered.
    engine: the resources of the driver.
    """

    template_fields: Sequence[str] = ("application_args",)

    def __init__(self, *, command: JobCommand, engine: EngineDeclaration | None = None, **kwargs: Any) -> None:
        subject = str(getattr(command, fields(command)[0].name))
        super().__init__(
            application=command.application,
            application_args=command.arguments(),
            name=f"sluice {Path(command.application).stem} {subject}",
            conn_id=(engine.connection if engine is not None else None) or DEFAULT_CONNECTION,
            pool=SPARK_POOL,
            # The provider can reconnect to a job on some cluster managers only. Sluice does not need it: the ledger
            # refuses a second run of a stream, and every job can be run again.
            durable=False,
            **kwargs,
        )
        self.engine = engine or EngineDeclaration()
        self._on_cluster: tuple[ClusterJobs, JobTag] | None = None
        self.subject = subject

    def execute(self, context: Context) -> None:
        """Submit the job and wait for it.

        Raises
        ------
        AirflowException: with the job's own reason; Airflow tries again as often as the task allows.
        AirflowFailException: when another try could only repeat the failure.
        """
        from sluice_airflow.composition import load_deployment  # it imports SQLAlchemy: too slow for parsing a DAG file

        try:
            deployment = load_deployment()
            connection = deployment.spark_connection(self.engine.connection or DEFAULT_CONNECTION)
        except SettingsError as error:
            raise AirflowFailException(str(error)) from error
        settings = deployment.settings
        for secret in settings.secret_values():
            mask_secret(secret)  # the job's log becomes this task's, whatever a library of the job writes into it
        self.application = str(settings.home / self.application)
        self.conf = launch_conf(
            home=settings.home, jars=settings.jars, engine=self.engine, is_bounded=True, master=connection.master
        )
        if connection.is_cluster:
            self._run_on_cluster(context, deployment)
            return
        # The provider adds variables to those of this task and removes none: so those that are withheld are emptied.
        self.env_vars = dict.fromkeys(withheld_names(os.environ), "")
        self.env_vars |= ui_environment(self.engine, master=connection.master)
        try:
            self._submit(context, deployment, connection)
        except AirflowException as error:
            # The provider's exception repeats the command line and the output, which are in the log already.
            raise job_failure(str(error), subject=self.subject) from None

    def _submit(self, context: Context, deployment: Deployment, connection: SparkConnection) -> None:
        """Have this host run the job, and wait for its end.

        Parameters
        ----------
        deployment, connection: for a subclass that knows a faster way.

        Raises
        ------
        AirflowException: when it fails; its text has the last lines of the job's output.
        """
        del deployment, connection
        super().execute(context)

    def on_kill(self) -> None:
        """End the job when its task is ended: the process on this host, or the application on its cluster."""
        if self._on_cluster is None:
            super().on_kill()
        else:
            jobs, tag = self._on_cluster
            jobs.kill(tag)

    def _run_on_cluster(self, context: Context, deployment: Deployment) -> None:
        """Have the cluster of the connection run the job, and wait for its end."""
        from sluice.launching.cluster.cluster_job import JobRequest

        task = context["ti"]
        tag = JobTag(
            job=Path(self.application).stem,
            subject=self.subject,
            run_id=str(uuid5(NAMESPACE_URL, f"sluice:{task.dag_id}/{task.run_id}/{task.task_id}/{task.map_index}")),
        )
        request = JobRequest(
            tag=tag,
            application=self.application,
            arguments=tuple(self.application_args or ()),
            conf=self.conf or {},
            environment={"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable},
            log_file=deployment.settings.logs / tag.job / f"{tag.run_id}.log",
        )
        try:
            jobs = deployment.cluster_jobs(self.engine.connection or DEFAULT_CONNECTION)
            self._on_cluster = (jobs, tag)
            ended = jobs.run(request)
        except SettingsError as error:
            raise AirflowFailException(str(error)) from error
        except (LaunchError, ClusterError) as error:
            raise JobFailedError(str(error), subject=self.subject) from error
        self.log.info("%s: %s. Its log: yarn logs -applicationId %s", tag.job, ended.state, ended.application_id)
        if ended.state is not ApplicationState.SUCCEEDED:
            raise job_failure(_said_by(ended, deployment, tag), subject=self.subject)


def _said_by(ended: ApplicationObservation, deployment: Deployment, tag: JobTag) -> str:
    """What a failed application left in the ledger; what its cluster says, when it left nothing."""
    from sluice.ledger.job_failures import take_job_failure

    of_cluster = (
        f"{ended.application_id} ended as {ended.state}: {ended.explanation or 'its cluster gives no reason'}. "
        f"See `yarn logs -applicationId {ended.application_id}`."
    )
    with deployment.open_ledger() as ledger:
        return take_job_failure(ledger, run_id=tag.run_id) or of_cluster


class JobFailedError(AirflowException):
    """A job failed; Airflow tries again as often as its task allows. It is `context["exception"]` of a callback.

    Parameters
    ----------
    sentence: the whole message for a person.
    subject: the stream or the table of the job.
    failure_reason: the reason of the failure; empty when the job reported none.

    Attributes
    ----------
    alerts: the same as the one alert that every channel knows.
    """

    def __init__(self, sentence: str, *, subject: str, failure_reason: str = "") -> None:
        super().__init__(sentence)
        self.failure_reason = failure_reason
        self.alerts = (Alert(stream=subject, sentence=sentence, reason=failure_reason),)


class JobFailedForGoodError(JobFailedError, AirflowFailException):
    """A job failed, and another try would only repeat it."""


def job_failure(submission: str, *, subject: str) -> JobFailedError:
    """Return the exception for a failed submission, with the job's own last lines instead of the command line.

    Parameters
    ----------
    submission: the provider's message, which ends with the last lines of the output.
    subject: the stream or the table of the job.
    """
    lines = redacted(submission).splitlines()
    name, colon, message = (last_after(FAILURE_MARK, lines) or "").partition(": ")
    if not colon:
        return JobFailedError("\n".join(lines), subject=subject)
    is_lasting = issubclass(ERROR_CLASSES.get(name, SluiceError), _LASTING)
    reason = last_after(REASON_MARK, lines)
    explains_itself = reason == FailureReason.UNEXPLAINED and name in ERROR_CLASSES
    if reason in set(FailureReason) and not explains_itself:
        failure = Failure.of(FailureReason(reason))
        message = f"{message} That is {describe_failure(failure)}. {next_step(failure.reason, stream=subject)}"
        is_lasting = is_lasting or not helps_to_restart(failure.failure_class)
    kind = JobFailedForGoodError if is_lasting else JobFailedError
    return kind(message, subject=subject, failure_reason=reason or "")
