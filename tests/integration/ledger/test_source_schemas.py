"""Which schema an input was last seen with: a change is an event with both sides, once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sluice.ledger.connection import Ledger
from sluice.ledger.events import EventObservation, EventSubject, recent_events
from sluice.ledger.source_schemas import (
    MOST_FIELDS,
    FieldChange,
    SeenSchema,
    record_seen_schema,
    source_schemas,
)

FIRST = SeenSchema(input="r", source="table a.b", fields={"n": "int", "gone": "date"}, answer="Planned.")
SECOND = replace(FIRST, fields={"n": "long", "new": "string"}, answer="Planned again.")


def events(ledger: Ledger) -> tuple[EventObservation, ...]:
    """The events of the stream, newest first."""
    return recent_events(ledger, EventSubject.STREAM, "flights", limit=20)


def test_the_first_schema_is_kept_and_is_no_change(ledger: Ledger) -> None:
    assert not record_seen_schema(ledger, "flights", FIRST)

    (seen,) = source_schemas(ledger, "flights")

    assert (seen.input, seen.source, dict(seen.fields), seen.changes) == ("r", "table a.b", dict(FIRST.fields), ())
    assert events(ledger) == ()
    assert source_schemas(ledger, "others") == ()


def test_a_change_is_kept_with_both_sides_and_is_one_event(ledger: Ledger) -> None:
    record_seen_schema(ledger, "flights", FIRST)
    (before,) = source_schemas(ledger, "flights")

    assert [record_seen_schema(ledger, "flights", SECOND) for _ in range(2)] == [True, False]

    (seen,) = source_schemas(ledger, "flights")
    assert seen.seen_at > before.seen_at
    assert (seen.answer, seen.source_before) == ("Planned again.", "table a.b")
    assert set(seen.changes) == {
        FieldChange(field="n", was="int", now="long"),
        FieldChange(field="gone", was="date"),
        FieldChange(field="new", now="string"),
    }
    (event,) = events(ledger)
    assert (event.action, event.reason) == ("see_schema", "source_schema_changed")
    assert "`n` was int and is long" in event.explanation
    assert "`gone` was date and is gone" in event.explanation
    assert "`new` is new: string." in event.explanation
    assert "table a.b. Planned again. `n` was" in event.explanation
    assert {"field": "n", "was": "int", "now": "long"} in event.evidence["changes"]


def test_a_table_that_returns_to_what_it_was_has_changed_and_files_of_two_senders_have_not(ledger: Ledger) -> None:
    of_table = (FIRST, SECOND, FIRST)
    of_files = [replace(one, input="files", is_one_of_many=True) for one in (FIRST, SECOND, FIRST, SECOND)]

    assert [record_seen_schema(ledger, "flights", one) for one in of_table] == [False, True, True]
    assert [record_seen_schema(ledger, "flights", one) for one in of_files] == [False, True, False, False]

    files, table = source_schemas(ledger, "flights")
    assert (dict(files.fields), dict(table.fields)) == (dict(SECOND.fields), dict(FIRST.fields))


def test_what_the_stream_did_stays_in_the_event_of_a_wide_change(ledger: Ledger) -> None:
    wide = {f"{number:03}_{'x' * 300}": "struct" for number in range(200)}
    record_seen_schema(ledger, "flights", FIRST)

    record_seen_schema(ledger, "flights", replace(SECOND, fields=wide))

    (event,) = events(ledger)
    evidence = event.evidence
    assert "Planned again." in event.explanation
    assert (evidence["input"], evidence["answer"], evidence["now"]) == ("r", "Planned again.", "table a.b")
    assert len(evidence["changes"]) > 5
    assert len(evidence["changes"]) + evidence["more_changes"] == 202
    assert "left_out" not in evidence


def test_long_types_that_begin_alike_differ(ledger: Ledger) -> None:
    of = {kind: f"enum<{'a, ' * 1_000}{kind}>" for kind in ("b", "c")}
    record_seen_schema(ledger, "flights", replace(FIRST, fields={"n": of["b"]}))

    found = [record_seen_schema(ledger, "flights", replace(FIRST, fields={"n": of[kind]})) for kind in "bc"]

    assert found == [False, True]
    (change,) = source_schemas(ledger, "flights")[0].changes
    assert change.was != change.now


def test_inputs_that_are_not_declared_any_more_are_left_out(ledger: Ledger) -> None:
    for name in ("r", "r, its values", "removed", "removed, its values"):
        record_seen_schema(ledger, "flights", replace(FIRST, input=name))

    assert len(source_schemas(ledger, "flights")) == 4
    assert [one.input for one in source_schemas(ledger, "flights", inputs={"r": 1})] == ["r", "r, its values"]
    assert source_schemas(ledger, "flights", inputs=()) == ()


@pytest.mark.full  # every run: long types
def test_names_without_end_and_names_that_cannot_be_stored_are_bounded(ledger: Ledger) -> None:
    many = {f"bad\x00{number}": "x" * 5_000 for number in range(MOST_FIELDS + 5)}
    record_seen_schema(ledger, "flights", FIRST)

    assert record_seen_schema(ledger, "flights", replace(FIRST, fields=many))

    (seen,) = source_schemas(ledger, "flights")
    assert len(seen.fields) == MOST_FIELDS
    assert max(map(len, seen.fields.values())) <= 1_000
    assert events(ledger)[0].explanation.count("`") <= 20
