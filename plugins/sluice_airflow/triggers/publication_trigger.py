"""Watches a table for what continuous streams publish on it, and raises an asset event for it.

The one trigger that DAG files import, because an asset names its watchers: what is heavy is imported when it runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

if TYPE_CHECKING:
    from sluice.ledger.announcements import UnannouncedPublications

VERSION = 1
POLL_SECONDS = 10.0
"""Between two looks, and so the least time between two events: what is published in between is announced together."""

_WRITERS_SECONDS = 60.0
"""How old the knowledge may be which streams write the table."""


class PublicationTrigger(BaseEventTrigger):
    """Fires for publications of continuous streams on a table, for ever.

    Streams that run by a schedule are not watched: their own task raises the event when it ends. What was announced is
    remembered in the ledger with the next look: Airflow keeps an event in memory for about a second before it stores
    it. A triggerer that dies meanwhile repeats the event, and none is lost.

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

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look again and again; an absent ledger is waited for."""
        from sluice.errors import LedgerError
        from sluice.ledger.announcements import observe_unannounced, record_announcement
        from sluice_airflow.composition import load_deployment

        ledger_url = load_deployment().ledger_url
        writers: Mapping[str, str] = {}
        loop = asyncio.get_running_loop()
        known_until = loop.time()
        is_away = False
        raised: list[UnannouncedPublications] = []
        while True:
            if loop.time() >= known_until:
                writers = await asyncio.to_thread(continuous_writers, self.table)
                known_until = loop.time() + _WRITERS_SECONDS
            try:
                while raised:
                    await record_announcement(ledger_url, raised[0])
                    raised.pop(0)
                for stream, output in writers.items():
                    publications = await observe_unannounced(ledger_url, table=self.table, stream=stream, output=output)
                    if publications is not None:
                        yield TriggerEvent(payload_of(publications))  # type: ignore[no-untyped-call]  # Airflow's own
                        raised.append(publications)
                is_away = False
            except LedgerError as error:
                if not is_away:
                    self.log.warning("Publications on %s cannot be watched: %s", self.table, error)
                is_away = True
            await asyncio.sleep(self.poll_seconds)


def payload_of(publications: UnannouncedPublications) -> dict[str, Any]:
    """What stands in the asset event's `extra`, under `payload`. A snapshot's id is text: it exceeds JSON's numbers."""
    return {
        "stream": publications.newest.stream,
        "publication_key": str(publications.newest),
        "batches": publications.batches,
        "rows": publications.rows,
        "snapshot_id": None if publications.snapshot_id is None else str(publications.snapshot_id),
        "watermark": None if publications.watermark is None else publications.watermark.isoformat(),
    }


def continuous_writers(table: str) -> dict[str, str]:
    """The continuous streams that write a table, each with its output."""
    from sluice.declarations.iceberg_output import IcebergOutput
    from sluice.declarations.load_declarations import load_declarations
    from sluice_airflow.composition import load_deployment

    declarations = load_declarations(load_deployment().settings.pipelines)
    return {
        name: output
        for name, stream in declarations.streams.items()
        if stream.declaration.mode == "continuous"
        for output, declared in stream.declaration.outputs.items()
        if isinstance(declared.output, IcebergOutput) and declared.output.table == table
    }
