"""The id by which a ledger knows this Airflow: a Variable, so that it lives and ends with the metadata database."""

from __future__ import annotations

import asyncio
from uuid import uuid4

from airflow.sdk import Variable

from sluice.ledger.airflow_owner import claim_for_airflow, require_ownership, select_owner
from sluice.ledger.connection import Ledger
from sluice.ledger.trigger_queries import query_row
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


async def is_owner(ledger_url: str) -> bool:
    """Whether this Airflow may change the ledger, for a trigger: one row, by the connections that all triggers share.

    An unowned ledger is claimed by the first task, and belongs to no other one until then.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    owner = await query_row(ledger_url, select_owner())
    if owner is None:
        return True
    if ledger_url not in _known:
        stored = await asyncio.to_thread(_stored_id)
        if stored is None:
            return False
        _known[ledger_url] = stored
    return bool(owner.airflow == _known[ledger_url])


_known: dict[str, str] = {}
"""The id of this Airflow, by ledger, in a triggerer: it lives and ends with the metadata database, which asks once."""


def _stored_id() -> str | None:
    stored = Variable.get(AIRFLOW_ID, default=None)
    return None if stored is None else str(stored)
