"""The services and their order."""

from __future__ import annotations

import pytest

from sluice.errors import UsageError
from sluice.stack.services import all_services, all_steps, needs_of, select_steps
from sluice.stack.stack_plan import Preparation, Service


def test_every_step_comes_after_what_it_needs() -> None:
    order = list(all_steps())

    assert [
        (name, need)
        for name, step in all_steps().items()
        for need in step.needs
        if order.index(need) > order.index(name)
    ] == []


def test_the_services() -> None:
    assert set(all_services()) == {
        "postgres",
        "seaweedfs",
        "kafka",
        "airflow-api-server",
        "airflow-scheduler",
        "airflow-dag-processor",
        "airflow-triggerer",
    }


def test_no_two_ports_have_one_name() -> None:
    names = [port.name for service in all_services().values() for port in service.ports]

    assert len(names) == len(set(names))


def test_a_service_brings_what_it_needs_and_what_completes_it() -> None:
    assert set(select_steps(["postgres"])) == {"postgres-files", "postgres", "databases", "ledger-schema"}
    assert set(select_steps(["seaweedfs", "kafka"])) == {"seaweedfs", "buckets", "kafka-files", "kafka"}


def test_one_airflow_process_brings_its_database_but_no_other_airflow_process() -> None:
    services = {name for name, step in select_steps(["airflow-scheduler"]).items() if isinstance(step, Service)}

    assert services == {"airflow-scheduler", "postgres"}


def test_all_is_the_default() -> None:
    assert select_steps() == all_steps()


def test_an_unknown_service_is_named_beside_the_known_ones() -> None:
    with pytest.raises(UsageError, match="There is no service redis; there are postgres, "):
        select_steps(["redis", "postgres"])


def test_needs_at_any_distance() -> None:
    assert needs_of(all_services()["airflow-scheduler"]) == {
        "airflow-schema",
        "databases",
        "postgres",
        "postgres-files",
    }


def test_every_preparation_is_needed_by_a_step() -> None:
    steps = all_steps()
    needed = {need for step in steps.values() for need in step.needs}

    idle = [s.name for s in steps.values() if isinstance(s, Preparation) and not s.completes and s.name not in needed]

    assert idle == []


def test_what_others_use_is_ended_last() -> None:
    assert {name for name, service in all_services().items() if service.is_foundation} == {
        "postgres",
        "seaweedfs",
        "kafka",
    }
