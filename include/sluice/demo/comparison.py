"""Compares two sets of rows as multisets, in both directions, and gives examples of the differences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from sluice.errors import VerificationError

if TYPE_CHECKING:
    import duckdb  # of the `local` extra, which a deployment does not install

_SAMPLE_ROWS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """The result of one check.

    statement: what must be true.
    expected_rows, seen_rows: how many rows were compared.
    missing_rows: expected rows that were not seen, each counted as often as it is missing.
    surplus_rows: the reverse.
    samples: a few of the rows that differ.
    """

    name: str
    statement: str
    expected_rows: int
    seen_rows: int
    missing_rows: int
    surplus_rows: int
    samples: tuple[str, ...] = ()

    @property
    def is_true(self) -> bool:
        """Whether the statement holds."""
        return self.missing_rows == 0 and self.surplus_rows == 0

    @property
    def explanation(self) -> str:
        """The result as a sentence, with the rows that differ."""
        if self.is_true:
            return f"{self.name}: {self.statement} ({self.expected_rows:,} rows)"
        found = (
            f"{self.name}: it is not true that {self.statement}. Expected {self.expected_rows:,} rows, "
            f"got {self.seen_rows:,}: {self.missing_rows:,} are missing and {self.surplus_rows:,} should not be there."
        )
        return "\n    ".join([found, *self.samples])

    def as_json(self) -> dict[str, object]:
        """The result for a program."""
        return asdict(self) | {"is_true": self.is_true}


def compare(database: duckdb.DuckDBPyConnection, *, name: str, statement: str, expected: str, seen: str) -> CheckResult:
    """Compare the rows of two queries, which name their columns in the same order.

    Parameters
    ----------
    database: holds both sides.
    name: the name of the check.
    statement: what must be true, as the second half of "it is true that …".
    expected, seen: SELECT statements.
    """
    database.execute(f"create or replace temp table expected_rows as {expected}")  # the caller's own constant
    database.execute(f"create or replace temp table seen_rows as {seen}")  # the caller's own constant
    missing = "(from expected_rows except all from seen_rows)"
    surplus = "(from seen_rows except all from expected_rows)"
    return CheckResult(
        name=name,
        statement=statement,
        expected_rows=_count(database, "expected_rows"),
        seen_rows=_count(database, "seen_rows"),
        missing_rows=_count(database, missing),
        surplus_rows=_count(database, surplus),
        samples=(*_samples(database, "missing", missing), *_samples(database, "surplus", surplus)),
    )


def compare_number(*, name: str, statement: str, expected: int, seen: int) -> CheckResult:
    """Compare two counts of rows."""
    return CheckResult(
        name=name,
        statement=statement,
        expected_rows=expected,
        seen_rows=seen,
        missing_rows=max(0, expected - seen),
        surplus_rows=max(0, seen - expected),
    )


def require_truth(results: Sequence[CheckResult]) -> None:
    """Check that every result is true.

    Raises
    ------
    VerificationError: when one is false; it names each failed check with the expected and seen rows and samples.
    """
    failed = [result for result in results if not result.is_true]
    if failed:
        raise VerificationError(
            f"{len(failed)} of {len(results)} checks of the tables failed.\n"
            + "\n".join(f"  {result.explanation}" for result in failed),
            next_step="The stack still runs and the tables are untouched: look at them before `sluice stack down`.",
        )


def _count(database: duckdb.DuckDBPyConnection, relation: str) -> int:
    row = database.execute(f"from {relation} select count(*)").fetchone()
    assert row is not None  # noqa: S101  # count(*) always gives one row
    return int(row[0])


def _samples(database: duckdb.DuckDBPyConnection, word: str, relation: str) -> Iterable[str]:
    found = database.execute(f"from {relation} order by all limit {_SAMPLE_ROWS}")
    columns = [column[0] for column in found.description or ()]
    for row in found.fetchall():
        yield f"{word}: " + ", ".join(f"{column}={value}" for column, value in zip(columns, row, strict=True))
