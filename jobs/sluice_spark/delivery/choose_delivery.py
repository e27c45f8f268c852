"""Chooses the way in which a stream delivers its batches, once for a run."""

from __future__ import annotations

from sluice.ledger.batches import recent_batches
from sluice.publication.undeclared_outputs import find_undeclared_outputs, refuse_undeclared_outputs
from sluice.tables.catalog import open_catalog
from sluice_spark.delivery.batch_delivery import deliver_batches
from sluice_spark.delivery.delivery_context import DeliveryContext
from sluice_spark.delivery.delivery_port import Delivery
from sluice_spark.delivery.direct_delivery import open_direct_delivery
from sluice_spark.delivery.kept_sink_rows import KeptSinkRows, may_change
from sluice_spark.delivery.record_delivery import RecordDelivery, record_sink
from sluice_spark.delivery.sink_delivery import SinkDelivery
from sluice_spark.delivery.staged_delivery import open_staged_delivery
from sluice_spark.query.stream_plan import StreamPlan

_RECENT = 20
"""So many batches of the ledger show whether a stream wrote into tables."""


def choose_delivery(plan: StreamPlan, context: DeliveryContext) -> Delivery:
    """The delivery that a planned stream asks for.

    Raises
    ------
    DeliveryError, LakehouseError: when a table that Iceberg's own sink writes does not let the run begin.
    LeaseLostError: when the run's lease is over before it begins to write directly.
    UndeclaredOutputError: when the stream had tables, and batches still wait for one.
    """
    if plan.direct_target is not None:
        return open_direct_delivery(plan, plan.direct_target, context)
    if not plan.targets:
        _refuse_former_tables(context)
    records_to = record_sink(plan)
    if records_to is not None:
        return RecordDelivery(plan=plan, sink=records_to, checkpoint=context.checkpoint)
    tables = open_staged_delivery(plan, context) if plan.targets else None
    if tables is not None and not plan.sinks:
        return deliver_batches(plan, context, tables)
    kept = _kept_sink_rows(plan, context) if tables is not None else None
    sinks = SinkDelivery(run=context.run, tables=tables, sinks=plan.sinks, lease=context.controls.lease, kept=kept)
    return deliver_batches(plan, context, sinks)


def _kept_sink_rows(plan: StreamPlan, context: DeliveryContext) -> KeptSinkRows | None:
    """What keeps the rows of sinks beside tables; none when a batch that runs again is the same without it."""
    if not any(map(may_change, plan.declaration.inputs.values())):
        return None
    sinks = frozenset(sink.output for sink in plan.sinks)
    return KeptSinkRows(spark=plan.rows.sparkSession, checkpoint=context.checkpoint, sinks=sinks)


def _refuse_former_tables(context: DeliveryContext) -> None:
    """Refuse a stream without tables for which batches are still staged. The catalog is asked only when the stream had
    tables: a deployment without any may have no catalog."""
    stream = context.run.stream
    if any(batch.snapshot_ids for batch in recent_batches(context.ledger, stream, limit=_RECENT)):
        former = find_undeclared_outputs(open_catalog(context.settings), stream, ())
        refuse_undeclared_outputs(former, generation=context.run.generation)
