"""Create the roles and databases of docker-compose.yaml where they are missing, as the superuser of its PostgreSQL.

`airflow-init` runs this before it migrates: a volume of an earlier version has no role of drivers, and the image of
PostgreSQL runs scripts in an empty volume alone. Names and passwords are those in the settings of the containers.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from psycopg.conninfo import make_conninfo
from sqlalchemy import make_url

from sluice.errors import SluiceError
from sluice.stack.services.postgres import create_databases

OWNER = "SLUICE_LEDGER_OWNER_URL"
ROLES = ("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "SLUICE_LEDGER_URL", "SLUICE_LEDGER_DRIVER_URL")
"""The settings with a URL of each role."""


def create_databases_of(environment: Mapping[str, str]) -> None:
    """Create them.

    Parameters
    ----------
    environment: with the URL of the superuser and one of each role.

    Raises
    ------
    StackError: when the server refuses it.
    """
    owner, roles = make_url(environment[OWNER]), [make_url(environment[name]) for name in ROLES]
    superuser = make_conninfo(
        host=owner.host, port=owner.port, user=owner.username, password=owner.password, dbname="postgres"
    )
    create_databases(superuser, passwords={str(role.username): str(role.password) for role in roles})


if __name__ == "__main__":
    try:
        create_databases_of(os.environ)
    except SluiceError as error:
        sys.exit(str(error))
