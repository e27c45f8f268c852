"""What a page asks Airflow for when a person rejects a batch: a run of `stream_control`, with the plan they saw."""

from __future__ import annotations

from sluice.declarations.loaded_declarations import LoadedStream
from sluice.ledger.connection import Ledger
from sluice.ledger.events import EventAction, record_event
from sluice.operations import OperationPlan, OperationVerb
from sluice.pages.job_plans import AirflowRequest
from sluice.publication.batch_commands import staged_outputs
from sluice.publication.batch_rejection import Rejection, plan_rejection
from sluice.settings import Settings
from sluice.supervision.supervision_events import command_event
from sluice.tables.catalog import open_catalog

CONTROL_DAG = "stream_control"
"""The DAG that does the work; `sluice_airflow.dag_builders` makes it."""


def can_stage(stream: LoadedStream) -> bool:
    """Whether batches of a stream wait in staging tables, so that one can be rejected."""
    return next(staged_outputs(stream.declaration), None) is not None


def plan_page_rejection(ledger: Ledger, settings: Settings, stream: LoadedStream) -> OperationPlan[Rejection]:
    """What the rejection of the next waiting batch would do now. Nothing is changed.

    Raises
    ------
    SluiceError: as `plan_rejection` does.
    """
    plan = plan_rejection(open_catalog(settings), ledger, stream.declaration)
    sentence = f"A run of the DAG {CONTROL_DAG} does this under your name, and only with the batch that you see here."
    if settings.approval_by_another:
        sentence += " It waits there for the approval of another person, for a day at most."
    return plan.followed_by(sentence)


def rejection_request(stream: str, *, batch: int, digest: str) -> AirflowRequest:
    """A run that rejects a batch, if it is still the one that was shown."""
    conf = {
        "stream": stream,
        "verb": str(OperationVerb.REJECT_BATCH),
        "dry_run": False,
        "batch": batch,
        "plan_digest": digest,
    }
    return AirflowRequest(path=f"dags/{CONTROL_DAG}/dagRuns", body={"logical_date": None, "conf": conf})


def record_rejection_request(ledger: Ledger, stream: str, *, batch: int, by: str) -> None:
    """Save that a person is about to ask for a rejection.

    Raises
    ------
    LedgerError: when the ledger cannot be reached; then nothing is asked.
    """
    explanation = f"Batch {batch} is to be rejected; the DAG {CONTROL_DAG} is asked."
    record_event(ledger, command_event(EventAction.REJECT_BATCH, stream, by=by, explanation=explanation))
