"""Executors whose workers end with their task start no driver."""

from __future__ import annotations

import pytest

from sluice.errors import SettingsError
from sluice_airflow.adapters.spark_connection import require_lasting_worker


@pytest.mark.parametrize(
    "executor",
    [
        "LocalExecutor",
        "CeleryExecutor",
        "sluice_airflow.executors.local_executor.RevokingLocalExecutor",
        "LocalExecutor,KubernetesExecutor",
    ],
)
def test_workers_that_stay_may_start_drivers(executor: str) -> None:
    require_lasting_worker({}, executor=executor)


@pytest.mark.parametrize(
    "executor",
    [
        "KubernetesExecutor",
        "airflow.providers.cncf.kubernetes.executors.kubernetes_executor.KubernetesExecutor",
        "pods:KubernetesExecutor,LocalExecutor",
        "AwsEcsExecutor;team=LocalExecutor",
    ],
)
def test_a_worker_that_ends_with_its_task_is_refused(executor: str) -> None:
    with pytest.raises(SettingsError, match="would end with it"):
        require_lasting_worker({}, executor=executor)


def test_a_pod_is_known_by_what_airflow_sets_in_it_whatever_the_configuration_names() -> None:
    with pytest.raises(SettingsError, match="Airflow's KubernetesExecutor gives each task a place of its own"):
        require_lasting_worker({"AIRFLOW_IS_K8S_EXECUTOR_POD": "True"}, executor="LocalExecutor,KubernetesExecutor")
