"""The rejection of a batch as a page and the DAG `stream_control` show it first, and as the DAG carries it out."""

from __future__ import annotations

from dataclasses import dataclass

from sluice.declarations.loaded_declarations import LoadedStream
from sluice.errors import UsageError
from sluice.ledger.connection import Ledger
from sluice.publication.batch_rejection import Rejection, next_waiting, plan_rejection, reject
from sluice.publication.command_runs import refuse_live_run
from sluice.settings import Settings
from sluice.supervision.control_plans import ControlPlan, PlannedStep
from sluice.tables.catalog import open_catalog

REJECT_BATCH = "reject-batch"
"""The verb, as `stream_control` and the page of a stream call it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectionPlan(ControlPlan):
    """The plan of a rejection.

    batch: its number in the current generation. digest: of what is rejected, for `reject_planned`.
    """

    batch: int
    digest: str


def plan_batch_rejection(
    ledger: Ledger, wanted: LoadedStream, settings: Settings, *, batch: int | None = None
) -> RejectionPlan:
    """What the rejection of a waiting batch would do now: the plan of `sluice batch reject`. Nothing is changed.

    Parameters
    ----------
    batch: its number; unset: the one that is to be published next.

    Raises
    ------
    RunAlreadyLiveError: when the stream has a live run, which publishes what is staged.
    UsageError: when no batch waits, or another one than this is next.
    DeliveryError, LakehouseError, LedgerError: when a table or the ledger cannot be read.
    """
    refuse_live_run(ledger, wanted.name)
    catalog = open_catalog(settings)
    number = next_waiting(catalog, wanted.declaration) if batch is None else batch
    rejection = plan_rejection(catalog, ledger, wanted.declaration, number=number)
    return RejectionPlan(
        verb=REJECT_BATCH,
        stream=wanted.name,
        steps=tuple(PlannedStep(sentence=sentence) for sentence in _sentences(rejection)),
        batch=number,
        digest=rejection.digest,
    )


def reject_planned(
    ledger: Ledger, wanted: LoadedStream, settings: Settings, *, batch: int, digest: str, asked_by: str
) -> Rejection:
    """Reject the batch that a plan has shown.

    Parameters
    ----------
    digest: of the plan. When the batch is another one by now, nothing is done.
    asked_by: the person, as the ledger names them.

    Raises
    ------
    UsageError: when the plan is out of date.
    SluiceError: as `plan_batch_rejection` does.
    """
    catalog = open_catalog(settings)
    return reject(catalog, ledger, wanted.declaration, number=batch, requested_by=asked_by, planned=digest)


def require_same_plan(plan: RejectionPlan, digest: str | None) -> None:
    """Check that a plan is the one that a person agreed to elsewhere. digest: of that one; unset: there is none.

    Raises
    ------
    UsageError: when it is another one.
    """
    if digest is not None and digest != plan.digest:
        raise UsageError(
            f"The plan is out of date: batch {plan.batch} of {plan.stream} is another one than was shown.",
            next_step="Look at the plan again; nothing was rejected.",
        )


def _sentences(rejection: Rejection) -> tuple[str, ...]:
    if not rejection.outputs:
        return (rejection.sentence(is_done=False),)
    return (
        rejection.sentence(is_done=False),
        f"The ledger records it as rejected, and {', '.join(rejection.outputs)} continue behind it. Its rows stay in "
        "files that no table refers to, until orphan removal deletes them. This cannot be undone.",
        "No driver can begin meanwhile; the next start of the stream publishes what waits behind it.",
    )
