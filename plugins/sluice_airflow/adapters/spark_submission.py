"""Submits drivers through Airflow's Spark provider, which knows its connections best: queue, principal, keytab.

Of what the hook offers neither `conf` nor `env_vars` is used: it writes both into the argv of `spark-submit`.
Source: https://airflow.apache.org/docs/apache-airflow-providers-apache-spark/6.3.4/connections/spark-submit.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.errors import LaunchError

if TYPE_CHECKING:
    from sluice.launching.cluster.submission import Submission


def submit_by_provider(submission: Submission) -> None:
    """Submit, and return when the cluster has taken the application in. What `spark-submit` says is in the task's log.

    Raises
    ------
    LaunchError: when that did not come about.
    """
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
    from airflow.sdk.exceptions import AirflowException

    try:
        SparkSubmitHook(
            conn_id=submission.connection,
            name=submission.name,
            application_args=list(submission.arguments),
            properties_file=str(submission.properties_file),
        ).submit(submission.application)
    except (AirflowException, OSError, ValueError) as error:
        # The provider's exception repeats the command line and the output, which the log has already.
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise LaunchError(
            f"{submission.name} could not be submitted through the connection {submission.connection}: {lines[-1]}",
            next_step="What spark-submit said is in the task's log.",
        ) from None
