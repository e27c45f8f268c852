"""What a stream has staged and not published when it is taken past a gap in its input.

Spark commits a batch as soon as it is staged. One that waits for others (`publish_every`) or for a person, or that a
driver left when it died, is done for the checkpoint and not visible. A new generation begins behind it.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyiceberg.catalog import Catalog

from sluice.declarations.loaded_declarations import LoadedStream
from sluice.errors import LakehouseError, MarkError, UsageError
from sluice.publication.mark_moves import plan_output
from sluice.publication.staged_batch import StagedBatch, staged_outputs
from sluice.publication.undeclared_outputs import load_output_tables


def find_unpublished(catalog: Catalog, wanted: LoadedStream, done: tuple[int, int]) -> tuple[StagedBatch, ...]:
    """What is staged of the batches that are done for the checkpoint, and not visible, by output.

    Parameters
    ----------
    done: the generation, and the newest of these batches.

    Raises
    ------
    DeliveryError, LakehouseError: when a staging table cannot be read.
    """
    found: list[StagedBatch] = []
    for output in staged_outputs(wanted.declaration):
        tables = load_output_tables(catalog, output)
        if tables.staging is None:
            continue
        try:
            ready = plan_output(catalog, output).ready
        except (MarkError, LakehouseError):  # its table was created again, or is gone
            ready = tuple(one for one in tables.staged if not one.is_overtaken)
        found += [one for one in ready if done[0] == one.position[0] and one.position <= done]
    return tuple(found)


def unpublished_phrase(waiting: Sequence[StagedBatch]) -> str:
    """How many batches and rows wait."""
    batches, rows = {one.position for one in waiting}, sum(one.summary.rows or 0 for one in waiting)
    what = "1 batch" if len(batches) == 1 else f"{len(batches)} batches"
    return f"{what} with {rows:,} rows, staged and not visible yet"


def unpublished_refusal(wanted: LoadedStream, waiting: Sequence[StagedBatch]) -> UsageError:
    """The refusal to leave them behind, with the ways out."""
    start = f"`sluice stream start {wanted.name}` publishes them, before it ends for what is missing; then continue it"
    rules = (one.summary.rules for one in waiting)
    if any(one is not None and one.holds for one in rules):
        start = f"Decide about the batch that is held, `sluice batch list {wanted.name}`. Then {start}"
    return UsageError(
        f"Stream {wanted.name} has {unpublished_phrase(waiting)}. A new generation begins behind them, and they would "
        "never be.",
        next_step=f"{start}. Or `sluice stream continue {wanted.name} --leave-out` discards them.",
    )
