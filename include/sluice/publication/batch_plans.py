"""The plan of what a person decides about the batch that waits, whether a rule holds it or a stopped stream left it."""

from __future__ import annotations

from collections.abc import Callable

from pyiceberg.catalog import Catalog

from sluice.declarations.loaded_declarations import LoadedStream
from sluice.ledger.connection import Ledger
from sluice.ledger.held_batches import HeldBatch
from sluice.operations import OperationPlan, OperationVerb
from sluice.publication.batch_rejection import Rejection, plan_rejection
from sluice.publication.held_decisions import holds_batch, plan_decision

RELEASES = (OperationVerb.RELEASE_BATCH, OperationVerb.SEPARATE_BATCH)
"""What makes rows of a held batch visible."""

BATCH_VERBS = (*RELEASES, OperationVerb.REJECT_BATCH)
"""What decides about the rows of one batch."""


def plan_about_batch(
    ledger: Ledger,
    stream: LoadedStream,
    verb: OperationVerb,
    *,
    open_tables: Callable[[], Catalog],
    number: int | None = None,
) -> OperationPlan[HeldBatch] | OperationPlan[Rejection]:
    """Plan the release of a held batch, or the rejection of one that is held or is the next one of a stopped stream.

    Parameters
    ----------
    verb: one of `BATCH_VERBS`. open_tables: opens the catalog, which what is held does not need.
    number: of the batch; unset: the one that waits.

    Raises
    ------
    SluiceError: as `plan_decision` and `plan_rejection` do.
    """
    if verb in RELEASES or holds_batch(ledger, stream.name, number):
        return plan_decision(ledger, stream, verb, number=number)
    return plan_rejection(open_tables(), ledger, stream.declaration, number=number)
