"""The ledger's schema in a real PostgreSQL: from nothing, at once from many, and never changed twice."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from sqlalchemy import text

from sluice.errors import LedgerError, LedgerUnreachableError
from sluice.ledger import migrations
from sluice.ledger.batches import totals
from sluice.ledger.connection import database_time, open_ledger
from sluice.ledger.leases import find_lease
from sluice.ledger.ledger_table import SCHEMA, LedgerTable
from sluice.ledger.migrations import observe_version, upgrade
from sluice.ledger.runs import newest_runs, recent_runs


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


def test_runs_of_before_the_leases_get_their_tokens_in_order(empty_database_url: str) -> None:
    _upgrade_to(empty_database_url, "0001")
    with open_ledger(empty_database_url) as ledger, ledger.transaction() as connection:
        for stream, state in (("flights", "failed"), ("weather", "failed"), ("flights", "running")):
            connection.execute(
                text(
                    "INSERT INTO sluice.runs "
                    "(run_id, stream, generation, mode, state, desired_state, declaration_digest, launched_by) "
                    "VALUES (gen_random_uuid(), :stream, 1, 'continuous', :state, 'running', 'd', 'a test')"
                ),
                {"stream": stream, "state": state},
            )
    upgrade(empty_database_url)
    with open_ledger(empty_database_url) as ledger:
        assert [run.token for run in recent_runs(ledger, "flights", limit=9)] == [2, 1]
        live, ended = find_lease(ledger, "flights"), find_lease(ledger, "weather")
        assert live is not None
        assert ended is not None
        assert (live.token, live.is_held(at=database_time(ledger))) == (2, True)
        assert (ended.token, ended.expires_at) == (1, None)


def test_the_totals_of_an_earlier_ledger_are_added_up_once(empty_database_url: str) -> None:
    _upgrade_to(empty_database_url, "0017")
    with open_ledger(empty_database_url) as ledger:
        with ledger.transaction() as connection:
            for number in range(3):
                connection.execute(text(_BATCH), {"batch": number, "published": f'{{"rows": 9, "late{number}": 1}}'})
            connection.execute(
                text("INSERT INTO sluice.forgotten_batches VALUES ('flights', 1, 5, 50, '{\"rows\": 45}', 1, 2, 3)")
            )
        upgrade(empty_database_url)
        with ledger.transaction() as connection:
            connection.execute(text(_BATCH), {"batch": 3, "published": '{"rows": 1}'})
        summed = totals(ledger, "flights")
    assert (summed.batches, summed.input_rows) == (9, 90)
    assert summed.published_rows == {"late0": 1, "late1": 1, "late2": 1, "rows": 45 + 27 + 1}
    assert (summed.refused_rows, summed.late_rows, summed.duplicate_rows) == (1, 2, 3)


_BATCH = """
INSERT INTO sluice.batches (stream, generation, batch, run_id, started_at, duration_ms, input_rows, published_rows,
  refused_rows, late_rows, duplicate_rows, start_offsets, end_offsets, snapshot_ids, durations_ms)
VALUES ('flights', 1, :batch, 'run', now(), 1, 10, CAST(:published AS jsonb), 0, 0, 0, '{}', '{}', '{}', '{}')
"""


def _upgrade_to(ledger_url: str, revision: str) -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    config.set_main_option("path_separator", "os")
    with open_ledger(ledger_url) as ledger, ledger.transaction() as connection:
        connection.execute(text(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}"))
        config.attributes["connection"] = connection
        command.upgrade(config, revision)


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
