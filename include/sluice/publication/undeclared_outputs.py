"""Finds what is staged for outputs that a stream no longer declares, or declares for another table.

A declaration may change between a crash and the next start. Spark commits a batch as soon as it is staged and does not
bring it again, so what waits for a former output would be lost silently. A person decides what becomes of it, with
`sluice batch publish` or `sluice batch abandon`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError
from pyiceberg.table import Table

from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.errors import MarkError, UndeclaredOutputError
from sluice.ledger.batches import PublicationKey
from sluice.publication.chain import MarkPosition, PublicationPlan, plan_publication
from sluice.publication.mark_moves import plan_output
from sluice.publication.marks import find_lost_mark, read_target_state
from sluice.publication.staged_batch import STAGING_NAMESPACE, StagedBatch, StagedOutput, staging_name
from sluice.publication.staging_table import newest_token, staged_batches
from sluice.stored_keys import STAGING_CLOSED_AT, STAGING_TARGET, STAGING_TARGET_UUID
from sluice.tables.catalog import catalog_refusals
from sluice.tables.declared_tables import load_table

_REMEMBERING = frozenset({"files", "delta", "hudi", "python"})
"""Kinds of outputs that know a batch by its number, or may, as a function does that is given the number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputTables:
    """The tables of a declared output as they were loaded; none where there is no such table yet."""

    names: StagedOutput
    target: Table | None
    staging: Table | None

    @property
    def staged(self) -> tuple[StagedBatch, ...]:
        """What the staging table holds."""
        if self.staging is None:
            return ()
        return staged_batches(self.staging, stream=self.names.stream, output=self.names.output)

    @property
    def position(self) -> MarkPosition | None:
        """How far the output is published; none where its table is new, or was created again. Where the mark was
        removed, the history of the table says it.

        Raises
        ------
        DeliveryError, LakehouseError: when the target is not as publication left it, or cannot be read.
        """
        if self.target is None:
            return None
        state = read_target_state(self.target, self.names)
        return state.position(self.names) if state.mark is not None else find_lost_mark(self.target, self.names)

    @property
    def is_left(self) -> bool:
        """Whether the stream continued without the output, and no run has begun with it since."""
        return self.staging is not None and STAGING_CLOSED_AT in self.staging.properties

    @property
    def holds_batches_for_another_table(self) -> bool:
        """Whether something is staged for a table other than the target, whatever that was called then."""
        if self.staging is None or self.target is None or not self.staged:
            return False
        return self.staging.properties.get(STAGING_TARGET_UUID) not in (None, str(self.target.metadata.table_uuid))


def has_unmarked_outputs(declaration: StreamDeclaration) -> bool:
    """Whether a stream delivers something of which no mark shows how far."""
    return any(one.iceberg is None or one.iceberg.is_direct for one in declaration.outputs.values())


def remembers_batches(declaration: StreamDeclaration) -> bool:
    """Whether an output without a mark knows a batch by its number, and does not take another one under it."""
    return any(
        one.iceberg.is_direct if one.iceberg is not None else one.kind in _REMEMBERING
        for one in declaration.outputs.values()
    )


def repeating_outputs(declaration: StreamDeclaration) -> tuple[str, ...]:
    """The outputs without a mark that know no batch by its number: what is read again comes to them a second time."""
    declared = declaration.outputs.items()
    return tuple(name for name, one in declared if one.iceberg is None and one.kind not in _REMEMBERING)


def load_output_tables(catalog: Catalog, output: StagedOutput) -> OutputTables:
    """Load the tables of an output.

    Raises
    ------
    LakehouseError: when a table cannot be loaded.
    """
    staging = load_table(catalog, output.staging)
    target = load_table(catalog, output.target)  # behind it: what becomes visible and is cleared in between is no hole
    return OutputTables(names=output, target=target, staging=staging)


@dataclass(frozen=True, slots=True, kw_only=True)
class UndeclaredOutput:
    """An output as its staging table knows it.

    target: the table that its batches were staged for; none when its staging table does not name it.
    waiting: the batches that are not visible, in order. visible: those that are, and still staged.
    position: how far it is published; none when nothing can be published, because the target is gone or has no mark.
    is_closed: whether the stream continued without it before.
    token: the highest fencing token that its tables have seen.
    """

    stream: str
    output: str
    target: str | None
    waiting: tuple[StagedBatch, ...]
    visible: tuple[StagedBatch, ...] = ()
    position: MarkPosition | None = None
    is_closed: bool = False
    token: int = 0

    def __str__(self) -> str:
        return f"{self.stream}.{self.output}"

    @property
    def staging(self) -> str:
        """The identifier of its staging table."""
        return staging_name(self.stream, self.output)

    @property
    def rows(self) -> int:
        """The rows of the batches that wait."""
        return sum(batch.summary.rows or 0 for batch in self.waiting)

    def waiting_in(self, generation: int) -> tuple[StagedBatch, ...]:
        """The batches that wait in a generation. Those of generations that were left are never published."""
        return tuple(batch for batch in self.waiting if batch.summary.key.generation == generation)

    def is_settled(self, generation: int) -> bool:
        """Whether a start in a generation has nothing to do about it."""
        return self.is_closed and not self.visible and not self.waiting_in(generation)


def find_undeclared_outputs(
    catalog: Catalog, stream: str, declared: Iterable[OutputTables]
) -> tuple[UndeclaredOutput, ...]:
    """The former outputs of a stream that have a staging table, by name.

    Parameters
    ----------
    declared: the outputs that the stream has now, with their tables.

    Raises
    ------
    DeliveryError, LakehouseError: when a staging table or a target cannot be read.
    """
    former = former_staging_tables(catalog, stream, declared)
    return tuple(former_output(catalog, staging, stream=stream, output=output) for output, staging in former)


def former_staging_tables(
    catalog: Catalog, stream: str, declared: Iterable[OutputTables]
) -> Iterator[tuple[str, Table]]:
    """The staging tables of the former outputs of a stream, by name, each behind that.

    Parameters
    ----------
    declared: the outputs that the stream has now, with their tables.

    Raises
    ------
    DeliveryError, LakehouseError: when a staging table cannot be read.
    """
    tables = {one.names.output: one for one in declared}
    for output in _outputs_with_staging(catalog, stream):
        now = tables.get(output)
        if now is not None and not now.holds_batches_for_another_table:
            continue
        staging = load_table(catalog, staging_name(stream, output)) if now is None else now.staging
        if staging is not None:
            yield output, staging


def refuse_undeclared_outputs(outputs: Sequence[UndeclaredOutput], *, generation: int) -> None:
    """Refuse to start while batches wait for a former output. Those of left generations are never published.

    Raises
    ------
    UndeclaredOutputError: with the first such output, its batches and rows.
    """
    for one in outputs:
        waiting = one.waiting_in(generation)
        if not waiting:
            continue
        first, last = waiting[0].summary, waiting[-1].summary
        batches = "1 batch" if len(waiting) == 1 else f"{len(waiting)} batches"
        if one.position is None:
            raise UndeclaredOutputError(
                f"{batches} with {sum(batch.summary.rows or 0 for batch in waiting)} rows of {one} "
                f"{'is' if len(waiting) == 1 else 'are'} staged for {one.target or 'a table that is not known'}, which "
                f"is gone, was created again, or has no mark of it: {first.key} to {last.key}, from "
                f"{first.start_offsets} to {last.end_offsets}.",
                next_step=f"Restore the table if that was not meant; otherwise `sluice batch abandon {one.stream} "
                f"{one.output} --dry-run` shows what is discarded.",
            )
        raise UndeclaredOutputError(
            f"{batches} with {sum(batch.summary.rows or 0 for batch in waiting)} rows "
            f"{'is' if len(waiting) == 1 else 'are'} staged for {one.target or 'a table that is not known'}, the "
            f"output {one.output} that stream {one.stream} no longer declares: {first.key} to {last.key}, from "
            f"{first.start_offsets} to {last.end_offsets}.",
            next_step=f"`sluice batch publish {one.stream} {one.output}` makes them visible, `sluice batch abandon "
            f"{one.stream} {one.output}` discards them; or declare the output as it was, and start once.",
        )


def with_declared_outputs(
    catalog: Catalog, declared: Iterable[StagedOutput], batches: Sequence[StagedBatch]
) -> list[Mapping[str, StagedBatch]]:
    """Batches of a former output with what is staged of them for the declared outputs, which the next start publishes.

    Raises
    ------
    DeliveryError, LakehouseError: when a table cannot be read.
    """
    others: dict[PublicationKey, dict[str, StagedBatch]] = {}
    former = {batch.summary.output for batch in batches}
    for output in declared:
        if output.output in former or load_table(catalog, output.staging) is None:
            continue
        try:
            plan = plan_output(catalog, output)
        except MarkError:  # it is new
            continue
        for batch in (*plan.published, *plan.ready):
            others.setdefault(batch.summary.key, {})[output.output] = batch
    return [{**others.get(batch.summary.key, {}), batch.summary.output: batch} for batch in batches]


def _outputs_with_staging(catalog: Catalog, stream: str) -> Iterator[str]:
    prefix = f"{stream}__"
    try:
        with catalog_refusals(f"list the tables of {STAGING_NAMESPACE}", but_not=(NoSuchNamespaceError,)):
            tables = catalog.list_tables(STAGING_NAMESPACE)
    except NoSuchNamespaceError:
        return
    yield from sorted(name[-1].removeprefix(prefix) for name in tables if name[-1].startswith(prefix))


def staged_target(staging: Table, *, stream: str, output: str) -> str | None:
    """The table that the batches in a loaded staging table are for; none where nothing names it.

    Raises
    ------
    DeliveryError: when a summary cannot be read.
    """
    staged = staged_batches(staging, stream=stream, output=output)
    return staged[-1].summary.mode.table if staged else staging.properties.get(STAGING_TARGET)


def former_output(catalog: Catalog, staging: Table, *, stream: str, output: str) -> UndeclaredOutput:
    """A former output as its loaded staging table and its target show it.

    Raises
    ------
    DeliveryError, LakehouseError: when the target cannot be read.
    """
    staged = staged_batches(staging, stream=stream, output=output)
    name = staged_target(staging, stream=stream, output=output)
    plan = _plan(catalog, staging, staged, StagedOutput(stream=stream, output=output, target=name)) if name else None
    position = plan.position if plan is not None else None
    return UndeclaredOutput(
        stream=stream,
        output=output,
        target=name,
        waiting=plan.ready if plan is not None else tuple(batch for batch in staged if not batch.is_overtaken),
        visible=plan.published if plan is not None else (),
        position=position,
        is_closed=STAGING_CLOSED_AT in staging.properties,
        token=max(newest_token(staging), position.token if position is not None else 0),
    )


def _plan(
    catalog: Catalog, staging: Table, staged: Sequence[StagedBatch], output: StagedOutput
) -> PublicationPlan | None:
    """What is published and what waits; none when the target is gone, or was created again, or has no mark."""
    target = load_table(catalog, output.target)
    if target is None or staging.properties.get(STAGING_TARGET_UUID) not in (None, str(target.metadata.table_uuid)):
        return None
    position = OutputTables(names=output, target=target, staging=staging).position
    return plan_publication(position, staged) if position is not None else None
