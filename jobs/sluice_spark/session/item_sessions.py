"""One Spark application for many work items, several at a time, each in a session of its own that is closed at its end.

Purpose: an application runs hundreds of increments, backfills, refreshes, maintenance runs and checks, and keeps
nothing of any of them.

How it works: the first item that needs Spark opens the application. Each item gets a session with views, settings and
Iceberg catalogs of its own. At its end the session is closed (`end_session`), and so are the connections by which
threads of the JVM have called Python. A query of a stream works in a copy of its session, with catalogs of its own,
which is closed in the same way.

Spark closes a session only with its application. What it keeps of each until then: the Iceberg catalogs that the
session has loaded, each with threads, HTTP clients and S3 clients of its own, and the session's bus of streaming
events, to which every event of the application is passed. Threads of Spark's pools hold whichever session was active
where they were made, for as long as they live, and with it all that it has planned. So an ended session is emptied.

What it does not do: Delta, the cores, and how often a task is tried are settings of the application (`EngineProfile`).
Frames that an item has left cached are dropped when no item runs: Spark's cache does not say whose they are.

Each line of the application's log names the item that its thread works for. In Python that is a context variable.
Python 3.11 does not hand the context on to threads, so an application asks for that
once (`hand_context_on`), as `python -X thread_inherit_context=1` does from 3.14 on. What the JVM calls in Python, on
threads of its own, is wrapped by whoever passes it to Spark (`in_this_context`).

In the JVM it is a value of log4j's thread context, which threads inherit, and a local property of Spark, from which
tasks have it. A thread of a pool names the item for which it was made.

Source: https://spark.apache.org/docs/4.1.0/configuration.html#configuring-logging (`mdc.`), and
https://docs.python.org/3.14/using/cmdline.html#cmdoption-X (`thread_inherit_context`)
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar
from uuid import UUID

import pyspark.errors.utils
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from sluice.declarations.run_declaration import StateDeclaration
from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.settings import Settings
from sluice.work.pools import EngineProfile, item_label
from sluice_spark.session.jvm import close_idle_callbacks, jvm_of, private_field
from sluice_spark.session.session import deletion_conf, open_session
from sluice_spark.session.state_settings import choose_shuffle_partitions, state_conf

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject

_P = ParamSpec("_P")
_T = TypeVar("_T")

_item: ContextVar[str] = ContextVar("item", default="")

MDC_KEY = "mdc.item"
"""The key in log4j's thread context, and the name of Spark's local property. `log4j2.properties` has it, too."""


@contextmanager
def in_item(item: UUID) -> Iterator[None]:
    """Work for an item: lines that are logged in the block, and in threads that begin in it, name the item."""
    token = _item.set(item_label(item))
    try:
        yield
    finally:
        _item.reset(token)


@contextmanager
def named_in_jvm(spark: SparkSession) -> Iterator[None]:
    """Let the JVM name the item of this thread in what it logs: in this thread, in those that begin in the block, in
    tasks. Nothing changes without an item."""
    item = _item.get()
    if not item:
        yield
        return
    named = jvm_of(spark).org.apache.logging.log4j.ThreadContext
    named.put(MDC_KEY, item)
    spark.sparkContext.setLocalProperty(MDC_KEY, item)
    try:
        yield
    finally:
        spark.sparkContext.setLocalProperty(MDC_KEY, None)  # type: ignore[arg-type]  # it removes the property
        named.remove(MDC_KEY)


def name_item(record: logging.LogRecord) -> bool:
    """A filter of a log handler, which gives each record its `item`: `[3f2b8c1d] `, or nothing."""
    item = _item.get()
    record.item = f"[{item}] " if item else ""
    return True


def in_this_context(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """The function in a copy of the present context, for calls that come from another thread."""
    context = copy_context()

    def call(*arguments: _P.args, **named: _P.kwargs) -> _T:
        return context.copy().run(function, *arguments, **named)

    return call


def hand_context_on() -> None:
    """Let threads of this process inherit the context of the thread that starts them, and let each call that is given
    to a pool of threads have the context of whoever gives it. For the main module of an application, at its start."""
    start, submit = threading.Thread.start, ThreadPoolExecutor.submit

    def start_in_context(thread: threading.Thread) -> None:
        run = in_this_context(thread.run)

        def run_once() -> None:
            del thread.run  # the instance's, which would keep the thread itself
            run()

        thread.run = run_once  # type: ignore[method-assign]
        start(thread)

    def submit_in_context(
        pool: ThreadPoolExecutor, function: Callable[_P, _T], /, *arguments: _P.args, **named: _P.kwargs
    ) -> Future[_T]:
        return submit(pool, in_this_context(function), *arguments, **named)

    setattr(threading.Thread, "start", start_in_context)  # noqa: B010  # mypy compares the names of arguments
    setattr(ThreadPoolExecutor, "submit", submit_in_context)  # noqa: B010


_log = logging.getLogger(__name__)

_DEFAULTS = EngineProfile()


def _unobserved(_: SparkSession) -> None:
    """Continue; nothing waits for the application."""


class ItemSessions:
    """Gives each work item of an application a session, on the thread of the item.

    Parameters
    ----------
    profile: the settings that all items share, since Spark cannot change them later.
    name: of the application. ui_key: signs the requests to Spark's own UI of the application; none when it has none.
    spark: a session of the application, if that is open already.
    opened: is called once, with a session of the application that is opened here, before the first item gets its own.
    """

    def __init__(
        self,
        profile: EngineProfile = _DEFAULTS,
        *,
        name: str,
        ui_key: str | None = None,
        spark: SparkSession | None = None,
        opened: Callable[[SparkSession], object] = _unobserved,
    ) -> None:
        self._profile, self._name = profile, name
        self.ui_key = ui_key
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
                self._first = open_session(
                    settings,
                    name=self._name,
                    state=StateDeclaration(),
                    with_delta=self._profile.with_delta,
                    cores=self._profile.engine.cores,
                    deletes_files=False,
                    repeats_tasks=self._profile.repeats_tasks,
                    names_call_sites=False,
                    ui_key=self.ui_key,
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


_are_named: ContextVar[bool] = ContextVar("names_call_sites", default=False)
"""Whether an error of Spark says which line of Python has built the expression that failed. PySpark asks the setting of
whichever session is active first, and keeps the answer for the process."""


def choose_call_sites_by_context() -> None:
    """Let PySpark ask the context of the thread instead. For an application of many items."""
    pyspark.errors.utils.is_debugging_enabled = _are_named.get


@contextmanager
def call_sites(*, named: bool) -> Iterator[None]:
    """Whether they are named in the block, and in what has its context."""
    token = _are_named.set(named)
    try:
        yield
    finally:
        _are_named.reset(token)


_CATALOG_MANAGER = "org.apache.spark.sql.connector.catalog.CatalogManager"
_CACHING_CATALOG = "org.apache.iceberg.CachingCatalog"
_ICEBERG = "org.apache.iceberg.spark.source.HasIcebergCatalog"
_SESSION = "org.apache.spark.sql.classic.SparkSession"
_STREAMS = "org.apache.spark.sql.classic.StreamingQueryManager"


def end_session(spark: SparkSession) -> None:
    """Close what the application would keep of a session.

    A step that fails is logged, and the others follow: the outcome of the session's work is known by then.

    Parameters
    ----------
    spark: it is not used any more.
    """
    _take(_STEPS, jvm_of(spark), spark._jsparkSession)


def end_copy_of_query(spark: SparkSession, query: StreamingQuery) -> None:
    """Close what the application would keep of the copy of a session in which a query has worked.

    Parameters
    ----------
    spark: the session of the query. query: it has ended.
    """
    _take(_STEPS_OF_COPY, jvm_of(spark), query._jsq.streamingQuery().sparkSessionForStream())


Step = Callable[[Any, "JavaObject"], None]
"""Takes the packages of the JVM and a session of Java."""


def _take(steps: tuple[Step, ...], jvm: Any, session: JavaObject) -> None:
    for step in steps:
        try:
            step(jvm, session)
        except (Py4JError, PySparkException):
            _log.exception("a session could not be closed completely (%s)", step.__name__.strip("_"))


def _stop_queries(_jvm: Any, session: JavaObject) -> None:
    for query in session.streams().active():
        _log.warning("the query %s still ran at the end of its session", query.id())
        query.stop()


def _leave_event_bus(jvm: Any, session: JavaObject) -> None:
    """Take the session's bus of streaming events off the application's one."""
    bus = private_field(jvm, _STREAMS, "listenerBus").get(session.sessionState().streamingQueryManager())
    session.sparkContext().listenerBus().removeListener(bus)


def _close_catalogs(jvm: Any, session: JavaObject) -> None:
    """Close the Iceberg catalogs of the session. What sessions share, Iceberg counts, and closes with the last one."""
    catalogs = private_field(jvm, _CATALOG_MANAGER, "catalogs").get(session.sessionState().catalogManager())
    is_iceberg = jvm.java.lang.Class.forName(_ICEBERG).isInstance
    for plugin in list(jvm.scala.jdk.javaapi.CollectionConverters.asJava(catalogs).values()):
        if is_iceberg(plugin):
            _close(jvm, plugin.icebergCatalog())


def _close(jvm: Any, catalog: JavaObject) -> None:
    if catalog.getClass().getName() == _CACHING_CATALOG:  # it does not close what it wraps
        catalog = private_field(jvm, _CACHING_CATALOG, "catalog").get(catalog)
    if jvm.java.lang.Class.forName("java.lang.AutoCloseable").isInstance(catalog):
        catalog.close()


def _empty(jvm: Any, session: JavaObject) -> None:
    """Let go of all that the session has resolved, planned and loaded: its views, functions, settings and catalogs.

    It gets those of the application's first session instead: threads of pools read settings of the session that was
    active where they were made, whosever work they do.
    """
    first = jvm.org.apache.spark.sql.classic.SparkSession.getDefaultSession().get()
    if not first.equals(session):
        for name in ("sessionState", "conf"):
            private_field(jvm, _SESSION, name).set(session, getattr(first, name)())
        private_field(jvm, _SESSION, "parentSessionState").set(session, jvm.scala.Option.empty())


_STEPS: tuple[Step, ...] = (_stop_queries, _leave_event_bus, _close_catalogs, _empty)
_STEPS_OF_COPY: tuple[Step, ...] = (_close_catalogs, _empty)
