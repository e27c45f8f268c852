"""Builds a DAG for each of several declarations, so that one that Airflow cannot take never hides another."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from airflow.sdk import DAG

from sluice.declarations.load_declarations import LoadedStream
from sluice.errors import DeclarationError
from sluice_airflow.dag_builders.broken_declarations import broken_declaration_dags


def build_stream_dags(streams: Iterable[LoadedStream], build: Callable[[LoadedStream], DAG]) -> dict[str, DAG]:
    """The DAGs of streams by their ids, in the order of the streams' names.

    Parameters
    ----------
    build: makes the DAG of one stream. When it raises, a DAG tagged `broken` tells why.
    """
    dags = (_built(loaded, build) for loaded in sorted(streams, key=lambda loaded: loaded.name))
    return {dag.dag_id: dag for dag in dags}


def _built(loaded: LoadedStream, build: Callable[[LoadedStream], DAG]) -> DAG:
    try:
        return build(loaded)
    except Exception as error:  # noqa: BLE001  # whatever Airflow refuses in one DAG would else remove all DAGs of the file
        problem = DeclarationError(f"Airflow refuses the DAG of this declaration: {error}", location=loaded.location())
        return broken_declaration_dags({loaded.file: [problem]}, folder=loaded.folder)[0]
