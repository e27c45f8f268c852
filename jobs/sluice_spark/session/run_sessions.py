"""The Spark session of a stream's run: one that ends with the run, or a fresh one of a driver that is kept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from pyspark.sql import SparkSession

from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.settings import Settings
from sluice_spark.session.session import another_session, open_session


class Sessions(Protocol):
    """Opens the session of a run; after the block it is not used any more."""

    def __call__(
        self, settings: Settings, declaration: StreamDeclaration, *, ui_key: str | None
    ) -> AbstractContextManager[SparkSession]: ...


@contextmanager
def own_session(settings: Settings, declaration: StreamDeclaration, *, ui_key: str | None) -> Iterator[SparkSession]:
    """A session whose application ends with the block.

    Parameters
    ----------
    ui_key: as for `open_session`.
    """
    spark = session_of(settings, declaration, ui_key=ui_key)
    try:
        yield spark
    finally:
        spark.stop()


def session_of(settings: Settings, declaration: StreamDeclaration, *, ui_key: str | None) -> SparkSession:
    """Open the session of a stream's driver, as its declaration asks for."""
    return open_session(
        settings,
        name=declaration.stream,
        state=declaration.state,
        with_delta=declaration.uses_delta,
        cores=declaration.engine.cores,
        deletes_files=False,
        repeats_tasks=not declaration.hands_on_records,
        names_call_sites=declaration.runs_python,
        ui_key=ui_key,
    )


class KeptApplication:
    """One Spark application for many runs of a stream, each with a session of its own: views and settings of a run are
    not there in the next one."""

    def __init__(self) -> None:
        self._first: SparkSession | None = None

    @contextmanager
    def session(
        self, settings: Settings, declaration: StreamDeclaration, *, ui_key: str | None
    ) -> Iterator[SparkSession]:
        """A session of the application, which is opened by the first run."""
        if self._first is None:
            self._first = session_of(settings, declaration, ui_key=ui_key)
        yield another_session(self._first, declaration.state)

    @property
    def spark(self) -> SparkSession | None:
        """The session that the application was opened with; none before the first run."""
        return self._first

    def stop(self) -> None:
        """End the application."""
        if self._first is not None:
            self._first.stop()
