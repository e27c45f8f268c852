"""A deployment may require that another person approves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.fixtures.deployment import deployment_environment
from tests.fixtures.streams import continuous_stream

from sluice.errors import UsageError
from sluice_airflow.composition import Deployment, load_deployment
from sluice_airflow.tasks.control_task import needs_approval, reject_as_planned, require_another_person


@pytest.fixture
def deployed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], Deployment]:
    """Makes a deployment that asks for the approval of another person, or does not."""

    def make(by_another: bool) -> Deployment:
        for name, value in deployment_environment(tmp_path, pipelines=tmp_path).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("SLUICE_APPROVAL_BY_ANOTHER", str(by_another))
        return load_deployment()

    return make


@pytest.mark.parametrize(
    ("verb", "by_another", "waits"),
    [
        ("reset", False, True),
        ("reset", True, True),
        ("reject-batch", False, False),
        ("reject-batch", True, True),
        ("restart", True, False),
    ],
)
def test_a_reset_always_waits_and_a_rejection_where_another_must_approve(
    deployed: Callable[[bool], Deployment], verb: str, by_another: bool, waits: bool
) -> None:
    deployed(by_another)
    assert needs_approval({"verb": verb, "dry_run": False}) is waits
    assert needs_approval({"verb": verb, "dry_run": True}) is False


def test_a_rejection_that_another_must_approve_is_refused_without(deployed: Callable[[bool], Deployment]) -> None:
    deployment = deployed(True)
    with deployment.open_ledger() as ledger, pytest.raises(UsageError, match="needs the approval of another person"):
        reject_as_planned(deployment, ledger, continuous_stream(), plan_task="plan", asked_by="ann")


def test_another_person_may_approve() -> None:
    require_another_person(requested_by="ann", approved_by="bob")


@pytest.mark.parametrize(
    ("requested_by", "approved_by"), [("ann", "ann"), (None, "bob"), ("ann", "somebody"), (None, "somebody")]
)
def test_the_same_person_and_one_whom_airflow_does_not_name_are_refused(
    requested_by: str | None, approved_by: str
) -> None:
    with pytest.raises(UsageError, match="needs the approval of another person"):
        require_another_person(requested_by=requested_by, approved_by=approved_by)
