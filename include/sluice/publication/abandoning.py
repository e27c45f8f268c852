"""Plans what is staged for an output, and abandons what generations that a person left behind have staged."""

from __future__ import annotations

import logging

from pyiceberg.catalog import Catalog

from sluice.publication.chain import AbandonedBatch, AbandonReason, PublicationPlan, plan_publication
from sluice.publication.clearing import clear_staging
from sluice.publication.mark_moves import take_over
from sluice.publication.staged_batches import load_staging_table, staged_batches
from sluice.publication.staged_output import StagedOutput
from sluice.publication.target_state import load_standing
from sluice.tables.declared_tables import load_table

_log = logging.getLogger(__name__)


def plan_output(catalog: Catalog, output: StagedOutput) -> PublicationPlan:
    """Load target and staging table of an output and plan what to do with everything that is staged.

    Raises
    ------
    DeliveryError: when staging table or mark are not as publication left them.
    LakehouseError: when a table does not exist or cannot be loaded.
    """
    position = load_standing(catalog, output).position(output)
    staging = load_staging_table(catalog, output)
    staged = staged_batches(staging, stream=output.stream, output=output.output)
    return plan_publication(position, staged)


def leave_generations_before(
    catalog: Catalog, output: StagedOutput, *, generation: int, token: int
) -> tuple[AbandonedBatch, ...]:
    """Let a staging table forget what generations before this one have staged and not published.

    What every run does before it opens its generation; nothing happens when that is open already. The older runs are
    fenced off first, so that nothing is staged or published behind it. Batches that are visible stay in the staging
    table until the ledger has them. Doing it again after a crash in between finishes it.

    Returns
    -------
    What is never published; it was told in the log.

    Raises
    ------
    StaleTokenError: when a newer run has taken over.
    DeliveryError, LakehouseError: when target or staging table are not as publication left them.
    """
    standing = load_standing(catalog, output)
    if standing.mark is None or standing.position(output).generation >= generation:
        return ()
    if load_table(catalog, output.staging) is None:  # somebody dropped it, and what was staged with it
        return ()
    take_over(catalog, output, token=token)
    plan = plan_output(catalog, output)
    left = [AbandonedBatch(batch=batch, reason=AbandonReason.LEFT_BEHIND) for batch in plan.ready]
    abandoned = (*left, *plan.abandoned)
    for lost in abandoned:
        _log.warning("%s: staged batch %s is never published: %s", output, lost.batch.summary.key, lost.reason)
    visible = [batch.summary.key.batch for batch in plan.published]
    clear_staging(catalog, output, token=token, abandoned=abandoned, unrecorded=visible)
    return abandoned
