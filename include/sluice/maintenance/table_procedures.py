"""The port for the steps of maintenance that need an engine: they read and write data files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from sluice.errors import LakehouseError


class CommitConflictError(LakehouseError):
    """Another writer committed to the table first. The same work is tried again, and the error goes no further."""


class TableProcedures(Protocol):
    """Iceberg's procedures on one table. Each returns its result by the procedure's own column names.

    Each raises CommitConflictError when another writer committed first, and LakehouseError when it fails otherwise.
    """

    def rewrite_data_files(self, options: Mapping[str, str]) -> Mapping[str, Any]:
        """Write small files together into larger ones.

        Parameters
        ----------
        options: of the procedure, by their names.
        """

    def rewrite_manifests(self) -> Mapping[str, Any]:
        """Write the manifests together into fewer ones."""

    def expire_snapshots(self, *, older_than: datetime, retain_last: int) -> Mapping[str, Any]:
        """Remove the snapshots that are older than a time, except so many of the newest ones of each branch."""

    def changed_content(self, rewrites: Sequence[tuple[int, int]], *, is_hashed: bool) -> str:
        """Describe the first difference between the rows of a rewrite and of its parent; empty when there is none.

        Parameters
        ----------
        rewrites: the snapshots, each as (parent, rewrite).
        is_hashed: whether rows are compared by their hashes; if not, they are counted.
        """
