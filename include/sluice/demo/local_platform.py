"""The local platform of the demo: started, opened, and prepared with tables, reference data, topic and plan."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from threading import Event

import pyarrow as pa
from pyiceberg.catalog import Catalog
from rich.console import Console

from sluice.declarations.load_declarations import load_declarations
from sluice.declarations.loaded_declarations import all_tables
from sluice.demo.airflow_api import (
    CHECKED_TABLES,
    DAGS,
    MAINTAINED_TABLES,
    AirflowAccess,
    AirflowApi,
    DagRuns,
    Standstill,
    open_airflow_api,
)
from sluice.demo.flights_data import read_airlines, read_planes
from sluice.demo.flights_topic import FlightsTopic, NextReplay, next_replay
from sluice.demo.report import GOLD, SILVER, STREAMS, YEAR_IS_OVER, DemoStep, StreamWatch, WhereToLook
from sluice.errors import SettingsError
from sluice.launching.launchers import LocalLauncher
from sluice.ledger.backfill_attempts import recent_attempts
from sluice.ledger.batches import all_totals
from sluice.ledger.connection import Ledger, open_ledger
from sluice.ledger.maintenance_runs import newest_maintenance
from sluice.ledger.recorded_checks import newest_quality
from sluice.ledger.runs import newest_runs
from sluice.ledger.work_items import find_items
from sluice.settings import KafkaConnection, Settings, load_settings
from sluice.sources.source_heads import SourceHeads
from sluice.stack.credentials import AIRFLOW_USER, read_credentials
from sluice.stack.environment import load_environment
from sluice.stack.folder import stack_folder
from sluice.stack.orchestration import stack_home, up
from sluice.stack.stack_status import Display, LiveDisplay, PlainDisplay, SilentDisplay, observe_stack
from sluice.stack.surroundings import demo_pipelines, surroundings_of
from sluice.tables.catalog import open_catalog
from sluice.tables.declared_tables import create_or_evolve_table

_ATTEMPTS = 50
"""More than a demo makes for one stream."""

_ITEMS = 100
"""More work items than a demo asks for."""


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


def observe_moves(ledger: Ledger, airflow: AirflowApi) -> object:
    """The batches, runs and work items in the ledger, and the states of the tasks that the demo waits for.

    Heartbeats are left out: a driver that hangs sends them too.

    Raises
    ------
    DemonstrationError: when Airflow does not answer.
    """
    return (
        [(run.run_id, run.state) for run in newest_runs(ledger)],
        all_totals(ledger, STREAMS),
        [recent_attempts(ledger, stream, limit=_ATTEMPTS) for stream in (SILVER, GOLD)],
        find_items(ledger, limit=_ITEMS),
        [newest_maintenance(ledger, table) for table in MAINTAINED_TABLES],
        [newest_quality(ledger, table) for table in CHECKED_TABLES],
        airflow.observe_tasks(DAGS),
    )


KAFKA_CONNECTION = "flights_kafka"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalPlatform:
    """The running platform. stopped: set when the demo is to end early; every wait ends then."""

    settings: Settings
    ledger: Ledger
    topic: FlightsTopic
    airflow: AirflowApi
    standstill: Standstill
    stopped: Event

    @property
    def dag_runs(self) -> DagRuns:
        """Starts runs of DAGs and waits for them."""
        return DagRuns(airflow=self.airflow, standstill=self.standstill)


def start_stack(console: Console | None) -> AirflowAccess:
    """Start the services of the local stack that do not run, and add its environment to the process.

    Parameters
    ----------
    console: shows the state of each service; None shows nothing.

    Raises
    ------
    StackError: when a service cannot be started; the services that this call started are stopped.
    """
    with _display(console) as display:
        # A person may run it from the folder of their own project.
        pipelines = os.environ.get("SLUICE_PIPELINES") or str(demo_pipelines(stack_home()))
        here = surroundings_of({**os.environ, "SLUICE_PIPELINES": pipelines}, working_folder=Path.cwd())
        report = up(services=None, here=here, display=display)
    folder = stack_folder()
    os.environ.update(load_environment(folder.data))
    password = read_credentials(folder.credentials).airflow_admin_password
    return AirflowAccess(url=report.airflow_url, user=AIRFLOW_USER, password=password)


@contextmanager
def open_platform(access: AirflowAccess, *, stopped: Event) -> Iterator[LocalPlatform]:
    """Open the platform that the environment describes; it is closed when the block ends.

    Raises
    ------
    SettingsError: when the environment does not describe the demo's platform.
    DemonstrationError: when Airflow rejects the login.
    """
    settings = load_settings()
    with (
        open_ledger(settings.ledger_url) as ledger,
        open_airflow_api(access) as airflow,
    ):
        yield LocalPlatform(
            settings=settings,
            ledger=ledger,
            topic=flights_topic(settings),
            airflow=airflow,
            standstill=Standstill(lambda: observe_moves(ledger, airflow), stopped=stopped),
            stopped=stopped,
        )


def flights_topic(settings: Settings) -> FlightsTopic:
    """The topic of the flights in a deployment.

    Raises
    ------
    SettingsError: when the deployment has no connection of this name.
    """
    kafka = settings.connections.get(KAFKA_CONNECTION)
    if not isinstance(kafka, KafkaConnection):
        raise SettingsError(
            f"SLUICE_CONNECTIONS__{KAFKA_CONNECTION.upper()}__BOOTSTRAP_SERVERS is not set.",
            next_step="Start the local stack with `sluice stack up`; it sets it.",
        )
    return FlightsTopic(connection=kafka)


def is_stack_running() -> bool:
    """Whether every service of the local stack is healthy. If so, its environment is added to the process."""
    if not stack_folder().environment.exists() or not observe_stack().is_healthy:
        return False
    os.environ.update(load_environment(stack_folder().data))
    return True


def watch_streams(platform: LocalPlatform) -> StreamWatch:
    """The observer of the demo's continuous streams.

    Raises
    ------
    UsageError: when one is not declared.
    """

    declarations = load_declarations(platform.settings.pipelines)
    return StreamWatch(
        streams=tuple(declarations.stream(name) for name in STREAMS),
        ledger=platform.ledger,
        launcher=LocalLauncher(ledger_url=platform.settings.ledger_url.get_secret_value()),
        heads=SourceHeads(platform.settings),
    )


def where_to_look(access: AirflowAccess) -> WhereToLook:
    """The addresses that a person opens after the demo."""
    return WhereToLook(
        airflow_url=access.url,
        airflow_user=access.user,
        airflow_login_file=str(stack_folder().data / "airflow" / "passwords.json"),
        quality_reports=f"{access.url.rstrip('/')}/plugin/streams/sluice/quality",
    )


def _display(console: Console | None) -> AbstractContextManager[Display]:
    if console is None:
        return nullcontext(SilentDisplay())
    return LiveDisplay(console) if console.is_terminal else nullcontext(PlainDisplay(console))


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
