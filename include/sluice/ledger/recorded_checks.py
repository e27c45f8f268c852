"""What the checks of the checkpoints and the quality checks of the tables found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import Identity, Index, Row, delete, insert, select
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.orm import Mapped, mapped_column

from sluice.ledger.connection import Ledger
from sluice.ledger.ledger_table import LedgerTable, newest_by_table
from sluice.ledger.stored_values import record_of, values_of
from sluice.ledger.stream_troubles import Trouble, add_trouble


class CheckpointProperty(StrEnum):
    """What must be true of a healthy checkpoint; each check reports one finding for each of these.

    POSITION: tables, ledger, checkpoint and sources agree where the stream stands.
    PUBLISHED_FILES: those of the published files that were looked for exist.
    COPIES: nothing shows that the newest copy of the state could not be put back.
    """

    EXISTS = "exists"
    IDENTITY = "identity"
    OFFSETS_CONTIGUOUS = "offsets_contiguous"
    OFFSETS_READABLE = "offsets_readable"
    COMMITS_FOLLOW_OFFSETS = "commits_follow_offsets"
    COMMITS_READABLE = "commits_readable"
    FILES_COMPLETE = "files_complete"
    STATE_COMPLETE = "state_complete"
    NO_LEFTOVERS = "no_leftovers"
    PROGRESS = "progress"
    POSITION = "position"
    PUBLISHED_FILES = "published_files"
    COPIES = "copies"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFinding:
    """One thing that was looked at: whether it is as it must be, and the sentence for a person."""

    name: CheckpointProperty
    healthy: bool
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointObservation:
    """One check of one checkpoint.

    location: the URI of the checkpoint folder.
    checked_at: the time against which ages were judged.
    newest_batch: the newest batch that is committed; unset before the first.
    newest_commit_age_seconds: how long ago it was committed; unset before the first.
    recorded_at: the database's clock; unset until the ledger has it.
    """

    stream: str
    generation: int
    location: str
    checked_at: datetime
    findings: tuple[CheckpointFinding, ...]
    newest_batch: int | None
    newest_commit_age_seconds: float | None
    recorded_at: datetime | None = None

    @property
    def problems(self) -> Sequence[CheckpointFinding]:
        """What is not as it must be."""
        return tuple(finding for finding in self.findings if not finding.healthy)

    @property
    def healthy(self) -> bool:
        """Whether everything that was looked at is as it must be."""
        return not self.problems


class CheckpointCheck(LedgerTable, record=CheckpointObservation):
    """One check of one checkpoint."""

    __tablename__ = "checkpoint_checks"
    __table_args__ = (Index(None, "stream", "number"),)

    number: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)


_CHECKPOINT_COLUMNS = CheckpointCheck.columns(without=("number",))


def record_checkpoint_check(ledger: Ledger, check: CheckpointObservation) -> None:
    """Record what a check of a checkpoint found."""
    with ledger.transaction() as connection:
        connection.execute(insert(CheckpointCheck).values(**values_of(check)))


def newest_checkpoint_check(ledger: Ledger, stream: str) -> CheckpointObservation | None:
    """The newest check of a stream's checkpoint; none before its first."""
    return next(iter(recent_checkpoint_checks(ledger, stream, limit=1)), None)


def recent_checkpoint_checks(ledger: Ledger, stream: str, limit: int) -> tuple[CheckpointObservation, ...]:
    """The newest checks of a stream's checkpoint, newest first, at most `limit`."""
    newest = (
        select(*_CHECKPOINT_COLUMNS).where(CheckpointCheck.stream == stream).order_by(CheckpointCheck.number.desc())
    )
    with ledger.transaction() as connection:
        rows = connection.execute(newest.limit(limit)).all()
    return tuple(record_of(CheckpointObservation, row) for row in rows)


class QualityVerdict(StrEnum):
    """The result of a check. Bad data and a check that could not be made are different results.

    UNDECIDED: an expectation could not be evaluated, for example because its column does not exist.
    NOTHING_TO_CHECK: the table has no snapshot yet.
    """

    PASSED = "passed"
    FAILED = "failed"
    UNDECIDED = "undecided"
    NOTHING_TO_CHECK = "nothing_to_check"


UNSUCCESSFUL_VERDICTS = frozenset({QualityVerdict.FAILED, QualityVerdict.UNDECIDED})
"""A check with one of these verdicts ends with exit code 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectationObservation:
    """One expectation and what was found.

    expectation: Great Expectations' type, for example `expect_column_values_to_not_be_null`.
    arguments: the keyword arguments as they were declared.
    success: unset when it could not be evaluated; `problem` then says why.
    unexpected_rows, unexpected_percent: of row-wise expectations; unset for the others.
    """

    expectation: str
    arguments: Mapping[str, Any]
    success: bool | None
    observed: Mapping[str, Any] = field(default_factory=dict)
    unexpected_rows: int | None = None
    unexpected_percent: float | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityObservation:
    """One check of one table at one snapshot.

    snapshot_id, snapshot_committed_at: what was read; unset when the table had no snapshot.
    rows: the rows that were read.
    expectations: how many were checked; `failed_expectations` names those that failed or could not be evaluated.
    report: the page for a person, a path or URI; unset when none was built.
    details: every expectation with what was found.
    recorded_at: the database's clock; unset until the ledger has it.
    """

    table: str
    checked_at: datetime
    launched_by: str
    verdict: QualityVerdict
    snapshot_id: int | None
    snapshot_committed_at: datetime | None
    rows: int
    expectations: int
    failed_expectations: tuple[str, ...]
    report: str | None
    details: tuple[ExpectationObservation, ...] = ()
    recorded_at: datetime | None = None

    @property
    def success(self) -> bool:
        """Whether expectations were checked and all of them were met."""
        return self.verdict is QualityVerdict.PASSED


class QualityResult(LedgerTable, record=QualityObservation):
    """One quality check of one table at one snapshot."""

    __tablename__ = "quality_results"
    __table_args__ = (Index(None, "table", "number"),)

    number: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)


_QUALITY_COLUMNS = QualityResult.columns(without=("number",))


def record_quality(ledger: Ledger, check: QualityObservation, *, sentence: str) -> None:
    """Record what a quality check found, and that the table is in trouble, or is not any more.

    Parameters
    ----------
    sentence: the result for a person.
    """
    with ledger.transaction() as connection:
        connection.execute(insert(QualityResult).values(**values_of(check)))
        if check.verdict in UNSUCCESSFUL_VERDICTS:
            add_trouble(
                connection, check.table, reason=f"check {check.verdict}", explanation=sentence, by="quality check"
            )
        else:
            connection.execute(delete(Trouble).where(Trouble.stream == check.table))


def newest_quality(ledger: Ledger, table: str) -> QualityObservation | None:
    """The newest quality check of a table; none before its first."""
    return next(iter(recent_quality(ledger, table, limit=1)), None)


def newest_results_of_tables(ledger: Ledger, tables: Sequence[str]) -> Mapping[str, Row[Any]]:
    """The newest quality check of each of some tables, without its details, by table."""
    with ledger.transaction() as connection:
        found = connection.execute(newest_by_table(QualityResult, tables, without=("details",)))
        return {row.table: row for row in found}


def checks_of_tables(
    ledger: Ledger, tables: Sequence[str], *, limit: int
) -> Mapping[str, tuple[QualityObservation, ...]]:
    """The newest checks of some tables, newest first, at most `limit` of each. Details are only those of a newest check
    that found something: they are long."""
    newest = newest_by_table(QualityResult, tables, without=("details",), limit=limit)
    with ledger.transaction() as connection:
        found: dict[str, list[Row[Any]]] = {}
        for row in connection.execute(newest):
            found.setdefault(row.table, []).append(row)
        broken = [rows[0].number for rows in found.values() if rows[0].verdict in UNSUCCESSFUL_VERDICTS]
        whole = (
            connection.execute(select(*_QUALITY_COLUMNS).where(QualityResult.number.in_(broken))).all()
            if broken
            else []
        )
    checks = {table: tuple(record_of(QualityObservation, row) for row in rows) for table, rows in found.items()}
    with_details = {row.table: record_of(QualityObservation, row) for row in whole}
    return {table: (with_details.get(table, rows[0]), *rows[1:]) for table, rows in checks.items()}


def newest_checks(ledger: Ledger) -> tuple[QualityObservation, ...]:
    """The newest quality check of every table that has one, by the tables' names."""
    newest = select(*_QUALITY_COLUMNS).ext(distinct_on(QualityResult.table))
    with ledger.transaction() as connection:
        rows = connection.execute(newest.order_by(QualityResult.table, QualityResult.number.desc())).all()
    return tuple(record_of(QualityObservation, row) for row in rows)


def recent_quality(ledger: Ledger, table: str, limit: int) -> tuple[QualityObservation, ...]:
    """The newest quality checks of a table, newest first, at most `limit`."""
    newest = select(*_QUALITY_COLUMNS).where(QualityResult.table == table).order_by(QualityResult.number.desc())
    with ledger.transaction() as connection:
        rows = connection.execute(newest.limit(limit)).all()
    return tuple(record_of(QualityObservation, row) for row in rows)
