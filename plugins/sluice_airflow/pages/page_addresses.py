"""Where the pages lie: below Airflow's own address, and in a frame of Airflow's UI. Light: every process imports it."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    from fastapi import Request

PREFIX = "/sluice"
"""Where the application lies below Airflow's address. Airflow mounts it there; the login does not come with it."""

ROUTE = "streams"
"""The page in Airflow's UI that shows the application in a frame: `/plugin/streams/…`."""


def stream_address(stream: str) -> str:
    """Where Airflow's UI shows the page of a stream, relative to Airflow's own address."""
    return f"plugin/{ROUTE}{PREFIX}/streams/{quote(stream)}"


def quality_address(table: str) -> str:
    """Where Airflow's UI shows what the rules of a table found, relative to Airflow's own address."""
    return f"plugin/{ROUTE}{PREFIX}/tables/{quote(table)}/quality"


def base_of(request: Request) -> str:
    """The path below which the application lies, as links need it."""
    return quote(request.scope.get("root_path", ""))


def airflow_of(request: Request) -> str:
    """The path below which Airflow's own pages lie."""
    return base_of(request).removesuffix(PREFIX) + "/"


def dag_run_link(launched_by: str) -> str:
    """The page of the task that started a run, from the name that the ledger has of it; empty when it was another."""
    words = launched_by.removeprefix("airflow: ").split(", ", 1)
    if not launched_by.startswith("airflow: ") or len(words) != 2:
        return ""
    dag, dag_run = (quote(word, safe="") for word in words)
    return f"dags/{dag}/runs/{dag_run}"
