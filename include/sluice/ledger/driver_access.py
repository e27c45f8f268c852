"""How the driver of a stream reaches the ledger, by its pass, and how Spark's own UI in it is reached, by the key that
its requests are signed with.

The role of continuous drivers may read the ledger, and write the rows of one stream.

User code runs inside a driver. When the deployment has a role for drivers (SLUICE_LEDGER_DRIVER_URL), each driver gets
its URL with a pass, which the launcher draws and of which the ledger keeps the digest. PostgreSQL lets a connection
write the rows of the stream whose pass it carries, and no others; a pass ends when the next one is given.

    give_pass ──► driver_passes: stream, digest      sluice.own_stream(): the stream of the connection's pass
                                                     policies: a row is written when its stream is that one
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from secrets import token_urlsafe

from sqlalchemy import Index, Integer, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Mapped, mapped_column

from sluice.ledger.connection import Ledger, checked_url
from sluice.ledger.ledger_table import SCHEMA, LedgerTable

WRITES: Mapping[str, str] = {
    "runs": "UPDATE",
    "leases": "UPDATE",
    "batches": "INSERT",
    "batch_totals": "INSERT, UPDATE",
    "rule_results": "INSERT",
    "held_batches": "INSERT, UPDATE, DELETE",
    "generations": "INSERT, UPDATE",
    "events": "INSERT",
    "hourly_columns": "INSERT, UPDATE",
    "undeclared_fields": "INSERT, UPDATE",
    "source_schemas": "INSERT, UPDATE",
    "driver_uis": "INSERT, UPDATE",
}
"""What a driver may do beside reading, by table."""

HIDDEN = frozenset({"driver_passes", "control_requests"})
"""What it may not even read."""

READ_OF_OWN = frozenset({"driver_uis"})
"""Of which it may read its own rows alone: a key signs requests to another driver's UI."""

_OWN = {"events": f"subject = 'stream' AND name = (SELECT {SCHEMA}.own_stream())"}
_OWN_ROW = f"stream = (SELECT {SCHEMA}.own_stream())"


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverPass:
    """The pass of the newest driver of a stream. digest: SHA-256 of it."""

    stream: str
    digest: str
    given_at: datetime


class DriverPassRow(LedgerTable, record=DriverPass, key=("stream",), now=("given_at",)):
    """A row for each stream that was launched with a pass."""

    __tablename__ = "driver_passes"
    __table_args__ = (Index(None, "digest"),)


def give_pass(ledger: Ledger, stream: str) -> str:
    """Draw the pass of a stream's next driver; that of the one before is good for nothing from now on."""
    drawn = token_urlsafe(32)
    digest = sha256(drawn.encode()).hexdigest()
    given = insert(DriverPassRow).values(stream=stream, digest=digest)
    change = {"digest": digest, "given_at": func.now()}
    with ledger.transaction() as connection:
        connection.execute(given.on_conflict_do_update(index_elements=[DriverPassRow.stream], set_=change))
    return drawn


def url_with_pass(driver_url: str, drawn: str) -> str:
    """The ledger's URL for one driver: its connections carry the pass.

    Raises
    ------
    SettingsError: when it is not the URL of a PostgreSQL database.
    """
    url = checked_url(driver_url).update_query_dict({"options": f"-c {SCHEMA}.driver_pass={drawn}"})
    return url.render_as_string(hide_password=False)


def admit_drivers(role: str) -> Iterator[str]:
    """The statements that let a role be that of drivers, on whichever tables the ledger has now.

    Parameters
    ----------
    role: its name, quoted.
    """
    yield f"REVOKE CREATE ON SCHEMA {SCHEMA} FROM {role}"
    yield f"GRANT USAGE ON SCHEMA {SCHEMA} TO {role}"
    yield f"REVOKE ALL ON ALL TABLES IN SCHEMA {SCHEMA} FROM {role}"
    yield f"GRANT SELECT ON ALL TABLES IN SCHEMA {SCHEMA} TO {role}"
    for table in sorted(HIDDEN):
        yield f"REVOKE ALL ON {SCHEMA}.{table} FROM {role}"
    for table, privileges in WRITES.items():
        own = _OWN.get(table, _OWN_ROW)
        yield f"GRANT {privileges} ON {SCHEMA}.{table} TO {role}"
        yield f"ALTER TABLE {SCHEMA}.{table} ENABLE ROW LEVEL SECURITY"
        yield f"DROP POLICY IF EXISTS everyone ON {SCHEMA}.{table}"
        yield f"CREATE POLICY everyone ON {SCHEMA}.{table} USING (true) WITH CHECK (true)"
        commands = [*privileges.split(", "), *(["SELECT"] if table in READ_OF_OWN else [])]
        for command in commands:
            name = f"own_stream_{command.lower()}"
            seen = "" if command == "INSERT" else f"USING ({own})"
            check = f"{seen} WITH CHECK ({own})" if command in ("INSERT", "UPDATE") else seen
            yield f"DROP POLICY IF EXISTS {name} ON {SCHEMA}.{table}"
            yield f"CREATE POLICY {name} ON {SCHEMA}.{table} AS RESTRICTIVE FOR {command} TO {role} {check}"


class DriverUiRow(LedgerTable):
    """The UI of the newest driver that had one: a row for each stream at most, so nothing has to be cleared."""

    __tablename__ = "driver_uis"

    stream: Mapped[str] = mapped_column(primary_key=True)
    run_id: Mapped[str]
    port: Mapped[int] = mapped_column(Integer)
    application: Mapped[str]
    key: Mapped[str]
    recorded_at: Mapped[datetime] = mapped_column(server_default=func.now())


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverUi:
    """The UI of one driver.

    run_id: the run that the driver carries out.
    port: on loopback of the driver's host.
    application: Spark's id of it, which is part of the UI's addresses.
    key: signs requests; base64url. It is worth nothing once the driver has ended.
    """

    run_id: str
    port: int
    application: str
    key: str = field(repr=False)


def record_driver_ui(ledger: Ledger, stream: str, ui: DriverUi) -> None:
    """Record where the driver of a stream serves its UI, in place of the one before it."""
    values = {"run_id": ui.run_id, "port": ui.port, "application": ui.application, "key": ui.key}
    recorded = insert(DriverUiRow).values(stream=stream, **values)
    change = {**values, "recorded_at": func.now()}
    with ledger.transaction() as connection:
        connection.execute(recorded.on_conflict_do_update(index_elements=[DriverUiRow.stream], set_=change))


def find_driver_ui(ledger: Ledger, stream: str) -> DriverUi | None:
    """The UI that was recorded last for a stream; none when no driver of it ever had one."""
    query = select(DriverUiRow.run_id, DriverUiRow.port, DriverUiRow.application, DriverUiRow.key)
    with ledger.transaction() as connection:
        row = connection.execute(query.where(DriverUiRow.stream == stream)).one_or_none()
    return None if row is None else DriverUi(run_id=row.run_id, port=row.port, application=row.application, key=row.key)
