"""One Spark application for many work items, several at a time, each in a session of its own.

Purpose: an application runs hundreds of increments, backfills, refreshes, maintenance runs and checks, and keeps
nothing of any of them.

How it works: the first item that needs Spark opens the application. Each item gets a session with views, settings and
Iceberg catalogs of its own. At its end the catalogs are closed (`session_end`), and so are the connections by which
threads of the JVM have called Python.

What it does not do: Delta, the cores, and how often a task is tried are settings of the application (`EngineProfile`).
Frames that an item has left cached are dropped when no item runs: Spark's cache does not say whose they are.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from pyspark.sql import SparkSession

from sluice.declarations.engine_declaration import StateDeclaration
from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.settings import Settings
from sluice_spark.session.call_sites import call_sites, choose_call_sites_by_context
from sluice_spark.session.item_context import named_in_jvm
from sluice_spark.session.jvm import close_idle_callbacks, jvm_of
from sluice_spark.session.session import deletion_conf, open_session
from sluice_spark.session.session_end import end_session
from sluice_spark.session.state_settings import choose_shuffle_partitions, state_conf


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProfile:
    """What all items of an application share: the parameters of `open_session` that Spark cannot change later."""

    name: str
    with_delta: bool = False
    cores: int | None = None
    repeats_tasks: bool = True
    ui_key: str | None = field(default=None, repr=False)


def _unobserved(_: SparkSession) -> None:
    """Continue; nothing waits for the application."""


class ItemSessions:
    """Gives each work item of an application a session, on the thread of the item.

    Parameters
    ----------
    profile: of the application.
    spark: a session of the application, if that is open already.
    opened: is called once, with a session of the application that is opened here, before the first item gets its own.
    """

    def __init__(
        self,
        profile: EngineProfile,
        *,
        spark: SparkSession | None = None,
        opened: Callable[[SparkSession], object] = _unobserved,
    ) -> None:
        self._profile = profile
        self._opened = opened
        self._first = spark
        self._running = 0
        self._changing = threading.Lock()

    @property
    def spark(self) -> SparkSession | None:
        """The session that the application was opened with; none before the first item that needs Spark."""
        return self._first

    @property
    def is_idle(self) -> bool:
        """Whether no item has a session."""
        return self._running == 0

    @property
    def ui_key(self) -> str | None:
        """Signs the requests to Spark's own UI of the application; none when it has none."""
        return self._profile.ui_key

    @contextmanager
    def session(
        self,
        settings: Settings,
        *,
        state: StateDeclaration | None = None,
        deletes_files: bool = False,
        names_call_sites: bool = False,
    ) -> Iterator[SparkSession]:
        """A session for the item of this thread; it is closed after the block, with all that the item has opened in it.

        Parameters
        ----------
        state: the declared state of a stateful stream.
        deletes_files, names_call_sites: as for `open_session`.

        Raises
        ------
        SettingsError: when pyspark, Spark and the jars are of different versions.
        """
        first = self._begin(settings)
        try:
            spark = _session_beside(first)
            try:
                _configure(spark, settings, state or StateDeclaration(), deletes_files=deletes_files)
                with named_in_jvm(spark), call_sites(named=names_call_sites):
                    yield spark
            finally:
                end_session(spark)
                _leave_thread(first)
        finally:
            self._end(first)

    @contextmanager
    def __call__(
        self, settings: Settings, declaration: StreamDeclaration, *, ui_key: str | None
    ) -> Iterator[SparkSession]:
        """The session of an increment (`Sessions`). ui_key: is the application's already."""
        with self.session(
            settings,
            state=declaration.state,
            deletes_files=False,
            names_call_sites=declaration.runs_python,
        ) as spark:
            yield spark

    def stop(self) -> None:
        """End the application. No item runs any more."""
        if self._first is not None:
            self._first.stop()

    def _begin(self, settings: Settings) -> SparkSession:
        with self._changing:
            if self._first is None:
                profile = self._profile
                self._first = open_session(
                    settings,
                    name=profile.name,
                    state=StateDeclaration(),
                    with_delta=profile.with_delta,
                    cores=profile.cores,
                    deletes_files=False,
                    repeats_tasks=profile.repeats_tasks,
                    names_call_sites=False,
                    ui_key=profile.ui_key,
                )
                choose_call_sites_by_context()
                self._opened(self._first)
            self._running += 1
            return self._first

    def _end(self, first: SparkSession) -> None:
        with self._changing:
            self._running -= 1
            if self._running == 0:
                first.catalog.clearCache()


def _session_beside(first: SparkSession) -> SparkSession:
    """Another session of an application, which is the active one of this thread."""
    spark = first.newSession()
    jvm_of(spark).org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)
    return spark


def _leave_thread(first: SparkSession) -> None:
    """Let this thread hold no session, and close what threads of its queries have opened."""
    jvm_of(first).org.apache.spark.sql.classic.SparkSession.clearActiveSession()
    close_idle_callbacks(first)


def _configure(spark: SparkSession, settings: Settings, state: StateDeclaration, *, deletes_files: bool) -> None:
    """Set what differs between items; the rest is the application's."""
    for name, value in (state_conf(state) | deletion_conf(settings.catalog, deletes_files=deletes_files)).items():
        spark.conf.set(name, value)
    choose_shuffle_partitions(spark, state)
