"""Tables as Airflow assets: the name under which one DAG says that it wrote what another one waits for."""

from __future__ import annotations

from collections.abc import Iterable

from airflow.sdk import Asset, AssetWatcher

from sluice_airflow.triggers.publication_trigger import PublicationTrigger

CATALOG = "lakehouse"
"""The catalog in an asset's address. It is the same in every deployment, so that DAGs of other teams can name it."""


def table_asset(table: str) -> Asset:
    """The asset of a table, with the watcher that turns the publications of continuous streams into asset events.

    Every use of an asset must name the same watchers: Airflow takes away those that a later parsed DAG does not name.

    Parameters
    ----------
    table: `<namespace>.<table>`.
    """
    namespace, _, name = table.partition(".")
    watcher = AssetWatcher(name=f"publications on {table}", trigger=PublicationTrigger(table=table))
    return Asset(name=table, uri=f"sluice://{CATALOG}/{namespace}/{name}", watchers=[watcher])


def table_assets(tables: Iterable[str]) -> list[Asset]:
    """The assets of tables in their order, each once."""
    return [table_asset(table) for table in dict.fromkeys(tables)]
