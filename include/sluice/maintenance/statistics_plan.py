"""Decides whether the statistics of a table are computed again, and has an engine do it.

A statistics file describes one snapshot. Spark takes the distinct values of columns from the file of the very snapshot
that it reads, other engines also from an earlier one. So statistics are outdated since the commit after their snapshot,
whatever it changed.

Some stores take no such file into the folder of a table. That is found out once: the run ends with it, and what was
refused is not tried again until the declaration, the folder or the version of the program is another one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from typing import Any

from sluice.declarations.maintenance_declaration import StatisticsDeclaration
from sluice.declarations.scalar_types import duration_words
from sluice.errors import LakehouseError
from sluice.ledger.maintenance_runs import MaintenanceStep, StepObservation
from sluice.maintenance.step_decision import (
    SPARK_SECONDS,
    SPARK_SECONDS_OF_A_MEBIBYTE,
    StepAction,
    StepDecision,
    StepReason,
    StoreRefusesError,
    TableProcedures,
    skipped,
)
from sluice.tables.table_observation import StatisticsKind, TableObservation

KINDS, COLUMNS, REFUSED, BASIS = "kinds", "columns", "refused", "basis"
"""What a due step says, and what it found: the kinds of statistics; the columns; why a kind was refused, by its name;
and by which declaration, folder and version that was found."""

_STEP = MaintenanceStep.COMPUTE_STATISTICS


class NewRefusalsError(LakehouseError):
    """The store refuses statistics that it had not refused yet. result: what was computed and refused all the same."""

    def __init__(self, message: str, result: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.result = result


def decide_statistics(
    policy: StatisticsDeclaration | None, seen: TableObservation, now: datetime, *, tried: StepObservation | None
) -> StepDecision:
    """What to do about the statistics of a table at a time.

    Parameters
    ----------
    tried: what came of the newest ones that were computed, or refused by the store; unset: there were none.
    """
    if policy is None:
        return skipped(_STEP, StepReason.NOT_DECLARED, "the table declares no statistics")
    if seen.snapshot_id is None:
        return skipped(_STEP, StepReason.NO_SNAPSHOT, "the table has no snapshot yet")
    columns = None if policy.columns is None else [name for name in policy.columns if name in seen.columns]
    basis = _basis(policy, seen)
    refused: Mapping[str, str] = {}
    if tried is not None and tried.result.get(BASIS) == basis:
        refused = tried.result.get(REFUSED, {})
    judged = [_judged(kind, policy, columns, seen, now) for kind in _kinds(columns, seen) if kind not in refused]
    due = [one for one in judged if one.is_due]
    said = "; ".join([*(one.words for one in judged), *(_refusal(kind, why) for kind, why in sorted(refused.items()))])
    if not due:
        reason = StepReason.STORE_REFUSES if refused and not judged else StepReason.STATISTICS_CURRENT
        return skipped(_STEP, reason, said or "the table has no partitions, and none of the declared columns")
    reads = seen.data_bytes if any(one.kind is StatisticsKind.COLUMNS for one in due) else 0
    return StepDecision(
        step=_STEP,
        action=StepAction.RUN,
        reason=StepReason.STATISTICS_OUTDATED,
        explanation=said,
        options={
            KINDS: [one.kind for one in due],
            COLUMNS: columns,
            REFUSED: dict(refused),
            BASIS: basis,
        },
        is_for_spark=True,
        gain=len(due),
        cost_seconds=SPARK_SECONDS + reads / 1024**2 * SPARK_SECONDS_OF_A_MEBIBYTE,
        cost_bytes=reads,
    )


def compute_statistics(engine: TableProcedures, decision: StepDecision) -> Mapping[str, Any]:
    """Compute the statistics of a due step. A kind that the store refuses does not keep the other from being computed.

    Returns
    -------
    The files by their kind, and what is refused by now.

    Raises
    ------
    NewRefusalsError: when the store refuses one that it had not refused before.
    LakehouseError, CommitConflictError: as the engine raises them.
    """
    refused: dict[str, str] = dict(decision.options[REFUSED])
    result: dict[str, Any] = {BASIS: decision.options[BASIS], REFUSED: refused}
    found: list[str] = []
    for kind in decision.options[KINDS]:
        try:
            result[kind] = engine.compute_statistics(kind, columns=decision.options[COLUMNS])
        except StoreRefusesError as error:
            refused[kind] = error.message
            found.append(_refusal(kind, error.message))
    if found:
        raise NewRefusalsError(f"{'; '.join(found)}. They are not tried again while nothing about them changes", result)
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judged:
    """A kind of statistics. words: how old they are, for a sentence."""

    kind: StatisticsKind
    is_due: bool
    words: str


def _kinds(columns: Sequence[str] | None, seen: TableObservation) -> Iterator[StatisticsKind]:
    if columns is None or columns:
        yield StatisticsKind.COLUMNS
    if seen.is_partitioned:
        yield StatisticsKind.PARTITIONS


def _judged(
    kind: StatisticsKind,
    policy: StatisticsDeclaration,
    columns: Sequence[str] | None,
    seen: TableObservation,
    now: datetime,
) -> _Judged:
    line = seen.main_line
    places = {snapshot.snapshot_id: place for place, snapshot in enumerate(line)}
    listed = [one for one in seen.statistics if one.kind is kind and one.snapshot_id in places]
    newest = min(listed, key=lambda one: places[one.snapshot_id], default=None)
    what = f"statistics of {kind}"
    if newest is None:
        return _Judged(kind=kind, is_due=True, words=f"there are no {what}")
    missing = _missing(columns or (), newest.columns) if kind is StatisticsKind.COLUMNS else ""
    if missing:
        return _Judged(kind=kind, is_due=True, words=f"the {what} have no {missing}")
    place = places[newest.snapshot_id]
    if place == 0:
        return _Judged(kind=kind, is_due=False, words=f"the {what} are of the newest snapshot")
    since = line[place - 1].committed_at
    words = (
        f"the {what} are outdated since {since:%Y-%m-%d %H:%M} UTC, and are computed again "
        f"{duration_words(policy.older_than)} after that"
    )
    return _Judged(kind=kind, is_due=now - since >= policy.older_than, words=words)


def _missing(declared: Sequence[str], known: Sequence[str]) -> str:
    return ", ".join(name for name in declared if name not in known)


def _refusal(kind: str, why: str) -> str:
    return f"the store takes no statistics of {kind}: {why.rstrip('.')}"


def _basis(policy: StatisticsDeclaration, seen: TableObservation) -> str:
    return sha256(repr((_version(), seen.location, policy.columns)).encode()).hexdigest()


@cache
def _version() -> str:
    return version("sluice")
