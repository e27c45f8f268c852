"""What continuous streams publish on a table, acknowledged once Airflow has stored the event that announces it.

    look ──► raised, remembered in memory ──► Airflow stores the asset event ──► `advance` records the announcement

A triggerer that ends before Airflow has stored an event loses nothing: nothing was recorded, so the next one raises it.
One that ends after that and before the record repeats it, within about a second; the publication key in the payload is
the same then. While the ledger is away the record waits, and nothing of that stream is raised a second time.

Only the Airflow that the ledger belongs to raises and records: the events of another would be lost to its consumers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from airflow.triggers.shared_stream import AdvanceItem, SharedStreamProducer

from sluice.declarations.load_declarations import load_declarations
from sluice.declarations.output_declaration import IcebergOutput
from sluice.errors import LedgerError
from sluice.ledger.announcements import UnannouncedPublications, observe_unannounced, record_announcement
from sluice_airflow.composition import load_deployment

_log = logging.getLogger(__name__)

_WRITERS_SECONDS = 60.0
"""How old the knowledge may be which streams write the table."""


class PublicationStream(SharedStreamProducer):
    """The publications on one table, as Airflow's triggerer listens to them.

    Parameters
    ----------
    table: `<namespace>.<table>`.
    poll_seconds: between two looks.
    """

    def __init__(self, *, table: str, poll_seconds: float) -> None:
        self._table = table
        self._poll_seconds = poll_seconds
        self._deployment = load_deployment()
        self._ledger_url = self._deployment.ledger_url
        self._raised: set[str] = set()
        self._unrecorded: list[UnannouncedPublications] = []
        self._recording = asyncio.Lock()
        self._is_away = False

    async def open_stream(self) -> AsyncIterator[tuple[dict[str, Any], UnannouncedPublications]]:
        """Look again and again, but at no stream of which an event is out; an absent ledger is waited for."""
        writers: Mapping[str, str] = {}
        loop = asyncio.get_running_loop()
        known_until = loop.time()
        while True:
            if loop.time() >= known_until:
                writers = await asyncio.to_thread(continuous_writers, self._table)
                known_until = loop.time() + _WRITERS_SECONDS
            try:
                is_ours = await self._deployment.owns_ledger()
                await self._record()
                for stream, output in writers.items():
                    if stream in self._raised or not is_ours:
                        continue
                    found = await observe_unannounced(self._ledger_url, table=self._table, stream=stream, output=output)
                    if found is not None:
                        self._raised.add(stream)
                        yield payload_of(found), found
                self._is_away = False
            except LedgerError as error:
                self._warn(error)
            await asyncio.sleep(self._poll_seconds)

    def get_advance_lane(self, broker_payload: UnannouncedPublications) -> str:
        """The events of one stream are acknowledged in their order."""
        return broker_payload.newest.stream

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        """Record what Airflow has stored; what it has not is raised again with the next look."""
        for publications, outcome in batch:
            if outcome.is_clean:
                self._unrecorded.append(publications)
            else:
                self._raised.discard(publications.newest.stream)
        try:
            await self._record()
        except LedgerError as error:
            self._warn(error)

    async def _record(self) -> None:
        if self._unrecorded and not await self._deployment.owns_ledger():
            self._unrecorded.clear()  # the Airflow that has the ledger now announces them to its own consumers
            return
        async with self._recording:  # a look and an acknowledgement may come together
            while self._unrecorded:
                await record_announcement(self._ledger_url, self._unrecorded[0])
                self._raised.discard(self._unrecorded.pop(0).newest.stream)

    def _warn(self, error: LedgerError) -> None:
        """Once for each time that the ledger is away."""
        if not self._is_away:
            _log.warning("Publications on %s cannot be watched: %s", self._table, error)
        self._is_away = True


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
    declarations = load_declarations(load_deployment().settings.pipelines)
    return {
        name: output
        for name, stream in declarations.streams.items()
        if stream.declaration.mode == "continuous"
        for output, declared in stream.declaration.outputs.items()
        if isinstance(declared.output, IcebergOutput) and declared.output.table == table
    }
