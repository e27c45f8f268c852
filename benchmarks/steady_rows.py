"""Rows that are sent at a steady rate, and a look at the files of staged batches while they are there."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from uuid import uuid4

from confluent_kafka import Producer
from pyiceberg.table.snapshots import Snapshot

from sluice.publication.staged_batch import StagedOutput
from sluice.settings import Settings
from sluice.sources.kafka_clients import ClientSettings
from sluice.tables.catalog import open_catalog
from sluice.tables.declared_tables import load_table as find_table


@dataclass(slots=True, kw_only=True)
class SteadyProducer:
    """Sends numbered rows at a steady rate until it is stopped. sent: how many were sent."""

    client: ClientSettings
    topic: str
    rows_per_second: int
    sent: int = 0
    _over: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Send while the block runs; when it ends, every row is with the broker."""
        thread = threading.Thread(target=self._work, name="producer", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()

    def _work(self) -> None:
        producer = Producer({**self.client, "linger.ms": 20, "acks": "all"})
        began = time.monotonic()
        while not self._over.wait(0.05):
            due = round((time.monotonic() - began) * self.rows_per_second)
            while self.sent < due:
                row = {"id": self.sent, "sent_at": datetime.now(UTC).isoformat(), "payload": uuid4().hex * 3}
                producer.produce(self.topic, value=json.dumps(row), partition=self.sent % 2)
                self.sent += 1
            producer.poll(0)
        if left := producer.flush(60):
            raise SystemExit(f"{left} rows did not reach the broker")


@dataclass(slots=True, kw_only=True)
class StagingWatch:
    """Notes the files of every staged batch before the staging table forgets it."""

    settings: Settings
    output: StagedOutput
    seen: dict[int, tuple[int, int]] = field(default_factory=dict)
    _over: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Look every second while the block runs."""
        thread = threading.Thread(target=self._work, name="staging-watch", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()

    def _work(self) -> None:
        catalog = open_catalog(self.settings)
        while not self._over.wait(1.0):
            table = find_table(catalog, self.output.staging)
            for snapshot in table.snapshots() if table is not None else []:
                if files_of(snapshot)[0]:
                    self.seen[snapshot.snapshot_id] = files_of(snapshot)


def files_of(snapshot: Snapshot) -> tuple[int, int]:
    """How many files a snapshot added, and their bytes."""
    entries = snapshot.summary.additional_properties if snapshot.summary is not None else {}
    return int(entries.get("added-data-files", 0)), int(entries.get("added-files-size", 0))
