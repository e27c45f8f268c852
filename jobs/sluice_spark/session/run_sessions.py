"""The Spark session of a stream's run: one that ends with the run, or one of an application that does work items."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from pyspark.sql import SparkSession

from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.settings import Settings
from sluice_spark.session.session import open_session


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
