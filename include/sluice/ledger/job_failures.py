"""The last lines of failed jobs whose logs stay on a cluster."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import delete, func
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Mapped, mapped_column

from sluice.ledger.connection import Ledger
from sluice.ledger.ledger_table import LedgerTable


class JobFailureRow(LedgerTable):
    """The newest failure of a job: a row for each job and its subject, so nothing has to be cleared."""

    __tablename__ = "job_failures"

    job: Mapped[str] = mapped_column(primary_key=True)
    run_id: Mapped[str]
    last_lines: Mapped[str]
    recorded_at: Mapped[datetime] = mapped_column(server_default=func.now())


def record_job_failure(ledger: Ledger, job: str, *, run_id: str, last_lines: str) -> None:
    """Record why a job failed, in place of its failure before.

    Parameters
    ----------
    job: its file and its arguments' first value, as `maintain_table bronze.flights`.
    run_id: under which its task asks for the failure.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    values = {"run_id": run_id, "last_lines": last_lines}
    recorded = insert(JobFailureRow).values(job=job, **values)
    change = {**values, "recorded_at": func.now()}
    with ledger.transaction() as connection:
        connection.execute(recorded.on_conflict_do_update(index_elements=[JobFailureRow.job], set_=change))


def take_job_failure(ledger: Ledger, *, run_id: str) -> str | None:
    """The last lines of a job that failed, which are removed; none when it left none.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    with ledger.transaction() as connection:
        taken = delete(JobFailureRow).where(JobFailureRow.run_id == run_id).returning(JobFailureRow.last_lines)
        return connection.execute(taken).scalar_one_or_none()
