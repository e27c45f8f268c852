"""The local platform of the demo: starts the stack, then opens its ledger, its topic and Airflow."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from rich.console import Console

from sluice.declarations.load_declarations import load_declarations
from sluice.demo.airflow_api import AirflowAccess, AirflowApi, open_airflow_api
from sluice.demo.dag_runs import CHECKED_TABLES, DAGS, MAINTAINED_TABLES, DagRuns, Standstill
from sluice.demo.flights_topic import FlightsTopic
from sluice.demo.report import WhereToLook
from sluice.demo.stream_watch import GOLD, SILVER, STREAMS, StreamWatch
from sluice.errors import SettingsError
from sluice.launching.launchers import LocalLauncher
from sluice.ledger.backfill_attempts import recent_attempts
from sluice.ledger.batches import all_totals
from sluice.ledger.connection import Ledger, open_ledger
from sluice.ledger.maintenance_runs import newest_maintenance
from sluice.ledger.quality_checks import newest_quality
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

_ATTEMPTS = 50
"""More than a demo makes for one stream."""

_ITEMS = 100
"""More work items than a demo asks for."""


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
