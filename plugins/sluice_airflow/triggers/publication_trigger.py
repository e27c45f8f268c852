"""Tables as Airflow assets, and the trigger that watches one for what continuous streams publish on it.

An asset is the name under which one DAG says that it wrote what another one waits for. This is the one trigger that DAG
files import, because an asset names its watchers: what is heavy is imported when it runs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Hashable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, AssetWatcher
from airflow.triggers.base import BaseEventTrigger, TriggerEvent

if TYPE_CHECKING:
    from airflow.triggers.shared_stream import SharedStreamProducer

VERSION = 1
POLL_SECONDS = 10.0
"""Between two looks, and so the least time between two events: what is published in between is announced together."""


class PublicationTrigger(BaseEventTrigger):
    """Fires for publications of continuous streams on a table, for ever.

    Streams that run by a schedule are not watched: their own task raises the event when it ends. It is a shared stream
    of Airflow in its acknowledged mode: the ledger remembers an announcement when Airflow has stored its event, and not
    before (`publication_stream`).

    Parameters
    ----------
    table: `<namespace>.<table>`.
    poll_seconds: between two looks.
    version: of these arguments.
    """

    def __init__(self, *, table: str, poll_seconds: float = POLL_SECONDS, version: int = VERSION) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow does not annotate it
        self.table = table
        self.poll_seconds = poll_seconds
        self.version = version

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The trigger's class, and the arguments that make it again."""
        kind = type(self)
        arguments = {"table": self.table, "poll_seconds": self.poll_seconds, "version": self.version}
        return f"{kind.__module__}.{kind.__qualname__}", arguments

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PublicationTrigger) and self.serialize() == other.serialize()

    def __hash__(self) -> int:
        return hash((self.table, self.poll_seconds, self.version))

    def shared_stream_key(self) -> Hashable:
        """Triggers of the same table share their looks."""
        return ("publications", self.table, self.poll_seconds)

    @classmethod
    def create_shared_stream_producer(cls, kwargs: Mapping[str, Any]) -> SharedStreamProducer:
        """Looks at the ledger, and learns what Airflow has stored."""
        from sluice_airflow.triggers.publication_stream import PublicationStream

        return PublicationStream(table=kwargs["table"], poll_seconds=kwargs["poll_seconds"])

    async def filter_shared_stream(self, shared_stream: AsyncIterator[Any]) -> AsyncIterator[TriggerEvent]:
        """Every publication on the table is an event."""
        async for payload in shared_stream:
            yield TriggerEvent(payload)  # type: ignore[no-untyped-call]  # Airflow's own

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Refuse to run alone: nothing would be acknowledged. Airflow calls `filter_shared_stream` instead."""
        raise RuntimeError("a PublicationTrigger runs as a shared stream of Airflow's triggerer only")
        yield  # an asynchronous generator, as Airflow wants it


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
