"""What must be there before the first flight leaves: the tables, the reference data, the topic, the plan."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from sluice.declarations.load_declarations import load_declarations
from sluice.demo.flights_topic import FlightsTopic
from sluice.demo.local_platform import LocalPlatform, flights_topic, is_stack_running
from sluice.demo.reference_data import write_reference_data
from sluice.demo.replay_position import NextReplay, next_replay
from sluice.demo.report import YEAR_IS_OVER
from sluice.demo.steps import DemoStep
from sluice.settings import load_settings


def prepare_tables(platform: LocalPlatform) -> None:
    """Create or evolve every declared table, and write the reference data.

    Raises
    ------
    DeclarationError: when a declaration is wrong.
    LakehouseError: when the catalog refuses.
    """
    from sluice.declarations.quarantine_table import all_tables
    from sluice.tables.catalog import open_catalog
    from sluice.tables.declared_tables import create_or_evolve_table

    declarations = load_declarations(platform.settings.pipelines)
    declarations.require_valid()
    catalog = open_catalog(platform.settings)
    for declaration in all_tables(declarations).values():
        create_or_evolve_table(catalog, declaration)
    write_reference_data(catalog)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoPlan:
    """What a demo would do now.

    is_stack_running: whether it is; only then is it known where the replay of the year stands.
    upcoming: what would be sent; unset when the year is over, or when it is not known.
    """

    is_stack_running: bool
    upcoming: NextReplay | None

    def as_json(self) -> dict[str, object]:
        """The plan for a program."""
        upcoming = self.upcoming
        return {
            "dry_run": True,
            "stack_is_running": self.is_stack_running,
            "steps": list(DemoStep),
            "days": str(upcoming.plan.span) if upcoming else None,
            "year_is_over": self.is_stack_running and upcoming is None,
            "records": Counter(record.kind for record in upcoming.missing) if upcoming else None,
        }

    def sentences(self) -> list[str]:
        """The plan for a person."""
        return [*(f"{number}. {step}" for number, step in enumerate(DemoStep, start=1)), "", self._replay_sentence()]

    def _replay_sentence(self) -> str:
        if not self.is_stack_running:
            return "The stack does not run; which days come next is read from Kafka when it does."
        if self.upcoming is None:
            return YEAR_IS_OVER
        counted = Counter(record.kind for record in self.upcoming.missing)
        kinds = ", ".join(f"{count:,} {kind.value}" for kind, count in counted.items())
        return f"To be sent are {len(self.upcoming.missing):,} records of {self.upcoming.plan.span}: {kinds}."


def plan_demo(*, days: int, seed: int) -> DemoPlan:
    """See what a demo would do now. Nothing is changed.

    Parameters
    ----------
    days: how many days a new plan spans.
    seed: the seed of a new plan.
    """
    if not is_stack_running():
        return DemoPlan(is_stack_running=False, upcoming=None)
    topic = flights_topic(load_settings())
    return DemoPlan(is_stack_running=True, upcoming=next_replay(topic.read(), days=days, seed=seed))


def prepare_replay(topic: FlightsTopic, *, days: int, seed: int) -> NextReplay | None:
    """Create the topic, see what it holds, and plan what comes next.

    Parameters
    ----------
    topic: created when it is not there.
    days: how many days a new plan spans.
    seed: the seed of a new plan.

    Returns
    -------
    None when the whole year has been sent.
    """
    topic.create()
    return next_replay(topic.read(), days=days, seed=seed)
