"""What a person asks the DAG `stream_control` to do, as a value: Airflow's processes import it before they fork."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """Somebody whom Airflow has authenticated. person_id: theirs in the auth manager. name: for messages."""

    person_id: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlRequest:
    """One request.

    run_id: the run of `stream_control` that it is good for.
    batch, plan_digest: of a rejection that a page has shown: the batch, and the digest of its plan.
    person_id, person: who asked. used_at: when it was carried out, or begun to be.
    answered_at, approver_id, approver: who answered, where an answer is needed.
    approved_digest: of the plan that was shown to them; unset when they rejected it.
    """

    run_id: str
    stream: str
    verb: str
    person_id: str
    person: str
    requested_at: datetime
    batch: int | None = None
    plan_digest: str | None = None
    used_at: datetime | None = None
    answered_at: datetime | None = None
    approver_id: str | None = None
    approver: str | None = None
    approved_digest: str | None = None
