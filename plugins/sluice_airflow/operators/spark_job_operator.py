"""A bounded job of the platform as a task: submitted through Airflow's Spark connection, failing with a sentence."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from sluice import errors
from sluice.declarations.engine_declaration import EngineDeclaration
from sluice.launching.job_command import JobCommand
from sluice.launching.spark_submit import DEFAULT_CONNECTION, SparkConnection

if TYPE_CHECKING:
    from airflow.sdk import Context

SPARK_POOL = "spark"
"""The Airflow pool that bounds how many Spark applications run beside the streams."""

LAUNCHED_BY = "airflow: {{ dag.dag_id }}, {{ run_id }}"
"""What a job tells the ledger about who started it; Airflow fills in the DAG and its run."""

_FAILURE = re.compile(r"^sluice: failed: (?P<error>\w+): (?P<message>.*)$", re.MULTILINE)
"""The last line of a failed job, looked for in the end of its output, which the provider puts into its exception."""

_REASON = re.compile(r"^sluice: reason: (?P<reason>\w+)$", re.MULTILINE)
"""The line before it, with the word of the reason."""

_LASTING = (
    errors.UsageError,
    errors.SettingsError,
    errors.DeclarationError,
    errors.SchemaError,
    errors.UnhealthyError,
)
"""What another try would only repeat: the input must change first."""


class SparkJobOperator(SparkSubmitOperator):
    """Run a job through `spark-submit` and wait for its end.

    The settings of the application are put together when the task runs, not when the DAG file is parsed: they name
    folders of the machine. Secrets are in neither; the job finds them in the environment that it inherits.

    Parameters
    ----------
    command: the job and its arguments; templates in the arguments are rendered.
    engine: what the driver may use.
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
            # The provider's own way to find a job again works on some cluster managers only; here the ledger refuses
            # a second run of a stream, and every job can be run again.
            durable=False,
            **kwargs,
        )
        self.engine = engine or EngineDeclaration()
        self.subject = subject

    def execute(self, context: Context) -> None:
        """Submit the job and wait for it.

        Raises
        ------
        AirflowException: with the job's own reason; Airflow tries again as often as the task allows.
        AirflowFailException: when another try could only repeat the failure.
        """
        from sluice.launching.launch_settings import launch_conf
        from sluice_airflow.composition import load_deployment

        try:
            deployment = load_deployment()
            connection = deployment.spark_connection(self.engine.connection or DEFAULT_CONNECTION)
            require_environment(connection)
        except errors.SettingsError as error:
            raise AirflowFailException(str(error)) from error
        settings = deployment.settings
        self.application = str(settings.home / self.application)
        self.conf = launch_conf(
            home=settings.home, jars=settings.jars, engine=self.engine, is_bounded=True, master=connection.master
        )
        try:
            super().execute(context)
        except AirflowException as error:
            # The provider's exception repeats the command line and the output, which the log has already.
            raise job_failure(str(error), subject=self.subject) from None


def require_environment(connection: SparkConnection) -> None:
    """A job finds its settings in the environment that it inherits, which does not reach another machine.

    Raises
    ------
    SettingsError: when the connection runs drivers elsewhere.
    """
    if connection.is_cluster:
        raise errors.SettingsError(
            f"Jobs do not run on {connection.master} in cluster mode yet; only drivers of continuous streams do.",
            next_step="Give that connection the deploy-mode client.",
        )


def job_failure(submission: str, *, subject: str) -> AirflowException:
    """What to raise for a failed submission: the job's own last words instead of the command line.

    Parameters
    ----------
    submission: the provider's message, which ends with the last lines of the output.
    subject: the stream or the table that the job is about.
    """
    words = list(_FAILURE.finditer(submission))
    if not words:
        return AirflowException(submission)
    from sluice.failure_reasons import Failure, FailureReason, describe_failure, next_step
    from sluice.supervision.restart_policy import helps_to_restart

    message = words[-1]["message"]
    error = getattr(errors, words[-1]["error"], errors.SluiceError)
    is_lasting = issubclass(error, _LASTING)
    reasons = [found["reason"] for found in _REASON.finditer(submission)]
    if reasons and reasons[-1] in set(FailureReason):
        failure = Failure.of(FailureReason(reasons[-1]))
        message = f"{message} That is {describe_failure(failure)}. {next_step(failure.reason, stream=subject)}"
        is_lasting = is_lasting or not helps_to_restart(failure.failure_class)
    return AirflowFailException(message) if is_lasting else AirflowException(message)
