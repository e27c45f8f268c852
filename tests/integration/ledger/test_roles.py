"""The role that works with the ledger can do all that Sluice does, and change neither its tables nor its history."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from uuid import uuid4

import pytest
from sqlalchemy import make_url, text
from sqlalchemy.exc import ProgrammingError
from tests.fixtures.ledger import administer

from sluice.errors import LedgerError
from sluice.ledger.batches import BatchObservation, PublicationKey, record_batch
from sluice.ledger.connection import Ledger, database_time, open_ledger
from sluice.ledger.control_requests import find_control_request, record_control_request
from sluice.ledger.control_values import Person
from sluice.ledger.desired_states import set_desired_state
from sluice.ledger.driver_access import WRITES, DriverUi, find_driver_ui, give_pass, record_driver_ui, url_with_pass
from sluice.ledger.events import REQUESTED, Actor, Event, EventAction, EventSubject, record_event
from sluice.ledger.generations import current_generation, record_fingerprint
from sluice.ledger.held_batches import HeldBatch, hold_batch
from sluice.ledger.hourly_figures import ColumnFigures
from sluice.ledger.ledger_table import LedgerTable
from sluice.ledger.migrations import observe_version, upgrade
from sluice.ledger.retention import Retention, apply_retention
from sluice.ledger.run_values import DesiredState, RunObservation, RunState
from sluice.ledger.runs import admit_run, beat, newest_run, record_end, record_process
from sluice.ledger.source_schemas import SeenSchema, record_seen_schema
from sluice.processes.process_identity import ProcessIdentity
from sluice.publication.repair import raise_token


@pytest.fixture
def roles(empty_database_url: str) -> Iterator[tuple[str, str]]:
    """The URLs of a ledger for those who work with it and for drivers; another role owns it."""
    owner, suffix = make_url(empty_database_url), uuid4().hex[:8]
    worker, drivers = f"worker_{suffix}", f"drivers_{suffix}"
    for role in (worker, drivers):
        administer(owner, f"CREATE ROLE {role} LOGIN PASSWORD 'role-password'")
    upgrade(empty_database_url, worker=worker, drivers=drivers)
    upgrade(empty_database_url, worker=worker, drivers=drivers)  # again, as each upgrade does
    yield tuple(  # type: ignore[misc]  # two
        owner.set(username=role, password="role-password").render_as_string(hide_password=False)  # noqa: S106  # of a test
        for role in (worker, drivers)
    )
    for role in (worker, drivers):
        administer(owner, f"DROP OWNED BY {role}")
        administer(owner, f"DROP ROLE {role}")


@pytest.fixture
def working(roles: tuple[str, str]) -> Iterator[Ledger]:
    """A ledger of one role, opened as another."""
    with open_ledger(roles[0]) as opened:
        yield opened


@pytest.fixture
def driving(roles: tuple[str, str], working: Ledger) -> Iterator[Ledger]:
    """The same as the driver of `clicks` opens it; the stream `other` has a run, too."""
    for stream in ("clicks", "other"):
        admit_run(working, stream=stream, mode="continuous", declaration_digest="d", launched_by="a test")
        set_desired_state(working, stream, DesiredState.RUNNING, requested_by="ann")
    with open_ledger(url_with_pass(roles[1], give_pass(working, "clicks"))) as opened:
        yield opened


def test_it_does_what_sluice_does(working: Ledger) -> None:
    run = admit_run(working, stream="clicks", mode="continuous", declaration_digest="d", launched_by="a test")
    actor = Actor.person("ann")
    record_event(
        working,
        Event(subject=EventSubject.STREAM, name="clicks", actor=actor, action=EventAction.STOP, reason=REQUESTED),
    )
    assert record_control_request(working, "r", stream="clicks", verb="stop", by=Person(person_id="1", name="ann"))
    day = timedelta(days=1)
    apply_retention(working, Retention(batches=day, runs=day, events=day), dry_run=False)
    assert run.token > 0
    with working.transaction() as connection:
        for table in LedgerTable.metadata.sorted_tables:
            connection.execute(text(f"SELECT count(*) FROM {table}"))  # noqa: S608  # names of our own
            connection.execute(text(f"DELETE FROM {table} WHERE false"))  # noqa: S608  # as above


def test_it_changes_no_table(working: Ledger) -> None:
    for statement in (
        "TRUNCATE sluice.events",
        "TRUNCATE sluice.runs",
        "DROP TABLE sluice.events",
        "ALTER TABLE sluice.events DISABLE TRIGGER ALL",
        "ALTER TABLE sluice.leases ADD COLUMN x int",
        "CREATE TABLE sluice.x (y int)",
        "CREATE SCHEMA other",
        "DROP SCHEMA sluice CASCADE",
        "CREATE OR REPLACE FUNCTION sluice.refuse_change_of_events() RETURNS trigger LANGUAGE sql AS 'SELECT 1'",
        "UPDATE sluice.alembic_version SET version_num = 'x'",
    ):
        with (
            pytest.raises(ProgrammingError, match=r"must be owner|permission denied"),
            working.engine.begin() as connection,
        ):
            connection.execute(text(statement))


def run_of(ledger: Ledger, stream: str) -> RunObservation:
    """The newest run of a stream."""
    run = newest_run(ledger, stream)
    assert run is not None
    return run


def test_a_driver_does_what_it_does_in_its_life(driving: Ledger) -> None:
    run = run_of(driving, "clicks")
    process = ProcessIdentity(host="h", pid=1, started_at_seconds=1.0)
    record_process(driving, run.run_id, process, None)
    assert beat(driving, run.run_id).holds_lease
    current_generation(driving, "clicks", checkpoints_root="file:///c")
    record_fingerprint(driving, "clicks", 1, {"inputs": "x"})
    assert raise_token(driving, run.run_id, above=run.token + 1_000).token > run.token + 1_000
    batch = BatchObservation(
        key=PublicationKey(stream="clicks", generation=1, batch=0),
        run_id=run.run_id,
        started_at=run.launched_at,
        duration_ms=1,
        input_rows=1,
        published_rows={"rows": 1},
        undeclared_fields={"rows": {"colour": 1}},
        column_figures={"rows": {"n": ColumnFigures(rows=1, nulls=0)}},
    )
    assert record_batch(driving, batch)
    assert not record_batch(driving, batch)
    for kind in ("int", "long"):
        record_seen_schema(driving, "clicks", SeenSchema(input="r", source="table a.b", fields={"n": kind}, answer=""))
    ui = DriverUi(run_id=run.run_id, port=1, application="a", key="k")
    record_driver_ui(driving, "clicks", ui)
    assert find_driver_ui(driving, "clicks") == ui
    ended = record_end(driving, run.run_id, state=RunState.FINISHED, exit_code=0, reason="done")
    assert ended.state is RunState.FINISHED


REFUSED = [
    "UPDATE sluice.desired_states SET desired_state = 'stopped'",
    "INSERT INTO sluice.desired_states (stream, desired_state) VALUES ('clicks', 'stopped')",
    "INSERT INTO sluice.leases (stream, token, run_id) VALUES ('new', 1, 'r')",
    "INSERT INTO sluice.runs (run_id) VALUES ('r')",
    "INSERT INTO sluice.events (subject, name, actor_kind, actor_name, action, reason, explanation, evidence) "
    "VALUES ('stream', 'other', 'person', 'ann', 'stop', 'requested', '', '{}')",
    "INSERT INTO sluice.events (subject, name, actor_kind, actor_name, action, reason, explanation, evidence) "
    "VALUES ('table', 'clicks', 'person', 'ann', 'stop', 'requested', '', '{}')",
    "UPDATE sluice.leases SET stream = 'third' WHERE stream = 'clicks'",
    "UPDATE sluice.runs SET stream = 'other' WHERE stream = 'clicks'",
    "INSERT INTO sluice.generations (stream, generation, checkpoint) VALUES ('other', 9, 'c')",
    "INSERT INTO sluice.batch_totals (stream, generation) VALUES ('other', 9)",
    "INSERT INTO sluice.driver_uis (stream, run_id, port, application, key) VALUES ('other', 'r', 1, 'a', 'k')",
    "DELETE FROM sluice.events",
    "DELETE FROM sluice.runs",
    "TRUNCATE sluice.batches",
    "SELECT * FROM sluice.driver_passes",
    "SELECT * FROM sluice.control_requests",
    "UPDATE sluice.troubles SET reported_at = now()",
    "UPDATE sluice.ledger_owner SET airflow = 'mine'",
    "UPDATE sluice.work_items SET state = 'done'",
    "ALTER TABLE sluice.leases DISABLE ROW LEVEL SECURITY",
    "CREATE OR REPLACE FUNCTION sluice.own_stream() RETURNS text LANGUAGE sql AS $$ SELECT 'other' $$",
    "UPDATE sluice.alembic_version SET version_num = 'x'",
]
"""What a driver of `clicks` may not do."""


def test_a_driver_changes_nothing_of_others(driving: Ledger) -> None:
    for statement in REFUSED:
        with (
            pytest.raises(ProgrammingError, match=r"row-level security|permission denied|must be owner"),
            driving.engine.begin() as connection,
        ):
            connection.execute(text(statement))


def test_a_driver_adds_no_row_of_another_stream_to_any_table(driving: Ledger) -> None:
    tables = [table for table, rights in WRITES.items() if "INSERT" in rights and table != "events"]
    assert len(tables) > 5
    for table in tables:
        insert = text(f"INSERT INTO sluice.{table} (stream) VALUES ('other')")  # noqa: S608  # names of our own
        with pytest.raises(ProgrammingError, match="row-level security"), driving.engine.begin() as connection:
            connection.execute(insert)


def test_a_driver_takes_no_held_batch_of_another_stream_away(driving: Ledger, working: Ledger) -> None:
    for stream in ("clicks", "other"):
        hold_batch(working, HeldBatch(key=PublicationKey(stream=stream, generation=1, batch=1), reason="x", rows={}))
    with driving.transaction() as connection:
        taken = connection.execute(text("DELETE FROM sluice.held_batches RETURNING stream"))
        assert taken.scalars().all() == ["clicks"]


def test_every_row_that_a_driver_can_change_is_one_of_its_own(driving: Ledger, working: Ledger) -> None:
    """PostgreSQL leaves the others out of an update without a condition."""
    for stream in ("clicks", "other"):
        current_generation(working, stream, checkpoints_root="file:///c")
        record_driver_ui(working, stream, DriverUi(run_id="r", port=1, application="a", key="k"))
        key = PublicationKey(stream=stream, generation=1, batch=0)
        batch = BatchObservation(
            key=key,
            run_id="r",
            started_at=database_time(working),
            duration_ms=1,
            input_rows=1,
            published_rows={},
            undeclared_fields={"rows": {"colour": 1}},
            column_figures={"rows": {"n": ColumnFigures(rows=1, nulls=0)}},
        )
        assert record_batch(working, batch)
        record_seen_schema(working, stream, SeenSchema(input="r", source="table a.b", fields={"n": "int"}, answer=""))
    own = ("runs", "leases", "generations", "batch_totals", "undeclared_fields", "source_schemas", "driver_uis")
    for table in (*own, "hourly_columns"):
        with driving.transaction() as connection:
            changed = connection.execute(text(f"UPDATE sluice.{table} SET stream = stream RETURNING stream"))  # noqa: S608
            assert changed.scalars().all() == ["clicks"], table
    with pytest.raises(LedgerError), driving.transaction() as connection:
        connection.execute(text("UPDATE sluice.hourly_rows SET batches = 0"))
    with driving.transaction() as connection:
        read = connection.execute(text("SELECT stream FROM sluice.driver_uis"))
        assert read.scalars().all() == ["clicks"], "a key signs requests to the UI of another driver"


@pytest.mark.full  # every run: one that never had more
def test_a_role_that_had_more_rights_keeps_those_of_drivers_alone(
    roles: tuple[str, str], empty_database_url: str
) -> None:
    owner, (_, url) = make_url(empty_database_url), roles
    drivers = str(make_url(url).username)
    for rights in ("ALL ON SCHEMA sluice", "ALL ON ALL TABLES IN SCHEMA sluice"):
        administer(owner, f"GRANT {rights} TO {drivers}")

    upgrade(empty_database_url, drivers=drivers)

    with open_ledger(url) as opened:
        for statement in ("CREATE TABLE sluice.x (y int)", "DELETE FROM sluice.runs", "DELETE FROM sluice.troubles"):
            with (
                pytest.raises(ProgrammingError, match="permission denied"),
                opened.engine.begin() as connection,
            ):
                connection.execute(text(statement))


def test_a_pass_ends_with_the_next_one_and_none_is_good_for_nothing(roles: tuple[str, str], working: Ledger) -> None:
    run = admit_run(working, stream="clicks", mode="continuous", declaration_digest="d", launched_by="a test")
    before, now = give_pass(working, "clicks"), give_pass(working, "clicks")
    for url, is_good in (
        (url_with_pass(roles[1], before), False),
        (url_with_pass(roles[1], "guessed"), False),
        (roles[1], False),
        (url_with_pass(roles[1], now), True),
    ):
        with open_ledger(url) as opened:
            assert beat(opened, run.run_id).holds_lease is is_good


@pytest.mark.full  # every run: another role is admitted to a ledger that is current
def test_an_owner_that_is_named_as_worker_still_migrates(empty_database_url: str) -> None:
    upgrade(empty_database_url, worker=make_url(empty_database_url).username)
    with open_ledger(empty_database_url) as opened, opened.transaction() as connection:
        may = text("SELECT relacl IS NULL FROM pg_class WHERE oid = 'sluice.alembic_version'::regclass")
        assert connection.execute(may).scalar_one() is True, "nothing was granted to it or taken from it"


@pytest.fixture
def stranger_url(empty_database_url: str) -> Iterator[str]:
    """The URL of an empty database for a role that may make nothing in it, and that no migration has admitted."""
    owner = make_url(empty_database_url)
    role = f"stranger_{uuid4().hex[:8]}"
    administer(owner, f"CREATE ROLE {role} LOGIN PASSWORD 'worker-password'")
    url = owner.set(username=role, password="worker-password")  # noqa: S106  # of this test alone
    yield url.render_as_string(hide_password=False)
    administer(owner, f"DROP ROLE {role}")


def test_a_migration_by_a_role_that_may_not_is_refused_with_the_way_to_do_it(stranger_url: str) -> None:
    with pytest.raises(LedgerError, match="permission denied for database") as refused:
        upgrade(stranger_url)
    assert "SLUICE_LEDGER_OWNER_URL" in refused.value.next_step


@pytest.mark.full  # every run: a migration
def test_tables_that_a_role_was_not_admitted_to_are_refused_with_the_way_to_do_it(
    empty_database_url: str, stranger_url: str
) -> None:
    upgrade(empty_database_url)
    with open_ledger(stranger_url) as opened, pytest.raises(LedgerError, match="permission denied") as refused:
        find_control_request(opened, "r")
    assert "SLUICE_LEDGER_OWNER_URL" in refused.value.next_step


def test_a_ledger_that_is_current_admits_another_role(empty_database_url: str) -> None:
    upgrade(empty_database_url)
    owner = make_url(empty_database_url)
    role = f"worker_{uuid4().hex[:8]}"
    administer(owner, f"CREATE ROLE {role} LOGIN PASSWORD 'worker-password'")
    assert upgrade(empty_database_url, worker=role).is_current
    url = owner.set(username=role, password="worker-password")  # noqa: S106  # of this test alone
    assert observe_version(url.render_as_string(hide_password=False)).is_current
    administer(owner, f"DROP OWNED BY {role}")
    administer(owner, f"DROP ROLE {role}")
