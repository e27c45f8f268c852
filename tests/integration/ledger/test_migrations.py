"""The ledger's schema in a real PostgreSQL: from nothing, at once from many, and never changed twice."""

from __future__ import annotations

import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, text
from tests.fixtures.drivers import await_condition

from sluice.errors import LedgerError, LedgerUnreachableError
from sluice.ledger import migrations
from sluice.ledger.connection import database_time, open_ledger
from sluice.ledger.ledger_table import SCHEMA, LedgerTable
from sluice.ledger.locks import lock_schema
from sluice.ledger.migrations import observe_version, upgrade
from sluice.ledger.runs import admit_run, beat, newest_runs


def test_an_empty_database_becomes_a_ledger(empty_database_url: str) -> None:
    assert observe_version(empty_database_url).found is None
    before = upgrade(empty_database_url)
    assert not before.is_current
    after = upgrade(empty_database_url)
    assert after.is_current
    assert after == observe_version(empty_database_url)
    with open_ledger(empty_database_url) as ledger:
        assert newest_runs(ledger) == ()


def test_the_migrations_make_what_the_models_say(ledger_url: str) -> None:
    options = {
        "include_schemas": True,
        "version_table_schema": SCHEMA,
        "include_name": lambda name, kind, _: kind != "schema" or name == SCHEMA,
    }
    with open_ledger(ledger_url) as ledger, ledger.transaction() as connection:
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, LedgerTable.metadata) == []


@pytest.mark.parametrize(
    ("version", "sentence"),
    [
        ("0026", r"before 0\.2\.0, which was never released.*DROP SCHEMA sluice CASCADE.*`sluice ledger upgrade`"),
        ("of_next_year", r"version of_next_year, which a newer Sluice than this one has made.*or a later one"),
    ],
)
def test_a_ledger_of_another_program_is_refused_and_left_as_it_is(
    empty_database_url: str, version: str, sentence: str
) -> None:
    upgrade(empty_database_url)
    _set_version(empty_database_url, version, oldest_reader=None)
    for asked in (observe_version, upgrade):
        with pytest.raises(LedgerError, match=sentence):
            asked(empty_database_url)
    with open_ledger(empty_database_url) as ledger, ledger.transaction() as connection:
        assert connection.execute(text("SELECT version_num FROM sluice.alembic_version")).scalar_one() == version


def test_a_ledger_that_a_newer_program_migrates_meanwhile_is_refused(empty_database_url: str) -> None:
    with ThreadPoolExecutor() as pool, open_ledger(empty_database_url) as ledger:
        with ledger.transaction() as newer:
            lock_schema(newer)
            upgraded = pool.submit(upgrade, empty_database_url)
            await_condition(lambda: _waits_for_lock(newer))
            newer.execute(text("CREATE SCHEMA sluice"))
            newer.execute(text("CREATE TABLE sluice.alembic_version AS SELECT 'of_next_year' AS version_num"))
        with pytest.raises(LedgerError, match="a newer Sluice"):
            upgraded.result(timeout=60)


def _waits_for_lock(connection: Connection) -> bool:
    return bool(connection.execute(text("SELECT count(*) FROM pg_locks WHERE NOT granted")).scalar_one())


def _set_version(ledger_url: str, version: str, *, oldest_reader: str | None) -> None:
    """As a newer program leaves it behind."""
    named = "NULL" if oldest_reader is None else f"'oldest reader: {oldest_reader}'"
    with open_ledger(ledger_url) as ledger, ledger.transaction() as connection:
        connection.execute(text("UPDATE sluice.alembic_version SET version_num = :version"), {"version": version})
        connection.execute(text(f"COMMENT ON TABLE sluice.alembic_version IS {named}"))


def test_a_newer_ledger_that_lets_this_program_read_is_worked_with(empty_database_url: str) -> None:
    upgrade(empty_database_url)
    _set_version(empty_database_url, "of_next_year", oldest_reader="0.1.9")
    seen = observe_version(empty_database_url)
    assert (seen.found, seen.is_current, seen.is_newer) == ("of_next_year", True, True)
    assert upgrade(empty_database_url) == seen
    with open_ledger(empty_database_url) as ledger:
        assert newest_runs(ledger) == ()


def test_a_ledger_for_later_programs_refuses_this_one_at_its_first_query(empty_database_url: str) -> None:
    upgrade(empty_database_url)
    _set_version(empty_database_url, "of_next_year", oldest_reader="0.10.0")
    with (
        open_ledger(empty_database_url) as ledger,
        pytest.raises(LedgerError, match=r"for Sluice 0\.10\.0 and later, and this is Sluice 0\.2\.0"),
    ):
        newest_runs(ledger)
    with pytest.raises(LedgerError, match=r"for Sluice 0\.10\.0 and later"):
        upgrade(empty_database_url)


_NEXT = """
import sqlalchemy as sa
from alembic import op

revision, down_revision, oldest_reader = "of_a_test", {newest!r}, "0.2.0"


def upgrade() -> None:
    op.add_column("runs", sa.Column("of_a_test", sa.Text(), nullable=True), schema="sluice")
"""


@pytest.mark.full  # every run: eight upgrades at once
def test_an_upgrade_beside_a_backup_keeps_no_heartbeat_waiting(
    empty_database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backup holds every table; a change of one waits for it, and all that comes later waited behind the change."""
    upgrade(empty_database_url)
    newest = observe_version(empty_database_url).needed
    scripts = shutil.copytree(Path(migrations.__file__).parent, tmp_path / "migrations")
    (scripts / "versions" / "of_a_test.py").write_text(_NEXT.format(newest=newest))
    config = migrations._config()
    config.set_main_option("script_location", str(scripts))
    monkeypatch.setattr(migrations, "_config", lambda: config)
    monkeypatch.setattr(migrations, "_PAUSE_SECONDS", 0.1)
    with ThreadPoolExecutor() as pool, open_ledger(empty_database_url) as ledger:
        run = admit_run(ledger, stream="flights", mode="continuous", declaration_digest="d", launched_by="a test")
        with ledger.transaction() as backup:
            backup.execute(text("LOCK TABLE sluice.runs IN ACCESS SHARE MODE"))
            upgraded = pool.submit(upgrade, empty_database_url)
            await_condition(lambda: _waits_for_lock(backup))
            began = time.monotonic()
            assert beat(ledger, run.run_id).holds_lease
            assert time.monotonic() - began < migrations.LOCK_SECONDS + 3
            assert not upgraded.done()
        assert upgraded.result(timeout=60).found == newest
        assert observe_version(empty_database_url).is_current


def test_eight_upgrades_at_once_are_one(empty_database_url: str) -> None:
    with ThreadPoolExecutor(max_workers=8) as pool:
        versions = list(pool.map(upgrade, [empty_database_url] * 8))
    assert {version.needed for version in versions} == {observe_version(empty_database_url).found}
    assert upgrade(empty_database_url).is_current


def test_other_tables_of_the_database_are_left_alone(empty_database_url: str) -> None:
    with open_ledger(empty_database_url) as ledger, ledger.transaction() as connection:
        connection.execute(text("CREATE TABLE alembic_version AS SELECT 'of another program' AS version_num"))
    upgrade(empty_database_url)
    with open_ledger(empty_database_url) as ledger, ledger.transaction() as connection:
        assert connection.execute(text("SELECT * FROM public.alembic_version")).scalar_one() == "of another program"


def test_a_ledger_without_tables_says_what_to_do(empty_database_url: str) -> None:
    with open_ledger(empty_database_url) as ledger, pytest.raises(LedgerError, match="sluice ledger upgrade"):
        newest_runs(ledger)


def test_a_wrong_password_is_one_sentence_without_it(empty_database_url: str) -> None:
    wrong = empty_database_url.replace("postgres@", "nobody:planted-secret@")
    with open_ledger(wrong) as ledger, pytest.raises(LedgerUnreachableError) as refusal:
        database_time(ledger)
    assert 'role "nobody" does not exist' in str(refusal.value)
    assert "planted-secret" not in str(refusal.value)
