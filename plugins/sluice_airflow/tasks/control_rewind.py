"""Takes a stream back to a batch for the DAG `stream_control`: as the command does, without leaving readers behind."""

from __future__ import annotations

from sluice.declarations.load_declarations import load_declarations
from sluice.declarations.loaded_declarations import LoadedStream
from sluice.errors import UsageError
from sluice.ledger.connection import Ledger
from sluice.positions.rewind_plan import RewindPlan, plan_rewind
from sluice.positions.rewind_stream import rewind_stream
from sluice.tables.catalog import open_catalog
from sluice_airflow.composition import Deployment


def plan_back(deployment: Deployment, ledger: Ledger, stream: LoadedStream, batch: int | None) -> RewindPlan:
    """The plan that takes a stream back to a batch of its open generation.

    Raises
    ------
    UsageError: without a batch. UnpublishableError: when the plan is refused.
    DeliveryError, LakehouseError, LedgerError: when something cannot be read.
    """
    settings = deployment.settings
    plan = plan_rewind(
        ledger,
        open_catalog(settings),
        load_declarations(settings.pipelines),
        settings,
        stream=stream.name,
        batch=_required(stream, batch),
    )
    plan.require_unrefused()
    return plan


def take_back(
    deployment: Deployment,
    ledger: Ledger,
    stream: LoadedStream,
    batch: int | None,
    *,
    planned: str | None,
    asked_by: str,
) -> RewindPlan:
    """Carry out what was approved.

    Raises
    ------
    UsageError: without a batch, or when it is another plan than was approved. SluiceError: as `rewind_stream`.
    """
    settings = deployment.settings
    return rewind_stream(
        ledger,
        open_catalog(settings),
        load_declarations(settings.pipelines),
        settings,
        stream=stream.name,
        batch=_required(stream, batch),
        planned=planned,
        asked_by=asked_by,
    )


def _required(stream: LoadedStream, batch: int | None) -> int:
    if batch is None:
        raise UsageError(
            f"To which batch {stream.name} goes back is not chosen.",
            next_step="Fill in the field batch: its page lists the batches.",
        )
    return batch
