"""A publication counts as announced when Airflow has stored its event, and not before."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from airflow.triggers.shared_stream import AdvanceItem, AdvanceOutcome

from sluice.ledger.announcements import UnannouncedPublications
from sluice.ledger.batches import PublicationKey
from sluice_airflow.triggers import publication_stream
from sluice_airflow.triggers.publication_stream import PublicationStream

FOUND = UnannouncedPublications(
    table="silver.flights",
    newest=PublicationKey(stream="flights", generation=1, batch=7),
    batches=1,
    rows=9,
    snapshot_id=3,
)


@pytest.mark.parametrize(
    ("outcome", "is_announced"),
    [
        pytest.param(AdvanceOutcome(acked=1, failed=0, rejected=0), True, id="stored"),
        pytest.param(AdvanceOutcome(acked=0, failed=1, rejected=0), False, id="not stored in time"),
        pytest.param(AdvanceOutcome(acked=1, failed=1, rejected=0), False, id="not stored for everybody"),
        pytest.param(AdvanceOutcome(acked=0, failed=0, rejected=0), False, id="nobody listened"),
    ],
)
def test_an_event_that_airflow_did_not_store_is_not_recorded_as_announced(
    monkeypatch: pytest.MonkeyPatch, outcome: AdvanceOutcome, is_announced: bool
) -> None:
    recorded: list[UnannouncedPublications] = []

    async def record(ledger_url: str, announced: UnannouncedPublications) -> None:
        del ledger_url
        recorded.append(announced)

    monkeypatch.setattr(publication_stream, "load_deployment", lambda: SimpleNamespace(ledger_url="postgresql://here"))
    monkeypatch.setattr(publication_stream, "record_announcement", record)
    looks = PublicationStream(table="silver.flights", poll_seconds=1.0)

    asyncio.run(looks.advance([AdvanceItem(broker_payload=FOUND, outcome=outcome)]))

    assert recorded == ([FOUND] if is_announced else [])
