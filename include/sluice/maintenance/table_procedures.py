"""What an engine does for the maintenance of a table: the port, and what it may find."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from sluice.errors import LakehouseError
from sluice.tables.table_observation import StatisticsKind


class StoreRefusesError(LakehouseError):
    """The object store or the catalog takes a kind of file or of change from no one. Trying again does not help."""


class TableProcedures(Protocol):
    """Iceberg's procedures on one table. Each returns its result by the procedure's own column names.

    Each raises CommitConflictError when another writer committed first, and LakehouseError when it fails otherwise.
    """

    def rewrite_data_files(
        self, options: Mapping[str, str], *, where: str, is_sorted: bool, z_order: Sequence[str]
    ) -> Mapping[str, Any]:
        """Write small files together into larger ones, with one commit.

        Parameters
        ----------
        options: of the procedure, by their names.
        where: the filter of the files, as Iceberg's JSON; empty for all.
        is_sorted: whether all their rows are sorted by the order of the table.
        z_order: the columns by which all their rows are z-ordered; empty for none.
        """

    def remove_dangling_deletes(self) -> int:
        """Remove the delete files that hide nothing any more, and return their number."""

    def rewrite_manifests(self) -> Mapping[str, Any]:
        """Write the manifests together into fewer ones."""

    def expire_snapshots(self, *, older_than: datetime, retain_last: int) -> Mapping[str, Any]:
        """Remove the snapshots that are older than a time, except so many of the newest ones of each branch."""

    def compute_statistics(self, kind: StatisticsKind, *, columns: Sequence[str] | None) -> str:
        """Compute statistics of the newest snapshot, and return the path of their file; empty where it has no rows.

        Parameters
        ----------
        kind: of columns, or of partitions.
        columns: of which distinct values are counted; unset: of every one.

        Raises
        ------
        StoreRefusesError: when the store or the catalog takes no such file.
        """

    def changed_content(self, rewrites: Sequence[tuple[int, int]], *, is_hashed: bool) -> str:
        """Describe the first difference between the rows of a rewrite and of its parent; empty when there is none.

        Parameters
        ----------
        rewrites: the snapshots, each as (parent, rewrite).
        is_hashed: whether rows are compared by their hashes; if not, they are counted.
        """
