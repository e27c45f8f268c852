"""A deployment may require that another person approves."""

from __future__ import annotations

import pytest

from sluice.errors import UsageError
from sluice_airflow.tasks.control_task import require_another_person


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
