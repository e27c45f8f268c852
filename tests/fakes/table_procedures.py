"""The procedures of maintenance, as an engine answers that changes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sluice.errors import LakehouseError
from sluice.maintenance.file_rewrite import CommitConflictError
from sluice.maintenance.step_decision import StoreRefusesError
from sluice.tables.table_observation import StatisticsKind


@dataclass(slots=True)
class FakeProcedures:
    """Does nothing to the table, and remembers what it was asked for.

    conflicts: how many rewrites another writer comes before. failed_files: what a rewrite could not replace.
    rewritten_files: what each rewrite replaces. lost_parts: what writers always come before. failing_part: what fails.
    difference: what the comparison of the rows finds. failure: the error of every procedure.
    kept_deletes: what comes of each try to remove delete files before one that succeeds.
    refused_statistics: those that the store takes no file of.
    """

    conflicts: int = 0
    failed_files: int = 0
    rewritten_files: int = 0
    lost_parts: tuple[str, ...] = ()
    failing_part: str = ""
    difference: str = ""
    failure: str = ""
    kept_deletes: list[LakehouseError] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    refused_statistics: tuple[StatisticsKind, ...] = ()

    def rewrite_data_files(
        self, options: Mapping[str, str], *, where: str, is_sorted: bool, z_order: Sequence[str]
    ) -> Mapping[str, Any]:
        """Replace no file."""
        how = f" by {', '.join(z_order)}" if z_order else " sorted" if is_sorted else ""
        self._ask(f"rewrite_data_files {dict(options)}{how}{where}")
        if where.strip() in self.lost_parts:
            raise CommitConflictError(f"part{where} has changed")
        if self.failing_part and where.strip() == self.failing_part:
            raise LakehouseError("the store is away")
        return {"failed_data_files_count": self.failed_files, "rewritten_data_files_count": self.rewritten_files}

    def remove_dangling_deletes(self) -> int:
        """Remove two delete files."""
        self.asked.append("remove_dangling_deletes")
        if self.kept_deletes:
            raise self.kept_deletes.pop()
        return 2

    def rewrite_manifests(self) -> Mapping[str, Any]:
        """Write no manifest."""
        self._ask("rewrite_manifests")
        return {}

    def expire_snapshots(self, *, older_than: datetime, retain_last: int) -> Mapping[str, Any]:
        """Remove no snapshot."""
        self._ask(f"expire_snapshots {older_than:%Y} {retain_last}")
        return {"deleted_data_files_count": 0}

    def compute_statistics(self, kind: StatisticsKind, *, columns: Sequence[str] | None) -> str:
        """Write no file, or refuse to."""
        self._ask(f"compute_statistics {kind} {columns}")
        if kind in self.refused_statistics:
            raise StoreRefusesError("403, access denied.")
        return f"{kind}.stats"

    def changed_content(self, rewrites: Sequence[tuple[int, int]], *, is_hashed: bool) -> str:
        """What the test says."""
        self.asked.append(f"changed_content {len(rewrites)} {is_hashed}")
        return self.difference

    def _ask(self, what: str) -> None:
        self.asked.append(what)
        if self.failure:
            raise LakehouseError(self.failure)
        if self.conflicts:
            self.conflicts -= 1
            raise CommitConflictError("the table has changed")
