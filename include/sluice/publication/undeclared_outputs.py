"""Finds what is staged for outputs that a stream no longer declares, or declares for another table.

A declaration may change between a crash and the next start. Spark commits a batch as soon as it is staged and does not
bring it again, so what waits for a former output would be lost silently. A person decides what becomes of it, with
`sluice batch publish` or `sluice batch abandon`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError
from pyiceberg.table import Table

from sluice.errors import UndeclaredOutputError
from sluice.publication.chain import MarkPosition, PublicationPlan, plan_publication
from sluice.publication.lost_marks import find_lost_mark, restore_lost_mark
from sluice.publication.mark_moves import take_over
from sluice.publication.marks import read_target_state
from sluice.publication.staged_batch import STAGING_NAMESPACE, StagedBatch, StagedOutput
from sluice.publication.staging_table import clear_staging, staged_batches
from sluice.stored_keys import STAGING_CLOSED_AT, STAGING_TARGET, STAGING_TARGET_UUID
from sluice.tables.catalog import catalog_refusals
from sluice.tables.declared_tables import load_table


@dataclass(frozen=True, slots=True, kw_only=True)
class UndeclaredOutput:
    """An output as its staging table knows it.

    target: the table that its batches were staged for; none when its staging table does not name it.
    waiting: the batches that are not visible, in order. visible: those that are, and still staged.
    position: how far it is published; none when nothing can be published, because the target is gone or has no mark.
    is_closed: whether the stream continued without it before.
    """

    stream: str
    output: str
    target: str | None
    waiting: tuple[StagedBatch, ...]
    visible: tuple[StagedBatch, ...] = ()
    position: MarkPosition | None = None
    is_closed: bool = False

    def __str__(self) -> str:
        return f"{self.stream}.{self.output}"

    @property
    def staging(self) -> str:
        """The identifier of its staging table."""
        return f"{STAGING_NAMESPACE}.{self.stream}__{self.output}"

    @property
    def rows(self) -> int:
        """The rows of the batches that wait."""
        return sum(batch.summary.rows or 0 for batch in self.waiting)


def find_undeclared_outputs(
    catalog: Catalog, stream: str, declared: Collection[StagedOutput]
) -> tuple[UndeclaredOutput, ...]:
    """The former outputs of a stream that have a staging table, by name.

    Parameters
    ----------
    declared: the outputs that the stream has now, with their tables.

    Raises
    ------
    DeliveryError, LakehouseError: when a staging table or a target cannot be read.
    """
    tables = {one.output: one for one in declared}
    found = []
    for output in _staged_outputs(catalog, stream):
        staging = load_table(catalog, f"{STAGING_NAMESPACE}.{stream}__{output}")
        if staging is None:
            continue
        staged = staged_batches(staging, stream=stream, output=output)
        now = tables.get(output)
        if now is not None and (not staged or _is_for(catalog, staging, now)):
            continue
        found.append(_observed(catalog, staging, staged, stream=stream, output=output))
    return tuple(found)


def refuse_undeclared_outputs(outputs: Sequence[UndeclaredOutput], *, generation: int) -> None:
    """Refuse to start while batches wait for a former output. Those of left generations are never published.

    Raises
    ------
    UndeclaredOutputError: with the first such output, its batches and rows.
    """
    for one in outputs:
        waiting = [batch for batch in one.waiting if batch.summary.key.generation == generation]
        if not waiting:
            continue
        first, last = waiting[0].summary, waiting[-1].summary
        batches = "1 batch" if len(waiting) == 1 else f"{len(waiting)} batches"
        raise UndeclaredOutputError(
            f"{batches} with {sum(batch.summary.rows or 0 for batch in waiting)} rows "
            f"{'is' if len(waiting) == 1 else 'are'} staged for {one.target or 'a table that is not known'}, the "
            f"output {one.output} that stream {one.stream} no longer declares: {first.key} to {last.key}, from "
            f"{first.start_offsets} to {last.end_offsets}.",
            next_step=f"`sluice batch publish {one.stream} {one.output}` makes them visible, `sluice batch abandon "
            f"{one.stream} {one.output}` discards them; or declare the output as it was, and start once.",
        )


def leave_output(catalog: Catalog, former: UndeclaredOutput, *, token: int) -> None:
    """Keep older runs from publishing into a former output, and clear what is visible of it.

    Parameters
    ----------
    token: of the run that begins.

    Raises
    ------
    StaleTokenError: when a newer run has taken over.
    DeliveryError, LakehouseError: when a table cannot be changed.
    """
    if former.is_closed or former.target is None or former.position is None:
        return
    names = StagedOutput(stream=former.stream, output=former.output, target=former.target)
    restore_lost_mark(catalog, names, token=token)
    take_over(catalog, names, token=token)
    clear_staging(catalog, names, token=token)


def close_output(catalog: Catalog, former: UndeclaredOutput, *, generation: int, batch: int) -> None:
    """Note at which batch a stream continued without an output.

    Declared again, the output continues where the checkpoint stands then: the batches in between were not meant for it.

    Parameters
    ----------
    generation, batch: the newest batch that the checkpoint has committed.

    Raises
    ------
    LakehouseError: when the staging table cannot be changed.
    """
    _set_closed(catalog, former.staging, f"{generation}:{batch}")


def is_closed(catalog: Catalog, output: StagedOutput) -> bool:
    """Whether a stream continued without an output that it declares now."""
    staging = load_table(catalog, output.staging)
    return staging is not None and STAGING_CLOSED_AT in staging.properties


def reopen_output(catalog: Catalog, output: StagedOutput) -> None:
    """Note that an output is declared again, once its mark stands where the checkpoint does."""
    _set_closed(catalog, output.staging, None)


def _set_closed(catalog: Catalog, staging: str, value: str | None) -> None:
    table = load_table(catalog, staging)
    if table is None or (STAGING_CLOSED_AT in table.properties) == (value is not None):
        return
    with catalog_refusals(f"change the properties of {staging}"), table.transaction() as transaction:
        if value is None:
            transaction.remove_properties(STAGING_CLOSED_AT)
        else:
            transaction.set_properties({STAGING_CLOSED_AT: value})


def _staged_outputs(catalog: Catalog, stream: str) -> Iterator[str]:
    prefix = f"{stream}__"
    try:
        with catalog_refusals(f"list the tables of {STAGING_NAMESPACE}", but_not=(NoSuchNamespaceError,)):
            tables = catalog.list_tables(STAGING_NAMESPACE)
    except NoSuchNamespaceError:
        return
    yield from sorted(name[-1].removeprefix(prefix) for name in tables if name[-1].startswith(prefix))


def _is_for(catalog: Catalog, staging: Table, declared: StagedOutput) -> bool:
    """Whether a staging table holds batches for the declared table, whatever that was called when they were staged."""
    target, known = load_table(catalog, declared.target), staging.properties.get(STAGING_TARGET_UUID)
    return target is None or known in (None, str(target.metadata.table_uuid))


def _observed(
    catalog: Catalog, staging: Table, staged: Sequence[StagedBatch], *, stream: str, output: str
) -> UndeclaredOutput:
    modes = [batch.summary.mode for batch in staged if batch.summary.mode is not None]
    name = modes[-1].table if modes else staging.properties.get(STAGING_TARGET)
    plan = _plan(catalog, staging, staged, StagedOutput(stream=stream, output=output, target=name)) if name else None
    if plan is None:
        waiting = tuple(batch for batch in staged if not batch.is_overtaken)
        return UndeclaredOutput(stream=stream, output=output, target=name, waiting=waiting)
    return UndeclaredOutput(
        stream=stream,
        output=output,
        target=name,
        waiting=plan.ready,
        visible=plan.published,
        position=plan.position,
        is_closed=STAGING_CLOSED_AT in staging.properties,
    )


def _plan(
    catalog: Catalog, staging: Table, staged: Sequence[StagedBatch], output: StagedOutput
) -> PublicationPlan | None:
    """What is published and what waits; none when the target is gone, or was created again, or has no mark."""
    target = load_table(catalog, output.target)
    if target is None or staging.properties.get(STAGING_TARGET_UUID) not in (None, str(target.metadata.table_uuid)):
        return None
    state = read_target_state(target, output)
    position = state.position(output) if state.mark is not None else find_lost_mark(target, output)
    return plan_publication(position, staged) if position is not None else None
