"""Raises the fencing token of a live run above one that its tables have seen."""

from __future__ import annotations

from sqlalchemy import select, update

from sluice.errors import LeaseLostError
from sluice.ledger import leases
from sluice.ledger.connection import Ledger
from sluice.ledger.run_table import Run
from sluice.ledger.run_values import RunObservation
from sluice.ledger.runs import find_run


def raise_token(ledger: Ledger, run_id: str, *, above: int) -> RunObservation:
    """Raise the fencing token of a run before the run publishes anything.

    The tables have seen a higher token when an older copy of the ledger replaced it, or another ledger.

    Parameters
    ----------
    above: the highest token that the tables have seen.

    Returns
    -------
    The run with its new token.

    Raises
    ------
    LeaseLostError: when the run does not hold its lease.
    LedgerError: when the run is unknown or the ledger cannot be reached.
    """
    with ledger.transaction() as connection:
        # Runs are locked before leases, as in `runs.take_over`: the other order would be a deadlock with it.
        connection.execute(select(Run.run_id).where(Run.run_id == run_id).with_for_update())
        token = leases.raise_above(connection, run_id=run_id, token=above)
        if token is not None:
            connection.execute(update(Run).where(Run.run_id == run_id).values(token=token))
    run = find_run(ledger, run_id)
    if token is None:
        raise LeaseLostError(f"Run {run_id} of stream {run.stream} does not hold its lease, so its token stays.")
    return run
