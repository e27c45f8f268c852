"""The id by which a ledger knows this Airflow: a Variable, so that it lives and ends with the metadata database."""

from __future__ import annotations

from uuid import uuid4

from airflow.sdk import Variable

from sluice.ledger.airflow_owner import claim_for_airflow, require_ownership
from sluice.ledger.connection import Ledger
from sluice.processes.deadline import wait_until

AIRFLOW_ID = "sluice_airflow_id"
"""The Variable. It must not be set from outside (`AIRFLOW_VAR_…`, a secrets backend): a new metadata database, in which
every DAG is paused, would pass for the old one, in which a person has paused them all."""

_NAMED_WITHIN_SECONDS = 10.0
"""How long another task of this Airflow may take between claiming the ledger and storing the id."""


def owning_airflow(ledger: Ledger) -> str:
    """The id of this Airflow, which owns the ledger. The first Airflow that asks gets an unowned ledger.

    Raises
    ------
    SettingsError: when the ledger belongs to another Airflow.
    """
    known = _stored_id() or _first_id(ledger)
    require_ownership(ledger, known)
    return known


def _first_id(ledger: Ledger) -> str:
    """An id for an Airflow that has none. Tasks that ask at the same time agree: one of them gets the ledger."""
    chosen = str(uuid4())
    if claim_for_airflow(ledger, chosen).airflow != chosen:
        known = wait_until(
            _stored_id, lambda stored: stored is not None, seconds=_NAMED_WITHIN_SECONDS, poll_seconds=0.5
        )
        if known is not None:
            return known
    Variable.set(AIRFLOW_ID, chosen, description="The id by which Sluice's ledger knows this Airflow. Keep it.")
    return chosen


def _stored_id() -> str | None:
    stored = Variable.get(AIRFLOW_ID, default=None)
    return None if stored is None else str(stored)
