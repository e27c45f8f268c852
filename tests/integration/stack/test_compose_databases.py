"""What `airflow-init` of docker-compose.yaml does before it migrates, on a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import URL
from sqlalchemy.pool import NullPool
from tests.fixtures.ledger import administer, running_postgres

from sluice.errors import StackError
from sluice.stack.compose_databases import create_databases_of


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[URL]:
    """The superuser's URL of a server of its own: the names are those of every stack."""
    with running_postgres(tmp_path_factory.mktemp("postgres")) as running:
        yield running.url


def settings_of(server: URL) -> dict[str, str]:
    """The settings of the containers."""
    urls = {
        "SLUICE_LEDGER_OWNER_URL": server.set(database="sluice"),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": server.set(username="airflow", password="a", database="airflow"),  # noqa: S106  # of this test
        "SLUICE_LEDGER_URL": server.set(username="sluice", password="l", database="sluice"),  # noqa: S106  # as above
        "SLUICE_LEDGER_DRIVER_URL": server.set(username="sluice_drivers", password="d", database="sluice"),  # noqa: S106  # as above
    }
    return {name: url.render_as_string(hide_password=False) for name, url in urls.items()}


def rows(server: URL, query: str) -> list[tuple[str, str]]:
    """What the superuser reads."""
    engine = create_engine(server, poolclass=NullPool)
    with engine.connect() as connection:
        return [(str(one), str(two)) for one, two in connection.execute(text(query))]


def test_a_new_volume_gets_all_and_an_earlier_one_what_it_lacks(server: URL) -> None:
    create_databases_of(settings_of(server))
    administer(server, "DROP ROLE sluice_drivers")

    create_databases_of(settings_of(server))

    roles = "SELECT rolname, left(rolpassword, 14) FROM pg_authid WHERE rolcanlogin AND NOT rolsuper ORDER BY 1"
    assert rows(server, roles) == [(name, "SCRAM-SHA-256$") for name in ("airflow", "sluice", "sluice_drivers")]
    owners = "SELECT datname, pg_get_userbyid(datdba) FROM pg_database WHERE datname ~ '^(air|slu)' ORDER BY 1"
    assert rows(server, owners) == [("airflow", "airflow"), ("sluice", "postgres")]


def test_a_server_that_refuses_is_named(server: URL) -> None:
    wrong = server.set(port=1)
    with pytest.raises(StackError, match="The databases cannot be created"):
        create_databases_of(settings_of(wrong))
