"""A changed schema is one incident on a real ledger, until the declaration is changed."""

from __future__ import annotations

from dataclasses import replace

from tests.fakes.launcher import FakeLauncher
from tests.integration.supervision.test_reconcile_all import UNPAUSED, WANTED, declared, started

from sluice.declarations.loaded_declarations import LoadedStream
from sluice.ledger.connection import Ledger
from sluice.ledger.events import EventAction, EventSubject, recent_events
from sluice.ledger.source_schemas import SeenSchema, record_seen_schema
from sluice.ledger.stream_troubles import StreamTrouble, all_troubles
from sluice.supervision.platform_troubles import LOOKED_EVERY_MINUTES, subjects_beside_streams, troubles_beside_streams
from sluice.supervision.reconciler import reconcile_all
from sluice.supervision.supervisor import Supervisor

SUBJECT = "schema of records in flights"


def seen(ledger: Ledger, **fields: str) -> None:
    """The input is seen with these fields."""
    schema = SeenSchema(input="records", source="files in in", fields=fields, answer="It is read.")
    record_seen_schema(ledger, "flights", schema)


def a_turn(supervisor: Supervisor, *streams: LoadedStream) -> list[str]:
    """As many passes as it takes to look at each stream: the subjects that are alerted."""
    return [
        alert.stream
        for number in range(LOOKED_EVERY_MINUTES)
        for alert in reconcile_all(supervisor, declared(*streams), observe_dag=lambda _: UNPAUSED, number=number)
        if alert.reason == "schema changed"
    ]


def of_schemas(ledger: Ledger) -> list[StreamTrouble]:
    """What is open about schemas."""
    return [one for one in all_troubles(ledger) if one.reason == "schema changed"]


def test_each_change_is_one_incident_until_the_declaration_is_changed(
    supervisor: Supervisor, launcher: FakeLauncher, ledger: Ledger
) -> None:
    started(supervisor)
    seen(ledger, n="int")
    assert a_turn(supervisor, WANTED) == [], "the first schema is no change"

    seen(ledger, n="int", colour="string")
    assert a_turn(supervisor, WANTED) == [SUBJECT]
    assert a_turn(supervisor, WANTED) == []
    (trouble,) = troubles_beside_streams(ledger, subjects_beside_streams(declared(WANTED)) & {SUBJECT})
    assert "`colour` is new: string." in trouble.explanation
    assert "`sluice stream show flights` and its page have a patch" in trouble.explanation

    seen(ledger, n="long", colour="string")
    assert a_turn(supervisor, WANTED) == [SUBJECT], "another change is another incident"
    assert [one.explanation.count("`n` was int and is long") for one in of_schemas(ledger)] == [1]

    changed = replace(WANTED, digest="another")
    assert a_turn(supervisor, changed) == []
    assert of_schemas(ledger) == []
    actions = [event.action for event in recent_events(ledger, EventSubject.STREAM, "flights", limit=50)]
    assert actions.count(EventAction.SEE_SCHEMA) == 2
    assert (actions.count(EventAction.ALERT), actions.count(EventAction.RECOVER)) == (2, 2)


def test_what_is_open_of_a_stream_that_is_gone_is_cleared(
    supervisor: Supervisor, launcher: FakeLauncher, ledger: Ledger
) -> None:
    started(supervisor)
    seen(ledger, n="int")
    seen(ledger, n="long")
    assert a_turn(supervisor, WANTED) == [SUBJECT]

    a_turn(supervisor)

    assert of_schemas(ledger) == []
