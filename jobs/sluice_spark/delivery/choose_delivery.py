"""Chooses the way in which a stream delivers its batches, once for a run."""

from __future__ import annotations

from sluice_spark.delivery.batch_delivery import deliver_batches
from sluice_spark.delivery.delivery_context import DeliveryContext
from sluice_spark.delivery.delivery_port import Delivery
from sluice_spark.delivery.direct_delivery import open_direct_delivery
from sluice_spark.delivery.record_delivery import RecordDelivery, record_sink
from sluice_spark.delivery.sink_delivery import SinkDelivery
from sluice_spark.delivery.staged_delivery import open_staged_delivery
from sluice_spark.query.stream_plan import StreamPlan


def choose_delivery(plan: StreamPlan, context: DeliveryContext) -> Delivery:
    """The delivery that a planned stream asks for.

    Raises
    ------
    DeliveryError, LakehouseError: when a table that Iceberg's own sink writes does not let the run begin.
    LeaseLostError: when the run's lease is over before it begins to write directly.
    """
    if plan.direct_target is not None:
        return open_direct_delivery(plan, plan.direct_target, context)
    records_to = record_sink(plan)
    if records_to is not None:
        return RecordDelivery(plan=plan, sink=records_to, checkpoint=context.checkpoint)
    tables = open_staged_delivery(plan, context) if plan.targets else None
    if tables is not None and not plan.sinks:
        return deliver_batches(plan, context, tables)
    sinks = SinkDelivery(run=context.run, tables=tables, sinks=plan.sinks, lease=context.controls.lease)
    return deliver_batches(plan, context, sinks)
