"""What a compaction changes for readers: the time to plan a scan, and what known conditions read of the table.

Both are figures in the record of the step, for a person, and decide nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyiceberg.table import Table

from sluice.declarations.loaded_declarations import Declarations
from sluice.declarations.table_declaration import TableDeclaration
from sluice.errors import SluiceError
from sluice.layout.pruning import FilesRead, TableFilter, each_data_file, known_filters, measure_filters
from sluice.ledger.maintenance_runs import MaintenanceStep, StepObservation, StepOutcome
from sluice.maintenance.maintenance_plan import MaintenancePlan
from sluice.tables.table_observation import TableObservation

PLANNING_MS, FILTERS = "planning_ms", "filters"
"""The keys in the result of a compaction: how many milliseconds the plan of a scan of everything took, and what each
condition reads, both before and after."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutProbe:
    """Known conditions on a table that is about to be compacted. before: what each reads of it now."""

    filters: tuple[TableFilter, ...] = ()
    before: tuple[FilesRead, ...] = ()

    def with_figures(
        self, operations: Sequence[StepObservation], table: Table, *, seen: TableObservation, after: TableObservation
    ) -> tuple[StepObservation, ...]:
        """The steps of a run, of which a compaction that was carried out has the figures before and after it.

        Parameters
        ----------
        table: as it is after the run. seen, after: the observations before and after the run.
        """
        if not any(_is_compaction(one) for one in operations):
            return tuple(operations)
        figures: dict[str, Any] = {PLANNING_MS: {"before": seen.planning_ms, "after": after.planning_ms}}
        if found := _read(table, self.filters):
            figures[FILTERS] = [
                {"where": one.text, "origin": one.origin, "before": _numbers(before), "after": _numbers(now)}
                for one, before, now in zip(self.filters, self.before, found, strict=True)
            ]
        return tuple(
            replace(one, result={**one.result, **figures}) if _is_compaction(one) else one for one in operations
        )


def probe_layout(
    plan: MaintenancePlan, table: Table, declarations: Declarations, declaration: TableDeclaration
) -> LayoutProbe:
    """Measure the known conditions on a table, if a compaction is due."""
    if not any(one.step is MaintenanceStep.REWRITE_DATA_FILES for one in plan.due):
        return LayoutProbe()
    try:
        filters = known_filters(declarations, declaration, table.schema(), each_data_file(table))
        return LayoutProbe(filters=filters, before=measure_filters(table, filters))
    except SluiceError as error:  # a figure is no reason to leave a table alone
        _log.warning("%s: what conditions read is not measured: %s", declaration.table, error)
        return LayoutProbe()


def figure_sentences(done: StepObservation) -> Iterator[str]:
    """The figures of a compaction, a sentence each; none of another step."""
    planning: Mapping[str, Any] = done.result.get(PLANNING_MS, {})
    if None not in (planning.get("before"), planning.get("after")):
        yield f"planning a scan of everything took {planning['before']} ms before, {planning['after']} ms after"
    for one in done.result.get(FILTERS, ()):
        before, after = one["before"], one["after"]
        yield (
            f"{one['where']} reads {before['files']} files ({before['bytes']} bytes) before, {after['files']} files "
            f"({after['bytes']} bytes) after"
        )


def _read(table: Table, filters: Sequence[TableFilter]) -> tuple[FilesRead, ...]:
    """What each condition reads now; nothing where that cannot be found out."""
    try:
        return measure_filters(table, filters)
    except SluiceError as error:
        _log.warning("what conditions read is not measured: %s", error)
        return ()


def _is_compaction(done: StepObservation) -> bool:
    return done.step is MaintenanceStep.REWRITE_DATA_FILES and done.outcome is StepOutcome.DONE


def _numbers(read: FilesRead) -> Mapping[str, int]:
    return {"files": round(read.files), "bytes": round(read.bytes)}
