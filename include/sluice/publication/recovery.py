"""Makes visible what a stream has staged and not published: after a crash, at a start, when a publication is due."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from pyiceberg.catalog import Catalog

from sluice.publication.appending import Publication
from sluice.publication.chain import AbandonedBatch, PublicationPlan, plan_publication
from sluice.publication.staged_batches import StagedBatch, load_staging_table, staged_batches
from sluice.publication.staged_output import StagedOutput
from sluice.publication.target_state import load_standing

_log = logging.getLogger(__name__)

Publish = Callable[[Sequence[StagedBatch]], Publication]
"""Makes batches visible in the way of their output, for example `partial(publish_append, catalog, output, token=7)`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """What came of a recovery.

    publication: of the staged chain; none when nothing was staged ahead of the mark.
    waiting: batches that a person holds, and those behind them.
    abandoned: batches that are never published; the caller records them, then clears them.
    """

    publication: Publication | None
    waiting: tuple[StagedBatch, ...]
    abandoned: tuple[AbandonedBatch, ...]


def plan_output(catalog: Catalog, output: StagedOutput, *, held: Collection[int] = ()) -> PublicationPlan:
    """See what is staged for an output, and what is to be done with it.

    Parameters
    ----------
    held: the numbers of batches that wait for a person.

    Raises
    ------
    DeliveryError: when staging table or mark are not as publication left them.
    LakehouseError: when a table does not exist or cannot be loaded.
    """
    position = load_standing(catalog, output).position(output)
    staging = load_staging_table(catalog, output)
    staged = staged_batches(staging, stream=output.stream, output=output.output)
    return plan_publication(position, staged, held=held)


def recover(catalog: Catalog, output: StagedOutput, *, publish: Publish, held: Collection[int] = ()) -> Recovery:
    """Publish the chain that is staged, up to the first held batch; say what else was there.

    Of mode merge, `settle_merge` comes first: a MERGE may have landed without its mark.

    Raises
    ------
    DeliveryError, LakehouseError: as the publication does; recovering again is safe.
    """
    plan = plan_output(catalog, output, held=held)
    for lost in plan.abandoned:
        _log.warning("%s: staged batch %s is abandoned: %s", output, lost.batch.summary.key, lost.reason)
    publication = publish(plan.ready) if plan.ready else None
    return Recovery(publication=publication, waiting=plan.waiting, abandoned=plan.abandoned)
