"""Judges the metadata of a table and its staging tables: whether anything is left that names values of rows which are
meant, at which cut history ends, and what needs another cut. All of it is decided here, once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from pyiceberg.table import Table

from sluice.erasure.cut_history import HistoryLook, live_files
from sluice.erasure.file_columns import key_of
from sluice.erasure.searched_files import Found, PlacedFile, folders_of
from sluice.erasure.stale_metadata import Doubts, doubts_of, written_at


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedMetadata:
    """kept: the snapshots that stay, newest first, from the cut on; none when there is none that counts. doubtful: how
    many manifests may name values of such rows. unneeded: those of them to which nothing refers. to_cut: the staging
    tables that need a cut. outside: files that are named, and lie outside of the folders."""

    kept: tuple[int, ...]
    doubtful: int
    unneeded: tuple[PlacedFile, ...]
    to_cut: tuple[str, ...]
    outside: tuple[str, ...]


def judge_metadata(
    table: Table, staging: Sequence[Table], found: Found, *, after: Table | None = None
) -> JudgedMetadata:
    """Judge what a search has found.

    Parameters
    ----------
    table, staging: as they were before the files were listed. after: the table after that; it may have been written.

    Raises
    ------
    LakehouseError: when a manifest cannot be read.
    """
    folders = [one.location for one in folders_of(table, staging)]
    states = (table,) if after is None else (table, after)
    ours = doubts_of(states, found.metadata, found.harmless, folders=folders)
    theirs = [(one, doubts_of((one,), found.metadata, found.harmless, folders=folders)) for one in staging]
    every = (ours, *(doubts for _, doubts in theirs))
    return JudgedMetadata(
        kept=_kept(states[-1], found, ours),
        doubtful=sum(one.listed + len(one.unneeded) + len(one.earlier) for one in every),
        unneeded=tuple(file for one in every for file in one.unneeded),
        to_cut=tuple(".".join(one.name()) for one, doubts in theirs if _needs_cut(one, found, doubts)),
        outside=tuple(sorted({path for one in every for path in one.outside})),
    )


def unsearched_files(table: Table, found: Found) -> tuple[str, ...]:
    """The live files of a table that no search has read: they lie elsewhere. table: as it was before
    the files were listed."""
    return tuple(one.file_path for one in live_files(table) if key_of(one.file_path) not in found.harmless | found.keys)


def listed_in(table: Table, keys: Collection[str]) -> frozenset[str]:
    """Those of some files to which any snapshot of a table refers, by their keys.

    Raises
    ------
    LakehouseError: when a manifest cannot be read.
    """
    history = HistoryLook(table)
    history.doubtful()
    return frozenset(map(key_of, history.named())).intersection(keys)


def _kept(table: Table, found: Found, doubts: Doubts) -> tuple[int, ...]:
    """A cut counts while nothing doubtful is younger: what is not older than it may be of a commit that is under way,
    and would stay."""
    kept = HistoryLook(table, found.harmless).kept()
    return () if kept and any(_younger(table, kept[-1], found, doubts)) else kept


def _younger(table: Table, cut: int, found: Found, doubts: Doubts) -> Iterator[PlacedFile]:
    snapshot = table.snapshot_by_id(cut)
    since = None if snapshot is None else written_at(found.metadata, snapshot.manifest_list)
    yield from (one for one in doubts.unneeded if since is None or one.file.modified_at >= since)


def _needs_cut(staging: Table, found: Found, doubts: Doubts) -> bool:
    """Whether a staging table has more than one snapshot alone, an empty one behind which all is older."""
    if not staging.snapshots():
        return bool(doubts)
    return len(staging.snapshots()) > 1 or not _kept(staging, found, doubts)
