"""Takes the tables of a stream over at the start of a run, and publishes what an earlier run has staged."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile

from pyiceberg.catalog import Catalog

from sluice.errors import UnpublishableError
from sluice.ledger.batches import PublicationKey
from sluice.publication.chain import CheckpointPosition, is_behind, whole_batches
from sluice.publication.file_preparation import find_missing_files, refuse_missing_files
from sluice.publication.mark_moves import leave_generations_before, open_generation, plan_output, reject_batch
from sluice.publication.marks import load_target_state
from sluice.publication.staged_batch import StagedBatch, is_held
from sluice.publication.staging_layout import ensure_staging_table
from sluice.publication.staging_table import load_staging_table, staged_batches
from sluice.publication.start_check import published_beyond, refuse_missing_batches, refuse_newer_table
from sluice.stored_keys import OPERATION_COLUMN
from sluice.tables.declared_tables import load_table
from sluice_spark.delivery.publisher import Publisher, StagedByOutput
from sluice_spark.delivery.waiting_batches import key_of
from sluice_spark.sinks.iceberg import IcebergTarget

_log = logging.getLogger(__name__)


def take_stream_over(
    publisher: Publisher, *, generation: int, newest_committed: int, new: Collection[str] = ()
) -> None:
    """Prepare the staging tables, and keep older runs from publishing.

    What earlier generations have staged and not published is abandoned: a person has left those generations behind.

    Parameters
    ----------
    publisher: of the run that takes over.
    newest_committed: of the checkpoint. A new output continues after this batch.
    new: the outputs that never had a mark, as the start has found. A mark that is missing on others was removed since.

    Raises
    ------
    MarkError: when a mark was removed.
    UnpublishableError: when an output overwrites partitions of a table that has none.
    """
    catalog, token = publisher.catalog, publisher.token
    for target in publisher.targets:
        _require_partitions(catalog, target)
        leave_generations_before(catalog, target.names, generation=generation, token=token)
        _prepare_staging(publisher, target, with_operations=_waits_with_operations(catalog, target))
        open_generation(
            catalog,
            target.names,
            generation=generation,
            token=token,
            batch=newest_committed,
            is_new=target.output in new,
        )


def complete_rejections(publisher: Publisher, rejected: Collection[int], checkpoint: CheckpointPosition) -> None:
    """Move the marks past staged batches that a person rejected, where the command was interrupted before that.

    Parameters
    ----------
    rejected: the numbers of the rejected batches of the open generation, as the ledger has them.
    checkpoint: as of `publish_staged`.

    Raises
    ------
    DeliveryError, LakehouseError: when a table is not as publication left it.
    """
    for target in publisher.targets if rejected else ():
        while following := _next_if_rejected(publisher, target, rejected, checkpoint):
            _log.info("batch %s was rejected: its mark on %s moves past it", following.summary.key, target.identifier)
            reject_batch(publisher.catalog, target.names, following, token=publisher.token)


def _next_if_rejected(
    publisher: Publisher, target: IcebergTarget, rejected: Collection[int], checkpoint: CheckpointPosition
) -> StagedBatch | None:
    ready = plan_output(publisher.catalog, target.names, checkpoint=checkpoint).ready[:1]
    return next((batch for batch in ready if batch.summary.key.batch in rejected), None)


def publish_staged(
    publisher: Publisher, checkpoint: CheckpointPosition
) -> tuple[tuple[StagedByOutput, ...], tuple[StagedByOutput, ...], Mapping[PublicationKey, Mapping[str, int]]]:
    """Publish the chain of batches that an earlier run staged, as far as every output of a batch is staged, and up to
    the first one that is held.

    Parameters
    ----------
    checkpoint: read after `take_stream_over`: until then an older run could still plan, stage and publish.

    Returns
    -------
    The batches that are published and still in the staging tables, in order: the ledger may not have them. Then those
    that wait: one that is held, and all behind it. Then the snapshots in which those became visible that are published
    now, by output.

    Raises
    ------
    DivergedError: when the checkpoint is older than a table, or has committed a batch that is not there.
    StagedFilesMissingError: when a file of a staged batch is gone. The batches before it are published.
    DeliveryError, LakehouseError: when a staged batch cannot be published.
    """
    for target in publisher.targets:
        _refuse_newer_table(publisher.catalog, target, checkpoint)
    plans = [plan_output(publisher.catalog, target.names, checkpoint=checkpoint) for target in publisher.targets]
    for abandoned in (batch for plan in plans for batch in plan.abandoned):
        staged = abandoned.batch.summary
        _log.warning("batch %s, output %s: never published: %s", staged.key, staged.output, abandoned.reason)
    whole = whole_batches(plans)
    ready = {batch for plan in plans for batch in plan.ready}
    waiting = [batch for batch in whole if not ready.isdisjoint(batch.values())]
    free = list(takewhile(lambda batch: not is_held(batch), waiting))
    waiting, held = free, tuple(waiting[len(free) :])
    snapshot_ids: Mapping[str, int] = {}
    if waiting:
        _log.info("publishing %d batches that an earlier run has staged", len(waiting))
        snapshot_ids = _publish_what_exists(publisher, waiting, ready)
    _drop_operations(publisher)
    for target in publisher.targets:
        reached = load_target_state(publisher.catalog, target.names).position(target.names)
        newest = max((reached.batch, *(key_of(batch).batch for batch in held)))
        refuse_missing_batches(replace(reached, batch=newest), checkpoint, output=target.names)
    now = {key_of(batch): snapshot_ids for batch in waiting}
    return tuple(batch for batch in whole if batch not in held), held, now


def marked_batches(publisher: Publisher, *, generation: int) -> tuple[int, ...]:
    """The numbers of the batches at which the marks of a generation stand."""
    positions = [load_target_state(publisher.catalog, one.names).position(one.names) for one in publisher.targets]
    return tuple(sorted({each.batch for each in positions if each.generation == generation}))


def _publish_what_exists(
    publisher: Publisher, waiting: Sequence[StagedByOutput], ready: Collection[StagedBatch]
) -> Mapping[str, int]:
    """Publish the batches up to the first one with a missing file, which a person may reject only when it is next.

    Returns
    -------
    The snapshots of the targets, by output.
    """
    missing = [
        found
        for target in publisher.targets
        for found in find_missing_files(
            load_staging_table(publisher.catalog, target.names),
            [batch[target.output] for batch in waiting if batch.get(target.output) in ready],
        )
    ]
    end = min((one.batch.position for one in missing), default=None)
    whole = [batch for batch in waiting if end is None or next(iter(batch.values())).position < end]
    snapshot_ids = publisher.publish(whole) if whole else {}
    refuse_missing_files(sorted(missing, key=lambda one: one.batch.position))
    return snapshot_ids


def _prepare_staging(publisher: Publisher, target: IcebergTarget, *, with_operations: bool) -> None:
    ensure_staging_table(
        publisher.catalog,
        stream=target.stream,
        output=target.output,
        target=target.declared.table,
        token=publisher.token,
        is_merged=target.declared.mode == "merge" or with_operations,
    )


def _waits_with_operations(catalog: Catalog, target: IcebergTarget) -> bool:
    """Whether batches with the operation of each row wait to be merged. Until then their staging table keeps that
    column, even when the output is not merged any more."""
    staging = load_table(catalog, target.names.staging)
    if staging is None or OPERATION_COLUMN not in staging.schema().column_names:
        return False
    state = load_target_state(catalog, target.names)
    reached = state.position(target.names) if state.mark is not None else None
    staged = staged_batches(staging, stream=target.stream, output=target.output)
    with_rows = [batch for batch in staged if batch.data_files > 0 and not batch.is_overtaken]
    return any(reached is None or not is_behind(batch, reached) for batch in with_rows)


def _drop_operations(publisher: Publisher) -> None:
    """Take the operation column from the staging tables of outputs that are not merged any more.

    Raises
    ------
    UnpublishableError: when a batch still needs it, because it is staged for some outputs and Spark stages the others.
    """
    for target in publisher.targets:
        staging = load_staging_table(publisher.catalog, target.names)
        if target.declared.mode == "merge" or OPERATION_COLUMN not in staging.schema().column_names:
            continue
        if _waits_with_operations(publisher.catalog, target):
            raise UnpublishableError(
                f"A batch of {target.names} was staged to be merged into {target.declared.table}, and its other "
                f"outputs are not staged yet; the output is declared with mode `{target.declared.mode}` now.",
                next_step="Declare mode `merge` again, start the stream once, and change the mode then.",
            )
        _prepare_staging(publisher, target, with_operations=False)


def _refuse_newer_table(catalog: Catalog, target: IcebergTarget, checkpoint: CheckpointPosition) -> None:
    state = load_target_state(catalog, target.names)
    known = published_beyond(state.table, target.names, checkpoint)
    refuse_newer_table(state.position(target.names), checkpoint, output=target.names, known=known)


def _require_partitions(catalog: Catalog, target: IcebergTarget) -> None:
    table = load_table(catalog, target.declared.table)
    if target.declared.mode == "overwrite_partitions" and table is not None and table.spec().is_unpartitioned():
        raise UnpublishableError(
            f"{target.declared.table} has no partitions to overwrite.",
            next_step="Declare `partitioning` for the table, or mode `complete` for the output.",
        )
