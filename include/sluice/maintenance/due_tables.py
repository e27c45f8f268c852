"""Decides for all tables in one process which have maintenance due, so that a table with nothing due costs no Spark.

What was observed of a table with nothing due is recorded as a run without steps: its page shows the newest figures.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from datetime import datetime

from pyiceberg.catalog import Catalog

from sluice.declarations.loaded_declarations import Declarations
from sluice.errors import LakehouseError
from sluice.ledger.connection import Ledger, database_time
from sluice.ledger.maintenance_history import recent_maintenance, record_maintenance
from sluice.ledger.records.maintenance import MaintenanceObservation, StepObservation, StepOutcome
from sluice.maintenance.maintained_tables import find_declaration, plan_table_maintenance
from sluice.maintenance.maintenance_plan import MaintenancePlan, StepAction
from sluice.maintenance.maintenance_records import maintenance_record
from sluice.maintenance.run_verdict import RUNS_JUDGED, problems_of_run
from sluice.publication.mark_moves import settle_merges_of_table
from sluice.settings import Settings
from sluice.tables.catalog import open_catalog
from sluice.tables.declared_tables import require_table

_log = logging.getLogger(__name__)


def due_tables(
    ledger: Ledger, declarations: Declarations, settings: Settings, tables: Sequence[str], *, launched_by: str
) -> tuple[str, ...]:
    """Plan the maintenance of tables, and record what was seen of those that have nothing due.

    Parameters
    ----------
    launched_by: who asked, for people who read it.

    Returns
    -------
    The tables whose maintenance has a step to do, or a problem that a person must see. A table that cannot be observed
    is one of them, and all of them are when the catalog does not answer: their maintenance reports why.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    try:
        catalog = open_catalog(settings)
    except LakehouseError as error:
        _log.warning("no table can be observed: %s", error)
        return tuple(tables)
    return tuple(_due(catalog, ledger, declarations, settings, tables, launched_by=launched_by))


def _due(
    catalog: Catalog,
    ledger: Ledger,
    declarations: Declarations,
    settings: Settings,
    tables: Sequence[str],
    *,
    launched_by: str,
) -> Iterator[str]:
    for name in tables:
        try:
            plan = _plan(catalog, ledger, declarations, settings, name, now=database_time(ledger))
        except LakehouseError as error:
            _log.warning("%s cannot be observed: %s", name, error)
            yield name
            continue
        run = _run_without_steps(plan, launched_by=launched_by)
        problems = problems_of_run(run, recent_maintenance(ledger, name, limit=RUNS_JUDGED))
        if any(step.action is StepAction.RUN for step in plan.steps) or problems:
            yield name
        else:
            _log.info("%s has nothing due: %s", name, "; ".join(step.explanation for step in plan.steps))
            record_maintenance(ledger, run)


def _plan(
    catalog: Catalog, ledger: Ledger, declarations: Declarations, settings: Settings, name: str, *, now: datetime
) -> MaintenancePlan:
    declaration = find_declaration(declarations, name)
    require_table(catalog, name)
    settle_merges_of_table(catalog, name)
    table = require_table(catalog, name)
    return plan_table_maintenance(ledger, declarations, settings, declaration=declaration, table=table, now=now)


def _run_without_steps(plan: MaintenancePlan, *, launched_by: str) -> MaintenanceObservation:
    """The record of a run that does none of the steps, as far as it is right: no step is due."""
    outcomes = {StepAction.SKIP: StepOutcome.SKIPPED, StepAction.REFUSE: StepOutcome.REFUSED}
    steps = tuple(
        StepObservation(
            step=step.step,
            outcome=outcomes[step.action],
            reason=step.reason,
            explanation=step.explanation,
            attempts=0,
            result={},
        )
        for step in plan.steps
        if step.action in outcomes
    )
    return maintenance_record(plan, plan.seen, steps, launched_by=launched_by, ended_at=plan.seen.observed_at)
