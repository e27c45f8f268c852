"""Plans the maintenance of all tables in one process, does what needs no Spark, and names the tables that need more.

An hourly run finds most tables in order. Their plans, their pins and the records of what was seen cost some requests to
the catalog and the ledger, and neither a task nor an application of their own. The others are ranked by what their
steps gain for their cost, within the budget of a day; `sluice table plan` shows the same ranking.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from pydantic_core import to_jsonable_python

from sluice.declarations.loaded_declarations import Declarations
from sluice.errors import LedgerUnreachableError, SluiceError
from sluice.ledger.connection import database_time, open_ledger
from sluice.ledger.maintenance_runs import MaintenanceObservation, effort_since
from sluice.maintenance.maintenance_plan import MaintenancePlan
from sluice.maintenance.maintenance_records import plan_sentences, run_sentences
from sluice.maintenance.run_maintenance import TableMaintenance, open_maintenance, problems_after
from sluice.settings import Settings

_log = logging.getLogger(__name__)

AT_ONCE = 4
"""How many tables are looked at in parallel, each with two connections to the ledger: enough to hide the latency of
catalog and object store; the processor time is the same."""

_DAY = timedelta(days=1)

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """What maintenance took or may take: seconds of steps, and bytes that they read; unset: as many as it needs."""

    seconds: float | None = None
    bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedTable:
    """A table with due steps. place: the best one has 1. put_off: why it is not its turn; empty when it is."""

    place: int
    plan: MaintenancePlan
    put_off: str = ""

    def sentence(self) -> str:
        """The table in a line, for a person."""
        due = "; ".join(f"{decision.step}: {decision.explanation}" for decision in self.plan.due)
        cost = f"about {self.plan.cost_seconds:.0f} s and {self.plan.cost_bytes / 1024**2:.1f} MiB"
        waits = f"; {self.put_off}" if self.put_off else ""
        return f"{self.place}. {self.plan.seen.table}: {due} ({cost}){waits}"

    def as_json(self) -> dict[str, Any]:
        """The table for a program."""
        plan = self.plan
        return {
            "place": self.place,
            "put_off": self.put_off,
            "worth": round(plan.worth, 3),
            "cost_seconds": round(plan.cost_seconds, 1),
            "cost_bytes": plan.cost_bytes,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTables:
    """The plan of many tables.

    ranked: those with due steps. idle: the plans of the others. problems: what could not be planned, and why.
    """

    ranked: tuple[RankedTable, ...]
    idle: tuple[MaintenancePlan, ...]
    problems: tuple[tuple[str, str], ...]

    def sentences(self) -> Sequence[str]:
        """The plan for a person, a line each."""
        ranked = [one.sentence() for one in self.ranked]
        problems = [f"{name} cannot be planned: {problem}" for name, problem in self.problems]
        plans = [*(one.plan for one in self.ranked), *self.idle]
        steps = list(plan_sentences(plans[0])) if len(plans) == 1 else []
        return [*ranked, *problems, *steps, f"{len(self.idle)} of {len(plans)} tables have nothing due"]

    def as_json(self) -> dict[str, Any]:
        """The plan for a program: every table with all its steps, also those that are skipped, and why."""
        ranked = [{**_steps_of(one.plan), **one.as_json()} for one in self.ranked]
        idle = [{**_steps_of(plan), "place": None} for plan in self.idle]
        problems = [{"table": name, "problem": problem} for name, problem in self.problems]
        return {"tables": [*ranked, *idle], "problems": problems}


def _steps_of(plan: MaintenancePlan) -> dict[str, Any]:
    return {"table": plan.seen.table, "steps": to_jsonable_python(plan.steps), "notes": list(plan.notes)}


def plan_tables(settings: Settings, declarations: Declarations, tables: Sequence[str]) -> PlannedTables:
    """Plan the maintenance of tables. Nothing is changed or recorded.

    Raises
    ------
    LedgerUnreachableError: when the ledger cannot be reached.
    LakehouseError: when the catalog cannot be reached or refuses the credential.
    """

    def plan(maintenance: TableMaintenance, name: str) -> MaintenancePlan | str:
        try:
            return maintenance.plan(name)
        except LedgerUnreachableError:
            raise
        except SluiceError as error:
            return str(error)

    found = _for_each(settings, declarations, tables, plan, launched_by="a plan")
    plans = [one for one in found.values() if isinstance(one, MaintenancePlan)]
    return PlannedTables(
        ranked=_rank(settings, plans),
        idle=tuple(one for one in plans if not one.has_work),
        problems=tuple((name, one) for name, one in found.items() if isinstance(one, str)),
    )


def due_tables(
    settings: Settings, declarations: Declarations, tables: Sequence[str], *, launched_by: str
) -> tuple[str, ...]:
    """Maintain tables as far as that needs no Spark.

    Parameters
    ----------
    launched_by: who asked, for people who read it.

    Returns
    -------
    The tables that are left, those that could not be observed first, then those worth the most: a step needs Spark, or
    a person must see how the run ended. A table beyond the budget of the day is not left; the next day has another.

    Raises
    ------
    LedgerUnreachableError: when the ledger cannot be reached.
    LakehouseError: when the catalog cannot be reached or refuses the credential.
    """
    found = _for_each(settings, declarations, tables, _seen, launched_by=launched_by)
    unseen = [name for name, one in found.items() if one is True]
    ranked = _rank(settings, [one for one in found.values() if isinstance(one, MaintenancePlan)])
    due = []
    for one in ranked:
        _log.info("%s", one.sentence())
        if not one.put_off:
            due.append(one.plan)
    return (*unseen, *(plan.seen.table for plan in due if _is_left(settings, declarations, plan, launched_by)))


def _for_each(
    settings: Settings,
    declarations: Declarations,
    tables: Sequence[str],
    work: Callable[[TableMaintenance, str], Found],
    *,
    launched_by: str,
) -> dict[str, Found]:
    """What some work finds of each table, in the order given."""
    lists = [tables[first::AT_ONCE] for first in range(AT_ONCE)]

    def work_on(names: Sequence[str]) -> list[tuple[str, Found]]:
        with open_ledger(settings.ledger_url, is_brief=True) as ledger:
            maintenance = open_maintenance(settings, ledger, declarations, launched_by=launched_by)
            return [(name, work(maintenance, name)) for name in names]

    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = {name: one for some in pool.map(work_on, filter(None, lists)) for name, one in some}
    return {name: found[name] for name in tables}


def _rank(settings: Settings, plans: Sequence[MaintenancePlan]) -> tuple[RankedTable, ...]:
    budget = Effort(seconds=settings.maintenance_seconds_a_day, bytes=settings.maintenance_bytes_a_day)
    spent = Effort()
    if budget != spent:
        with open_ledger(settings.ledger_url, is_brief=True) as ledger:
            seconds, read = effort_since(ledger, database_time(ledger) - _DAY)
            spent = Effort(seconds=seconds, bytes=read)
    return rank_tables(plans, budget=budget, spent=spent)


def _seen(maintenance: TableMaintenance, name: str) -> MaintenancePlan | bool:
    """The plan of a table with more to do than pins; else whether it needs a task of its own. No table keeps the others
    from it."""
    return _judged(maintenance, name, lambda: maintenance.maintain_unless_due(name))


def _is_left(settings: Settings, declarations: Declarations, plan: MaintenancePlan, launched_by: str) -> bool:
    """Whether a table with due steps needs a task of its own, after what can be done here. One table after the other:
    the rows of a group of files are in memory."""
    name = plan.seen.table
    if not plan.has_work_here:
        return True
    with open_ledger(settings.ledger_url) as ledger:
        maintenance = open_maintenance(settings, ledger, declarations, launched_by=launched_by)
        return _judged(maintenance, name, lambda: maintenance.maintain_without_spark(name)) is not False


def _judged(
    maintenance: TableMaintenance, name: str, work: Callable[[], MaintenanceObservation | MaintenancePlan | None]
) -> MaintenancePlan | bool:
    """The plan that some work returns; or for a run that it has carried out whether a person must see how that ended;
    true as well when something is left to do."""
    try:
        run = work()
        if run is None or isinstance(run, MaintenancePlan):
            return run or True
        problems = problems_after(maintenance.ledger, run)
    except LedgerUnreachableError:
        raise
    except SluiceError as error:
        _log.warning("%s cannot be maintained here: %s", name, error)
        return True
    except Exception:  # noqa: BLE001  # its own task meets the same error, and fails with it
        _log.exception("%s cannot be maintained here", name)
        return True
    for sentence in (*run_sentences(run), *problems):
        _log.info("%s", sentence)
    return bool(problems)


def rank_tables(plans: Sequence[MaintenancePlan], *, budget: Effort, spent: Effort) -> tuple[RankedTable, ...]:
    """The tables with due steps, the most worth first; of equal worth in the order given.

    While less than half of the budget is spent, a table has its turn whatever it costs: one that is dearer than the
    whole budget would wait for ever, because cheap ones spend something in every 24 hours.

    Parameters
    ----------
    budget: of a day. spent: in the last 24 hours.
    """
    due = sorted((plan for plan in plans if plan.has_work), key=lambda plan: -plan.worth)
    return tuple(_ranked(due, budget, seconds=spent.seconds or 0.0, read=spent.bytes or 0))


def _ranked(due: Sequence[MaintenancePlan], budget: Effort, *, seconds: float, read: int) -> Iterator[RankedTable]:
    for place, plan in enumerate(due, start=1):
        after_seconds, after_bytes = seconds + plan.cost_seconds, read + plan.cost_bytes
        has_most_left = not _beyond(budget, 2 * seconds, 2 * read)
        why = "" if has_most_left else _beyond(budget, after_seconds, after_bytes)
        if not why:
            seconds, read = after_seconds, after_bytes
        yield RankedTable(place=place, plan=plan, put_off=why)


def _beyond(budget: Effort, seconds: float, read: int) -> str:
    if budget.seconds is not None and seconds > budget.seconds:
        return f"put off, because it would make {seconds:.0f} s of the day's budget of {budget.seconds:.0f} s"
    if budget.bytes is not None and read > budget.bytes:
        return f"put off, because it would make {read:,} bytes of the day's budget of {budget.bytes:,}"
    return ""
