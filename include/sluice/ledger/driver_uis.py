"""Where the driver of a stream serves Spark's own UI, and the key that its requests are signed with."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import Integer, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Mapped, mapped_column

from sluice.ledger.connection import Ledger
from sluice.ledger.ledger_table import LedgerTable


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
