"""A deployment may require that another person approves."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.fixtures.deployment import deployment_environment

from sluice.errors import UsageError
from sluice.ledger.control_values import ControlRequest
from sluice_airflow.composition import Deployment, load_deployment
from sluice_airflow.tasks.control_task import needs_approval, require_another_person


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
        ("repair", False, True),
        ("repair", True, True),
        ("rewind", False, True),
        ("adopt-undo", False, True),
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


def request_of(approver_id: str | None) -> ControlRequest:
    """A request of ann's that somebody answered."""
    return ControlRequest(
        run_id="r",
        stream="flights",
        verb="reset",
        person_id="ann",
        person="Ann",
        requested_at=datetime(2026, 11, 22, tzinfo=UTC),
        approver_id=approver_id,
        approver=approver_id,
    )


def test_another_person_may_approve() -> None:
    require_another_person(request_of("bob"))


@pytest.mark.parametrize("approver_id", ["ann", None])
def test_the_same_person_and_nobody_are_refused(approver_id: str | None) -> None:
    with pytest.raises(UsageError, match="needs the approval of another person"):
        require_another_person(request_of(approver_id))
