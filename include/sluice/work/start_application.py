"""Starts an application for waiting items, a driver that outlives its starter, and waits for items as commands do."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from sluice.backfill.intervals import followers_of, parse_interval
from sluice.declarations.load_declarations import load_declarations
from sluice.errors import LaunchError, SettingsError
from sluice.launching.launch_settings import ui_environment
from sluice.launching.launcher_port import Launcher, LaunchRequest
from sluice.launching.spark_submit import RunWork, SparkConnection, spark_submit_command
from sluice.ledger.applications import begin_application, end_application
from sluice.ledger.connection import Ledger
from sluice.ledger.work_items import find_pool, observe_items, withdraw_items
from sluice.ledger.work_tables import WorkListener
from sluice.ledger.work_values import NewItem, Pool, WorkObservation
from sluice.processes.deadline import Deadline
from sluice.settings import Settings
from sluice.work.pools import EngineProfile, FollowedLog, conf_of, pool_of, profile_of
from sluice.work.requests import (
    FindGaps,
    Increment,
    RefreshTable,
    RehearseCopy,
    ReplaceInterval,
    ReplayRecords,
    WorkRequest,
)

LOG_SECONDS = 0.3
"""Between two looks at the log of an item, which announces nothing."""

_LOOK_SECONDS = 5.0
"""Between two looks at an item that the ledger announces nothing about: its application may have died, and an
announcement may have been missed."""


def profile_for(request: WorkRequest, pipelines: Path) -> EngineProfile:
    """The engine settings for a request: those of its stream; for the work on a table the defaults.

    Parameters
    ----------
    pipelines: the folder of the declarations.

    Raises
    ------
    DeclarationError: when a file cannot be read.
    UsageError: when the stream is not declared, or the interval is none.
    """
    match request:
        case ReplaceInterval():
            declarations = load_declarations(pipelines)
            stream = declarations.stream(request.stream)
            followers = followers_of(declarations, stream, parse_interval(request.start, request.end))
            streams = [stream, *(one.stream for one in followers)]
            return profile_of(stream, with_delta=any(one.declaration.uses_delta for one in streams))
        case Increment():
            return profile_of(
                load_declarations(pipelines, only=request.stream).stream(request.stream), is_increment=True
            )
        case RefreshTable() | FindGaps() | ReplayRecords() | RehearseCopy():
            return profile_of(load_declarations(pipelines, only=request.stream).stream(request.stream))
        case _:
            return EngineProfile()


_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkQueue:
    """The queue as one who asks uses it.

    connections: returns the Spark connection of a name.
    launcher: starts applications.
    asked_by: the run of a DAG, or the command and its user.
    """

    settings: Settings
    ledger: Ledger
    connections: Callable[[str], SparkConnection]
    launcher: Launcher
    asked_by: str

    def item(self, request: WorkRequest, profile: EngineProfile) -> NewItem:
        """What to ask for, so that an application with these engine settings does it.

        Raises
        ------
        SettingsError: when the Spark connection is missing or wrong.
        UsageError: when the request is malformed.
        """
        return NewItem(
            kind=request.kind,
            subject=request.subject,
            payload=request.payload(),
            asked_by=self.asked_by,
            pool=self.pool(profile),
            priority=request.priority,
            linger_seconds=profile.linger_seconds,
        )

    def pool(self, profile: EngineProfile) -> Pool:
        """The pool of items with these engine settings, as the deployment is now.

        Raises
        ------
        SettingsError: when the Spark connection is missing or wrong.
        """
        return pool_of(profile, self.settings, self.connections(profile.connection))

    def start_application(self, item: str, pool: Pool, profile: EngineProfile) -> str | None:
        """Start an application for a waiting item, unless one takes it, or is being started.

        Returns
        -------
        Its id; none when it is not needed.

        Raises
        ------
        LaunchError: when it cannot be started; the next one who waits may try it.
        SettingsError: when the Spark connection is missing or wrong.
        """
        connection = self.connections(profile.connection)
        application = begin_application(self.ledger, item, started_by=self.asked_by)
        if application is None:
            return None
        try:
            self.launcher.launch(self._request(application, pool, profile, connection))
        except (LaunchError, SettingsError) as error:
            end_application(self.ledger, application, reason=f"it could not be started: {error.message}")
            raise
        _log.info("application %s was started for the pool %s", application, pool.name)
        return application

    def _request(
        self, application: str, pool: Pool, profile: EngineProfile, connection: SparkConnection
    ) -> LaunchRequest:
        settings, conf = self.settings, conf_of(profile, self.settings, connection)
        job = RunWork(
            application_id=application,
            pool=pool.name,
            with_delta="yes" if profile.with_delta else "no",
            repeats_tasks="yes" if profile.repeats_tasks else "no",
            ui="yes" if profile.ui_of else "no",
            cores=str(profile.engine.cores or ""),
        )
        request = LaunchRequest(
            run_id=application,
            stream=pool.name,
            command=(str(settings.home / job.application), *job.arguments()),
            environment={
                "PYSPARK_PYTHON": sys.executable,
                "PYSPARK_DRIVER_PYTHON": sys.executable,
                **(ui_environment(profile.engine, master=connection.master) if profile.ui_of else {}),
            },
            log_file=settings.logs / "work" / f"{pool.name}-{application[:8]}.log",
            is_application=True,
        )
        if connection.is_cluster:
            return replace(request, connection=profile.connection, conf=conf)
        name = f"sluice work {pool.name}"
        command = spark_submit_command(connection, job, home=settings.home, conf=conf, name=name)
        return replace(request, command=command)


@contextmanager
def asked_for(queue: WorkQueue, items: Sequence[str]) -> Iterator[None]:
    """Withdraw the items when the block ends by an interruption or an error."""
    try:
        yield
    except BaseException:  # also Ctrl-C: what is withdrawn stops, or is not begun
        withdraw_items(queue.ledger, items)
        raise


def await_item(
    queue: WorkQueue, item: str, profile: EngineProfile, *, on_line: Callable[[str], object], beside: Sequence[str] = ()
) -> WorkObservation:
    """Wait until an item has ended.

    Parameters
    ----------
    profile: the engine settings of the item, if an application has to be started.
    on_line: is called with each line that an application of this host logs about the item.
    beside: further items that are waited for afterwards, and looked at meanwhile so that they stay asked for.

    Raises
    ------
    LaunchError: when no application can be started, or none could do the item any more, because the files of the
        deployment have changed since it was asked for.
    SettingsError: when the Spark connection is missing or wrong.
    """
    log = FollowedLog(item=item, on_line=on_line)
    with WorkListener(queue.settings.ledger_url, [item]) as listener:
        while True:
            seen = observe_items(queue.ledger, [item, *beside])[item]
            if seen.needs_application and (pool := find_pool(queue.ledger, item)) is not None:
                _require_same_deployment(queue.pool(profile), pool)
                queue.start_application(item, pool, profile)
            log.read(seen)
            if not seen.state.is_open:
                time.sleep(LOG_SECONDS)  # the last lines: nothing says when the log has them all
                log.read(seen)
                return seen
            look_again = Deadline.after(_LOOK_SECONDS)
            while not listener.wait(LOG_SECONDS) and not look_again.is_over():
                log.read(seen)


def _require_same_deployment(now: Pool, asked_for: Pool) -> None:
    if now != asked_for:
        raise LaunchError(
            "The files or settings of the deployment have changed since the work was asked for, so no application that "
            "starts now would do it.",
            next_step="Run the command again.",
        )
