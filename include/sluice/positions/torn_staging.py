"""What a repair does about staging tables of which nothing can be read: what is recorded of them first, and which of
former outputs they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from sluice.errors import DeliveryError
from sluice.ledger.batches import find_batch, record_batch
from sluice.ledger.connection import Ledger
from sluice.positions.stream_position import StreamPosition, TableWitness
from sluice.publication.chain import plan_publication
from sluice.publication.marks import batch_of, entries_of, history_of_main
from sluice.publication.present_files import missing_list
from sluice.publication.staged_batch import StagedBatch, StagedOutput, recovered_observation
from sluice.publication.start_check import known_rejections
from sluice.publication.undeclared_outputs import (
    OutputTables,
    former_output,
    former_staging_tables,
    load_output_tables,
    staged_target,
)
from sluice.stored_keys import FIRST_BATCH


def record_visible(ledger: Ledger, catalog: Catalog, seen: StreamPosition, *, stands_at: int) -> None:
    """Record the batches that every table shows and the ledger does not have, from what is staged of them: once the
    staging tables are emptied, no start finds these. Their summaries can be read while their files cannot.

    Parameters
    ----------
    stands_at: the newest batch that the checkpoint has committed once it is repaired. What Spark runs again behind it,
        Spark reports itself.

    Raises
    ------
    DeliveryError, LakehouseError, LedgerError: when a staging table cannot be loaded, or the ledger does not answer.
    """
    marks = [one.position.batch for one in seen.tables if one.is_declared and one.position is not None]
    visible = min((*marks, stands_at))
    staged: dict[int, dict[str, StagedBatch]] = {}
    snapshots: dict[int, dict[str, int]] = {}
    targets: list[tuple[Table, StagedOutput]] = []
    for one in seen.tables:
        tables = load_output_tables(catalog, one.output)
        if tables.target is not None:
            targets.append((tables.target, one.output))
        found = plan_publication(one.position, tables.staged).published if one.position is not None else tables.staged
        for batch in found:
            generation, number = batch.position
            if generation == seen.number and number <= visible and not batch.is_overtaken:
                staged.setdefault(number, {})[one.output.output] = batch
                snapshots.setdefault(number, {}).update(_visible_in(tables.target, one.output, batch))
    rejected = known_rejections(ledger, targets, stream=seen.stream, generation=seen.number)
    for number in sorted(staged.keys() - rejected):  # a start writes back what was rejected
        observed = replace(recovered_observation(staged[number]), snapshot_ids=snapshots[number])
        if find_batch(ledger, observed.key) is None:
            record_batch(ledger, observed)


def _visible_in(target: Table | None, output: StagedOutput, batch: StagedBatch) -> Mapping[str, int]:
    """The snapshot in which a batch became visible, as far as main lists it: batches that are published together have
    one, with the key of the last of them."""
    for snapshot in history_of_main(target) if target is not None else ():
        found = batch_of(snapshot, output)
        if found is None or found.key.generation != batch.position[0]:
            continue
        first = int(entries_of(snapshot).get(FIRST_BATCH, found.key.batch))
        if first <= batch.position[1] <= found.key.batch:
            return {output.output: snapshot.snapshot_id}
    return {}


def torn_former_outputs(
    catalog: Catalog, stream: str, declared: Sequence[OutputTables], *, generation: int
) -> Iterator[TableWitness]:
    """The outputs that a stream declares no more and whose staging tables cannot be read, which its start needs.

    Raises
    ------
    DeliveryError, LakehouseError: when a staging table cannot be loaded.
    """
    for output, staging in former_staging_tables(catalog, stream, declared):
        if lost := missing_list(staging, is_whole=True):
            # Where nothing names the target, nothing waits for it either, and the staging table stands for it.
            target = staged_target(staging, stream=stream, output=output) or ".".join(staging.name())
            names = StagedOutput(stream=stream, output=output, target=target)
            problem, step = _kept_from(catalog, staging, names, lost, generation=generation)
            yield TableWitness(
                output=names,
                position=None,
                lost="" if problem else lost,
                problem=problem,
                next_step=step,
                is_declared=False,
            )


def _kept_from(catalog: Catalog, staging: Table, names: StagedOutput, lost: str, *, generation: int) -> tuple[str, str]:
    """Why the staging table of a former output is not emptied, and what is to be done; empty where it may be."""
    try:
        former = former_output(catalog, staging, stream=names.stream, output=names.output)
    except DeliveryError as error:
        return error.message, error.next_step or ""
    # A ledger that was set back knows an earlier generation than the batches have.
    rows = [one.summary.rows or 0 for one in former.waiting if one.summary.key.generation >= generation]
    if not rows:
        return "", ""
    problem = f"{sum(rows):,} rows wait for the former output {former}, and {lost} is gone, without which none is read"
    if former.position is None:
        return problem, f"`sluice batch abandon {names.stream} {names.output}` gives them up."
    return problem, (
        f"Declare {names.output} again for {names.target}: a repair has them read again for it then. "
        f"`sluice batch abandon {names.stream} {names.output}` gives them up."
    )
