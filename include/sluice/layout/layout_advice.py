"""Measures what conditions of queries leave of a table's files, and chooses the order that would leave least."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import yaml
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform

from sluice.declarations.maintenance_declaration import CompactionDeclaration
from sluice.declarations.table_declaration import TableDeclaration
from sluice.layout.pruning import FilesRead, TableFilter, files_read, total_of
from sluice.layout.row_orders import OrderEstimate, OrderEstimator, RowOrder, possible_orders
from sluice.layout.row_sample import RowSample, choose_groups, groups_of, read_sample

CLEAR_SHARE = 0.7
"""An order is suggested when the conditions would read this share or less of what they read by the declared one: an
estimate from some rows may be wrong by a tenth, and a rewrite has to be worth it."""

PLAIN_SHARE = 1.1
"""A plainer order is taken when it reads at most so many times what the best one reads."""

SAMPLE_BYTES = 256 * 1024**2
"""How many bytes of columns are read at most: a minute of an object store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutAdvice:
    """What conditions read of a table now and by other orders.

    all_files: of the newest snapshot. now: what each condition leaves of them.
    declared: of the order that compaction keeps as declared. estimates: of all orders, the declared one first.
    suggested: the order to declare; unset when none would clearly help. small: the files that compaction rewrites.
    sample: what was read for the estimates.
    """

    table: str
    filters: tuple[TableFilter, ...]
    all_files: FilesRead
    now: tuple[FilesRead, ...]
    estimates: tuple[OrderEstimate, ...]
    suggested: OrderEstimate | None
    small: FilesRead
    sample: RowSample

    @property
    def declared(self) -> OrderEstimate | None:
        """The estimate of the declared order; none where no row was read."""
        return self.estimates[0] if self.estimates else None


def advise_layout(
    table: Table,
    declaration: TableDeclaration,
    filters: Sequence[TableFilter],
    *,
    files: Sequence[DataFile],
    group_files: int,
    small_bytes: int,
) -> LayoutAdvice:
    """Measure conditions on a table, and look for an order of its rows by which they would read less.

    Parameters
    ----------
    table: freshly loaded. filters: at least one. files: its data files.
    group_files: how many full files a rewrite orders together. small_bytes: the size below which a file is small.

    Raises
    ------
    LakehouseError: when a data file cannot be read.
    """
    compaction = declaration.maintenance.compaction or CompactionDeclaration()
    spec, seed = table.spec(), table.metadata.current_snapshot_id or 0
    groups = groups_of(
        files, spec_id=spec.spec_id, target_file_bytes=int(compaction.target_file_bytes), group_files=group_files
    )
    columns = _candidates(table, filters, spec)
    declared = declared_order(declaration)
    needed = sorted({name for one in filters for name in one.columns} | set(declared.columns))
    chosen = choose_groups(table, groups, filters, seed=seed)
    sample = read_sample(table, chosen, needed, most_bytes=SAMPLE_BYTES, seed=seed)
    sample = replace(sample, groups=tuple(one for one in sample.groups if one.is_enough))
    orders = [declared, *(one for one in possible_orders(columns, z_orderable=declaration.z_orderable))]
    estimator = OrderEstimator(table=table, groups=groups, sample=sample, filters=filters)
    estimates = list(estimator.estimates(list(dict.fromkeys(orders)))) if sample.groups else []
    staying = [files_read(table, _of_other_specs(files, spec), one) for one in filters]
    estimates = [_with_staying(one, staying) for one in estimates]
    return LayoutAdvice(
        table=declaration.table,
        filters=tuple(filters),
        all_files=total_of(files),
        now=tuple(files_read(table, files, one) for one in filters),
        estimates=tuple(estimates),
        suggested=choose_order(estimates),
        small=total_of(file for file in files if file.file_size_in_bytes < small_bytes),
        sample=sample,
    )


def declared_order(declaration: TableDeclaration) -> RowOrder:
    """The order in which a table's compaction puts rows over several files, as it is declared."""
    compaction = declaration.maintenance.compaction
    if compaction is None or compaction.strategy == "binpack":
        return RowOrder()
    if compaction.strategy == "z_order":
        return RowOrder(columns=compaction.z_order or (), is_z_order=True)
    fields = declaration.sort_order
    return RowOrder(
        columns=tuple(field.column for field in fields),
        descending=tuple(field.column for field in fields if field.direction == "desc"),
    )


def choose_order(estimates: Sequence[OrderEstimate]) -> OrderEstimate | None:
    """The plainest of the orders that read about as little as the best one; none when that is not clearly less than by
    the first one, which is declared."""
    if not estimates:
        return None
    best = min(one.bytes for one in estimates)
    plainest = next(one for one in estimates if one.bytes <= best * PLAIN_SHARE)
    return plainest if plainest.bytes <= estimates[0].bytes * CLEAR_SHARE and estimates[0].bytes else None


def _candidates(table: Table, filters: Sequence[TableFilter], spec: PartitionSpec) -> tuple[str, ...]:
    """The columns to order by, the most frequent first: of one that has one value in each partition, none."""
    schema = table.schema()
    identities = [one for one in spec.fields if isinstance(one.transform, IdentityTransform)]
    alike = {schema.find_column_name(one.source_id) for one in identities}
    named = Counter(name for condition in filters for name in condition.columns)
    return tuple(name for name, _ in named.most_common() if name not in alike)


def _of_other_specs(files: Sequence[DataFile], spec: PartitionSpec) -> list[DataFile]:
    return [file for file in files if file.spec_id != spec.spec_id]


def _with_staying(estimate: OrderEstimate, staying: Sequence[FilesRead]) -> OrderEstimate:
    """The estimate with the files of earlier partition specs, which are taken as they are."""
    return replace(estimate, read=tuple(one + more for one, more in zip(estimate.read, staying, strict=True)))


def advice_sentences(advice: LayoutAdvice) -> Iterator[str]:
    """The advice for a person, a line each."""
    best = advice.suggested
    yield f"{advice.table}: {_words(advice.all_files)} in all"
    for place, condition in enumerate(advice.filters):
        yield f"{condition.text} ({condition.origin})"
        yield f"  now: {_words(advice.now[place])}"
        for name, estimate in (("as declared", advice.declared), ("suggested", best)):
            if estimate is not None:
                yield f"  {name}, {estimate.order}: about {_words(estimate.read[place])}"
    if advice.declared is None:
        yield f"{advice.table}: too few rows were read to estimate an order"
        return
    yield _sampled(advice)
    if best is None:
        yield (
            f"{advice.table}: no order would clearly help: of {len(advice.estimates)} that were tried, none leaves at "
            f"most {CLEAR_SHARE:.0%} of what is read as declared"
        )
        return
    yield f"{advice.table}: declare, so that compaction writes the rows {best.order}:"
    yield yaml.safe_dump(best.order.declaration, sort_keys=False).rstrip()
    yield (
        f"Compaction orders the files that it rewrites: {_words(advice.small)} are small now, and the others stay as "
        "they are until they are rewritten for another reason"
    )


def _sampled(advice: LayoutAdvice) -> str:
    sample = advice.sample
    groups = "group" if len(sample.groups) == 1 else "groups"
    return (
        f"Estimated from {sample.rows:,} rows of {sample.files} files in {len(sample.groups)} {groups} "
        f"({sample.bytes / 1024**2:.1f} MiB of their columns), as if all files were rewritten; sizes are taken as now"
    )


def _words(read: FilesRead) -> str:
    return f"{read.files:,.0f} files, {read.bytes / 1024**2:,.1f} MiB"


def advice_document(advice: LayoutAdvice) -> dict[str, Any]:
    """The advice for a program, with every order that was tried."""
    best = advice.suggested
    return {
        "table": advice.table,
        "all": _numbers(advice.all_files),
        "small": _numbers(advice.small),
        "filters": [
            {"where": one.text, "origin": one.origin, "now": _numbers(read)}
            for one, read in zip(advice.filters, advice.now, strict=True)
        ],
        "estimates": [
            {
                "order": str(one.order),
                "declaration": one.order.declaration,
                "then": [_numbers(read) for read in one.read],
            }
            for one in advice.estimates
        ],
        "suggested": None if best is None else best.order.declaration,
        "sample": {"rows": advice.sample.rows, "files": advice.sample.files, "bytes": advice.sample.bytes},
    }


def _numbers(read: FilesRead) -> dict[str, int]:
    return {"files": round(read.files), "bytes": round(read.bytes)}
