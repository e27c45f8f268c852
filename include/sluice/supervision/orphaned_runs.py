"""Runs that fit no declaration: their file is gone or broken, or their stream has another mode now. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from sluice.declarations.loaded_declarations import STREAM_SUFFIX, Declarations
from sluice.ledger.run_values import RunObservation


class OrphanReason(StrEnum):
    """Why a run does not fit what is declared."""

    UNDECLARED = "undeclared"
    BROKEN = "declaration broken"
    MODE_CHANGED = "mode changed"


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphanedRun:
    """The newest run of a stream that does not fit what is declared.

    may_end: whether it is to end; a run whose file is broken continues until the file is corrected or deleted.
    """

    run: RunObservation
    reason: OrphanReason
    explanation: str
    may_end: bool

    @property
    def stream(self) -> str:
        """The name of the stream in the ledger."""
        return self.run.stream


def find_orphaned_runs(declarations: Declarations, newest: Iterable[RunObservation]) -> tuple[OrphanedRun, ...]:
    """The newest runs that do not fit what is declared now. Pure.

    While a folder holds no declaration at all, nothing is known about what is declared, and no run is to end.

    Parameters
    ----------
    newest: the newest run of every stream that ever ran.
    """
    is_known = bool(declarations.stream_names)
    return tuple(orphan for run in newest if (orphan := _orphan_of(declarations, run, is_known=is_known)) is not None)


def _orphan_of(declarations: Declarations, run: RunObservation, *, is_known: bool) -> OrphanedRun | None:
    name = run.stream
    declared = declarations.streams.get(name)
    if declared is None and name in declarations.stream_names:
        return _broken(declarations, run)
    if not run.is_live:
        return None
    lives = f"run {run.run_id} of the {run.mode} stream {name} still lives"
    if declared is None:
        text = (
            f"No file in {declarations.folder} declares {name} any more, and {lives}. It ends after its batch; to keep "
            "it, restore its declaration."
        )
        return OrphanedRun(run=run, reason=OrphanReason.UNDECLARED, explanation=text, may_end=is_known)
    if run.mode == declared.declaration.mode or run.mode != "continuous":
        return None  # the supervision of a continuous stream replaces a run of an increment itself
    text = f"{name} is declared {declared.declaration.mode} now, and {lives}. It ends after its batch."
    return OrphanedRun(run=run, reason=OrphanReason.MODE_CHANGED, explanation=text, may_end=True)


def _broken(declarations: Declarations, run: RunObservation) -> OrphanedRun:
    file_name = f"{run.stream}{STREAM_SUFFIX}"
    problems = [problem for problem in declarations.problems if problem.location.file.name == file_name]
    state = "continues with its previous declaration" if run.is_live else "has ended, and none is started"
    why = str(problems[0]).replace("\n", " ") if problems else "another declaration contradicts it"
    text = f"The declaration of {run.stream} is broken; run {run.run_id} {state}: {why}"
    return OrphanedRun(run=run, reason=OrphanReason.BROKEN, explanation=text, may_end=False)
