"""Unusual rows of a table on a real ledger: a person is alerted once, and it ends by itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from sqlalchemy import text
from tests.fixtures.streams import continuous_stream
from tests.integration.ledger.test_batches import a_batch
from tests.integration.supervision.test_reconcile_all import UNPAUSED

from sluice.declarations.declaration_files import Document
from sluice.declarations.loaded_declarations import Declarations, LoadedTable
from sluice.declarations.maintenance_policy import OwnMaintenance
from sluice.declarations.table_declaration import TableDeclaration
from sluice.ledger.batches import record_batch
from sluice.ledger.connection import Ledger
from sluice.ledger.desired_states import set_desired_state
from sluice.ledger.events import EventAction, EventSubject, recent_events
from sluice.ledger.hourly_figures import read_hours, remove_old_hours
from sluice.ledger.run_values import DesiredState
from sluice.supervision.alerts import Alert
from sluice.supervision.platform_troubles import (
    subjects_beside_streams,
    troubles_beside_streams,
    unusual_rows,
)
from sluice.supervision.reconciler import reconcile_all
from sluice.supervision.rows_watch import JUDGED_EVERY_MINUTES
from sluice.supervision.supervisor import Supervisor

TABLE = "bronze.flights"
SUBJECT = "rows of bronze.flights"

_WEEKS = """
INSERT INTO sluice.hourly_rows (stream, hour, batches, input_rows, rejected_rows, published_rows)
SELECT 'flights', date_trunc('hour', now(), 'UTC') - interval '1 hour' * n, 60, 1000, 0, '{"rows": 1000}'
FROM generate_series(CAST(:first AS int), 1000) AS n"""


def declared(**more: str) -> Declarations:
    """A stream and its table. more: further keys of the table."""
    table = TableDeclaration.model_validate(
        {
            "table": TABLE,
            "description": "Flights",
            "owner": "team",
            "columns": [{"name": "n", "type": "int"}],
            **more,
        }
    )
    file = Path("/pipelines/bronze.flights.table.yaml")
    document = Document(file=file, content={}, text=b"")
    return Declarations(
        folder=Path("/pipelines"),
        streams={"flights": continuous_stream()},
        tables={
            TABLE: LoadedTable(
                declaration=table, own=OwnMaintenance(table=TABLE), file=file, digest="d", document=document
            )
        },
        problems=(),
        stream_names=("flights",),
        table_names=(TABLE,),
    )


def a_turn(supervisor: Supervisor, declarations: Declarations) -> list[Alert]:
    """As many passes as it takes until each table is judged."""
    set_desired_state(supervisor.ledger, "flights", DesiredState.STOPPED, requested_by="a person")
    return [
        alert
        for number in range(JUDGED_EVERY_MINUTES)
        for alert in reconcile_all(supervisor, declarations, observe_dag=lambda _: UNPAUSED, number=number)
    ]


def with_weeks(ledger: Ledger, *, silent_hours: int) -> None:
    """Weeks of 1,000 rows an hour up to a silence."""
    with ledger.transaction() as connection:
        connection.execute(text("DELETE FROM sluice.hourly_rows"))
        connection.execute(text(_WEEKS), {"first": silent_hours + 1})


def test_a_silence_is_one_alert_and_ends_by_itself(supervisor: Supervisor, ledger: Ledger) -> None:
    with_weeks(ledger, silent_hours=3)

    (alert,) = a_turn(supervisor, declared())

    assert (alert.stream, alert.reason, alert.is_new) == (SUBJECT, "unusual rows", True)
    assert "where 3,000 are usual in the same hours of 4 weeks" in alert.sentence
    (trouble,) = unusual_rows(ledger, TABLE)
    assert trouble.explanation == alert.sentence
    beside = troubles_beside_streams(ledger, subjects_beside_streams(declared()))
    assert [one.explanation for one in beside] == [alert.sentence]
    assert a_turn(supervisor, declared()) == [], "it is shown, and makes no further pass red"
    assert unusual_rows(ledger, TABLE)[0].since == trouble.since

    with_weeks(ledger, silent_hours=0)
    assert a_turn(supervisor, declared()) == []

    assert unusual_rows(ledger) == ()
    events = recent_events(ledger, EventSubject.TABLE, TABLE, limit=5)
    assert [event.action for event in events] == [EventAction.RECOVER, EventAction.ALERT]


def test_a_table_whose_rows_are_ignored_has_no_incident(supervisor: Supervisor, ledger: Ledger) -> None:
    with_weeks(ledger, silent_hours=3)
    assert len(a_turn(supervisor, declared())) == 1

    assert a_turn(supervisor, declared(unusual_rows="ignore")) == []

    assert unusual_rows(ledger) == ()


def test_an_hour_has_the_sums_of_its_batches_also_of_those_that_are_gone(ledger: Ledger) -> None:
    for number in range(2):
        assert record_batch(ledger, replace(a_batch(number), published_rows={"rows": 90, "late": 1}, refused_rows=10))
    record_batch(ledger, a_batch(1))  # again, which is no other one
    record_batch(ledger, replace(a_batch(2), published_rows={}, refused_rows=100, is_rejected=True))
    with ledger.transaction() as connection:
        connection.execute(text("DELETE FROM sluice.batches"))
        connection.execute(text("UPDATE sluice.hourly_rows SET hour = hour - interval '1 hour'"))

    (found,) = read_hours(ledger, ["flights", "others"]).hours

    assert (found.batches, found.rejected_rows, found.published_rows) == (3, 20, {"rows": 180, "late": 2})
    assert read_hours(ledger, ["others"]).hours == ()
    with ledger.transaction() as connection:
        connection.execute(text("UPDATE sluice.hourly_rows SET hour = hour - interval '113 days'"))
    assert [remove_old_hours(ledger, dry_run=is_dry) for is_dry in (True, False, False)] == [1, 1, 0]


_WEEKS_OF_COLUMNS = """
INSERT INTO sluice.hourly_columns (stream, output, hour, figures)
SELECT 'flights', 'rows', date_trunc('hour', now(), 'UTC') - interval '1 hour' * n,
    jsonb_build_object('n', jsonb_build_object('rows', 1000, 'nulls', CASE WHEN is_usual THEN 20 ELSE 300 END,
        'lowest', 1, 'highest', CASE WHEN is_usual THEN 90 ELSE 9000 END))
FROM generate_series(1, 1000) AS n, LATERAL (SELECT n <= CAST(:usual AS int) OR n > :usual + 2 AS is_usual) AS judged"""


def with_weeks_of_columns(ledger: Ledger, *, usual_hours: int = 0) -> None:
    """Weeks of usual rows, and of a column with two unusual hours before the last usual ones."""
    with_weeks(ledger, silent_hours=0)
    with ledger.transaction() as connection:
        connection.execute(text("DELETE FROM sluice.hourly_columns"))
        connection.execute(text(_WEEKS_OF_COLUMNS), {"usual": usual_hours})


def masking(declarations: Declarations) -> Declarations:
    """The stream with the column masked."""
    stream = continuous_stream(quarantine=True, masked_columns=["n"])
    return replace(declarations, streams={"flights": stream})


def test_an_unusual_column_is_an_incident_of_its_table(supervisor: Supervisor, ledger: Ledger) -> None:
    with_weeks_of_columns(ledger)

    (alert,) = a_turn(supervisor, declared())

    assert (alert.stream, alert.reason, alert.is_new) == (SUBJECT, "unusual rows", True)
    assert "Too many nulls in `n` since " in alert.sentence
    assert "30 % of 1,000 rows in the hour up to " in alert.sentence
    assert "where 2 % are usual in the same hour of 4 weeks, at the level of the last seven days." in alert.sentence
    assert "up to 9,000, where the highest of 6 weeks was 90." in alert.sentence
    assert [one.explanation for one in unusual_rows(ledger, TABLE)] == [alert.sentence]
    assert a_turn(supervisor, declared()) == []

    with_weeks_of_columns(ledger, usual_hours=4)
    assert a_turn(supervisor, declared()) == []
    assert unusual_rows(ledger, TABLE)[0].explanation.startswith("The rows are as usual again.")

    with_weeks_of_columns(ledger, usual_hours=8)
    assert a_turn(supervisor, declared()) == []
    assert unusual_rows(ledger) == ()


def test_values_of_a_masked_column_are_not_judged_and_not_said(supervisor: Supervisor, ledger: Ledger) -> None:
    with_weeks_of_columns(ledger)

    (alert,) = a_turn(supervisor, masking(declared()))

    assert "Too many nulls in `n` since " in alert.sentence
    assert "9,000" not in alert.sentence


def test_columns_of_a_table_that_is_ignored_have_no_incident(supervisor: Supervisor, ledger: Ledger) -> None:
    with_weeks_of_columns(ledger)

    assert a_turn(supervisor, declared(unusual_rows="ignore")) == []
