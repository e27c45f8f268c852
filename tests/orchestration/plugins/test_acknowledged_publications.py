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


@pytest.mark.parametrize("is_ours", [True, False], ids=["its own ledger", "the ledger of another Airflow"])
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
    monkeypatch: pytest.MonkeyPatch, outcome: AdvanceOutcome, is_announced: bool, is_ours: bool
) -> None:
    recorded: list[UnannouncedPublications] = []

    async def record(ledger_url: str, announced: UnannouncedPublications) -> None:
        del ledger_url
        recorded.append(announced)

    async def owns_ledger() -> bool:
        return is_ours

    deployment = SimpleNamespace(ledger_url="postgresql://here", owns_ledger=owns_ledger)
    monkeypatch.setattr(publication_stream, "load_deployment", lambda: deployment)
    monkeypatch.setattr(publication_stream, "record_announcement", record)
    looks = PublicationStream(table="silver.flights", poll_seconds=1.0)

    asyncio.run(looks.advance([AdvanceItem(broker_payload=FOUND, outcome=outcome)]))

    assert recorded == ([FOUND] if is_announced and is_ours else [])


@pytest.mark.parametrize("is_ours", [True, False])
def test_another_airflow_raises_no_event(monkeypatch: pytest.MonkeyPatch, is_ours: bool) -> None:
    """Its consumers would take what those of the owner wait for."""

    async def owns_ledger() -> bool:
        return is_ours

    async def observe(ledger_url: str, **_: str) -> UnannouncedPublications:
        del ledger_url
        return FOUND

    async def first_event() -> bool:
        looks = PublicationStream(table="silver.flights", poll_seconds=0.01)
        try:
            await asyncio.wait_for(anext(looks.open_stream()), timeout=0.5)
        except TimeoutError:
            return False
        return True

    deployment = SimpleNamespace(ledger_url="postgresql://here", owns_ledger=owns_ledger)
    monkeypatch.setattr(publication_stream, "observe_unannounced", observe)
    monkeypatch.setattr(publication_stream, "continuous_writers", lambda table: {"flights": table})
    monkeypatch.setattr(publication_stream, "load_deployment", lambda: deployment)
    assert asyncio.run(first_event()) is is_ours
