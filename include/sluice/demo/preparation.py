"""Prepares the demo: tables, reference data, topic and plan; and shows the plan without any change."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pyarrow as pa
from pyiceberg.catalog import Catalog

from sluice.declarations.load_declarations import load_declarations
from sluice.declarations.loaded_declarations import all_tables
from sluice.demo.demo_progress import DemoStep
from sluice.demo.flights_data import read_airlines, read_planes
from sluice.demo.flights_topic import FlightsTopic
from sluice.demo.local_platform import LocalPlatform, flights_topic, is_stack_running
from sluice.demo.replay_position import NextReplay, next_replay
from sluice.demo.report import YEAR_IS_OVER
from sluice.settings import load_settings
from sluice.tables.catalog import open_catalog
from sluice.tables.declared_tables import create_or_evolve_table


def prepare_tables(platform: LocalPlatform) -> None:
    """Create or evolve every declared table, and write the reference data.

    Raises
    ------
    DeclarationError: when a declaration is wrong.
    LakehouseError: when a table cannot be created or evolved.
    """
    declarations = load_declarations(platform.settings.pipelines)
    declarations.require_valid()
    catalog = open_catalog(platform.settings)
    for declaration in all_tables(declarations).values():
        create_or_evolve_table(catalog, declaration)
    write_reference_data(catalog)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoPlan:
    """What a demo would do now.

    is_stack_running: whether the stack runs; if not, the position of the replay is unknown.
    upcoming: what would be sent; None when the year is over or the position is unknown.
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
            return "The stack does not run. The next days of the replay are read from Kafka once it runs."
        if self.upcoming is None:
            return YEAR_IS_OVER
        counted = Counter(record.kind for record in self.upcoming.missing)
        kinds = ", ".join(f"{count:,} {kind.value}" for kind, count in counted.items())
        return f"{len(self.upcoming.missing):,} records of {self.upcoming.plan.span} would be sent: {kinds}."


def plan_demo(*, days: int, seed: int) -> DemoPlan:
    """Determine what a demo would do now. Nothing is changed.

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
    """Create the topic, read what it holds, and plan the next records.

    Parameters
    ----------
    topic: created when it does not exist.
    days: how many days a new plan spans.
    seed: the seed of a new plan.

    Returns
    -------
    None when the whole year has been sent.
    """
    topic.create()
    return next_replay(topic.read(), days=days, seed=seed)


def write_reference_data(catalog: Catalog) -> list[str]:
    """Write the package's airlines and planes to the reference tables with pyiceberg; such small tables need no Spark.

    A table that holds them already is not changed.

    Parameters
    ----------
    catalog: holds `reference.airlines` and `reference.planes`.

    Returns
    -------
    The tables that were written.
    """
    contents = {"reference.airlines": read_airlines(), "reference.planes": read_planes()}
    return [table for table, content in contents.items() if _write(catalog, table, content)]


def _write(catalog: Catalog, name: str, content: pa.Table) -> bool:
    table = catalog.load_table(name)
    schema = table.schema().as_arrow()
    expected = content.select(schema.names).cast(schema)
    present = table.scan().to_arrow().cast(schema)
    if _sorted(present).equals(_sorted(expected)):
        return False
    if present.num_rows == 0:
        table.append(expected)
    else:
        table.overwrite(expected)
    return True


def _sorted(content: pa.Table) -> pa.Table:
    return content.sort_by([(content.schema.names[0], "ascending")]).combine_chunks()
