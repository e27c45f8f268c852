"""Adopts the table of a stream, or takes the stream back to a batch, for the DAG `stream_control`.

That DAG knows streams and no tables. Who may act on one stream decides about its own rows alone: a table that several
streams write, and readers that would stay behind, are left to the command line.
"""

from __future__ import annotations

from collections.abc import Mapping

from sluice.declarations.load_declarations import load_declarations
from sluice.declarations.loaded_declarations import LoadedStream
from sluice.errors import UsageError
from sluice.ledger.connection import Ledger
from sluice.positions.adopt_table import adopt_table, streams_of
from sluice.positions.adoption import AdoptionWay
from sluice.positions.adoption_plan import AdoptionPlan, plan_adoption
from sluice.positions.rewind_plan import RewindPlan, plan_rewind
from sluice.positions.rewind_stream import rewind_stream
from sluice.tables.catalog import open_catalog
from sluice.tables.declared_tables import load_table
from sluice_airflow.composition import Deployment

ADOPTIONS: Mapping[str, AdoptionWay] = {f"adopt-{way}": way for way in AdoptionWay}
"""The verbs of the form, each with its way."""


def plan_for(deployment: Deployment, ledger: Ledger, stream: LoadedStream, way: AdoptionWay) -> AdoptionPlan:
    """The plan for the first table of a stream that is not what it has published; an empty one where each is.

    Raises
    ------
    UsageError: when another stream has a mark on the table.
    UnpublishableError: when the plan is refused. LakehouseError, LedgerError: when something cannot be read.
    """
    settings, declared = deployment.settings, stream.declaration
    catalog, declarations = open_catalog(settings), load_declarations(deployment.settings.pipelines)
    tables = (*declared.tables_written, *((declared.quarantine_table,) if declared.quarantine else ()))
    plans = [
        plan_adoption(ledger, catalog, declarations, settings, table=one, way=way)
        for one in tables
        if load_table(catalog, one) is not None  # a new output gets its table at the next start
    ]
    if not plans:
        raise UsageError(f"{stream.name} has written no table: there is nothing to adopt.")
    plan = next((one for one in plans if not one.seen.is_empty), plans[0])
    others = [one for one in streams_of(plan.seen) if one != stream.name]
    if others:
        raise UsageError(
            f"{plan.subject} holds rows of {', '.join(others)} as well, whose marks would move.",
            next_step=f"Use the command line: `sluice table adopt {plan.subject}`, with `--{way}`.",
        )
    plan.require_unrefused()
    return plan


def adopt_for(
    deployment: Deployment,
    ledger: Ledger,
    stream: LoadedStream,
    way: AdoptionWay,
    *,
    planned: str | None,
    asked_by: str,
) -> AdoptionPlan:
    """Carry out what was planned for a stream.

    Raises
    ------
    UsageError: when it is another plan than was approved. SluiceError: as `adopt_table`.
    """
    plan = plan_for(deployment, ledger, stream, way)
    plan.require_same(planned)
    settings = deployment.settings
    return adopt_table(
        ledger,
        open_catalog(settings),
        load_declarations(settings.pipelines),
        settings,
        table=plan.subject,
        way=way,
        planned=planned,
        asked_by=asked_by,
    )


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
