"""The files of a Delta table that a stream has not read, counted in the table's log; Spark is not asked.

Source of the log's form: https://github.com/delta-io/delta/blob/master/PROTOCOL.md
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sluice.checkpoints.checkpoint_files import CheckpointFiles
from sluice.ledger.progress_samples import LagObservation

_COMMIT = re.compile(r"_delta_log/(\d{20})\.json")

_Action = Mapping[str, Any]
"""One line of a commit: what it does, by the name of the action."""

MOST_COMMITS_READ = 200
"""How many commits are read at most: a stream that is further behind has that many unread files at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaPosition:
    """How far a stream has read a table: everything before `version`, and of that the files up to `index`.

    is_snapshot: whether it still reads the table as it was at its start.
    """

    version: int
    index: int
    is_snapshot: bool


def delta_position_of(offset: Any) -> DeltaPosition | None:
    """The position in an offset as Delta's source writes it, parsed from JSON; none before the first batch."""
    if not isinstance(offset, Mapping):
        return None
    return DeltaPosition(
        version=int(offset["reservoirVersion"]),
        index=int(offset["index"]),
        is_snapshot=bool(offset.get("isStartingVersion", False)),
    )


def unread_commits(offset: Any, *, table: CheckpointFiles, since: datetime | None) -> LagObservation | None:
    """Count the data files that were committed after a position.

    Parameters
    ----------
    offset: the reader's position; None before its first batch, which begins with the whole table.
    table: the folder of the table.
    since: where a reader without a position begins instead, as declared.

    Returns
    -------
    The lag in files; none when there is no table.

    Raises
    ------
    CheckpointError: when the storage does not answer.
    """
    paths = ((_COMMIT.fullmatch(seen.path), seen.path) for seen in table.list_files("_delta_log"))
    commits = {int(found[1]): path for found, path in paths if found is not None}
    if not commits:
        return None
    at = delta_position_of(offset)
    first = at.version if at is not None else min(commits)
    versions = sorted(version for version in commits if version >= first)
    read = [_actions(table.read_text(commits[version])) for version in versions[-MOST_COMMITS_READ:]]
    if at is None:
        is_whole = min(commits) == 0 and len(versions) <= MOST_COMMITS_READ
        return _unread_from_the_start(read, since, is_whole=is_whole)
    if at.is_snapshot:
        # How many files the table had then may be in Parquet only; it is known that some are left.
        later = read[1:] if at.version in commits else read
        return LagObservation(rows=None, files=1 + sum(len(_data_files(commit)) for commit in later))
    files = sum(len(_data_files(commit)) or _takes_away(commit) for commit in read)
    is_begun = at.version in commits and len(versions) <= MOST_COMMITS_READ
    done = min(max(at.index + 1, 0), len(_data_files(read[0]))) if is_begun else 0
    return LagObservation(rows=None, files=files - done)


def _unread_from_the_start(
    commits: Sequence[Sequence[_Action]], since: datetime | None, *, is_whole: bool
) -> LagObservation:
    """The unread files of a reader without a position."""
    if since is not None:
        begun = [commit for commit in commits if (at := _committed_at(commit)) is None or at >= since]
        return LagObservation(rows=None, files=sum(len(_data_files(commit)) for commit in begun))
    if not is_whole:
        problem = "the stream has not started yet, and the beginning of the Delta table's log is not at hand"
        return LagObservation(rows=None, problem=problem)
    files: set[str] = set()
    for commit in commits:
        files |= {action["add"]["path"] for action in commit if "add" in action}
        files -= {action["remove"]["path"] for action in commit if "remove" in action}
    return LagObservation(rows=None, files=len(files))


def _actions(commit: str | None) -> list[_Action]:
    return [json.loads(line) for line in (commit or "").splitlines() if line.strip()]


def _data_files(commit: Sequence[_Action]) -> list[str]:
    """The files with new rows, in order; those that a compaction rewrote carry none."""
    return [action["add"]["path"] for action in commit if action.get("add", {}).get("dataChange", False)]


def _takes_away(commit: Sequence[_Action]) -> bool:
    """Whether a commit only deleted rows: its reader has no file to read, and fails at it."""
    return any(action.get("remove", {}).get("dataChange", False) for action in commit)


def _committed_at(commit: Sequence[_Action]) -> datetime | None:
    stamps = [action["commitInfo"]["timestamp"] for action in commit if "timestamp" in action.get("commitInfo", {})]
    return datetime.fromtimestamp(stamps[0] / 1000, UTC) if stamps else None
