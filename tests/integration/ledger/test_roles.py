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
from sluice.ledger.connection import Ledger, open_ledger
from sluice.ledger.control_requests import find_control_request, record_control_request
from sluice.ledger.control_values import Person
from sluice.ledger.events import REQUESTED, Actor, Event, EventAction, EventSubject, record_event
from sluice.ledger.ledger_table import LedgerTable
from sluice.ledger.migrations import observe_version, upgrade
from sluice.ledger.retention import Retention, apply_retention
from sluice.ledger.runs import admit_run


@pytest.fixture
def working(empty_database_url: str) -> Iterator[Ledger]:
    """A ledger of one role, opened as another."""
    owner = make_url(empty_database_url)
    role = f"worker_{uuid4().hex[:8]}"
    administer(owner, f"CREATE ROLE {role} LOGIN PASSWORD 'worker-password'")
    upgrade(empty_database_url, worker=role)
    url = owner.set(username=role, password="worker-password")  # noqa: S106  # of this test alone
    with open_ledger(url.render_as_string(hide_password=False)) as opened:
        yield opened
    administer(owner, f"DROP OWNED BY {role}")
    administer(owner, f"DROP ROLE {role}")


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


@pytest.mark.parametrize(
    "statement",
    [
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
    ],
)
def test_it_changes_no_table(working: Ledger, statement: str) -> None:
    with (
        pytest.raises(ProgrammingError, match=r"must be owner|permission denied"),
        working.engine.begin() as connection,
    ):
        connection.execute(text(statement))


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
