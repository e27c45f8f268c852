"""Ranks the tables that need maintenance by what it gains for its cost, within the budget of a day. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sluice.maintenance.maintenance_plan import MaintenancePlan


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
