"""Whether the place where a task runs outlives the task: a driver on the worker's own host lives only as long as that.

A driver is a detached process of the machine that launched it. Executors that give every task a container or function
of its own end everything in it as soon as the task defers: the driver would be killed a few seconds after each start.
"""

from __future__ import annotations

from collections.abc import Mapping

from sluice.errors import SettingsError

_POD = "AIRFLOW_IS_K8S_EXECUTOR_POD"
"""Airflow sets it in every pod that runs one task."""

_ONE_TASK_EXECUTORS = frozenset({"KubernetesExecutor", "AwsEcsExecutor", "AwsBatchExecutor", "AwsLambdaExecutor"})
"""The executors of Airflow's providers that run each task in a container or function of its own, by their names."""


def require_lasting_worker(environ: Mapping[str, str], *, executor: str) -> None:
    """Refuse to start a driver where it would end together with the task that starts it.

    Parameters
    ----------
    environ: of the task's process.
    executor: Airflow's setting `[core] executor`; the first of several runs the tasks of Sluice.

    Raises
    ------
    SettingsError: when each task has a container or function of its own.
    """
    first = executor.split(";")[0].split(",")[0].split(":")[-1].strip()
    if _POD not in environ and first.rsplit(".", 1)[-1] not in _ONE_TASK_EXECUTORS:
        return
    name = "KubernetesExecutor" if _POD in environ else first.rsplit(".", 1)[-1]
    raise SettingsError(
        f"Airflow's {name} gives each task a place of its own, which ends when the task waits; a driver that was "
        "started there would end with it.",
        next_step="Run drivers on YARN by a Spark connection (docs/guides/cluster.md), or streams on workers that "
        "stay: LocalExecutor or CeleryExecutor.",
    )
