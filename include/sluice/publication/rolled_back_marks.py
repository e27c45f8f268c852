"""The marks on a table that its main does not hold any more: it was rolled back, and waits until a person adopts it."""

from __future__ import annotations

from dataclasses import dataclass

from pyiceberg.table import Table

from sluice.errors import RolledBackError
from sluice.publication.chain import MarkPosition
from sluice.publication.marks import Mark, marked_outputs, read_mark, state_since
from sluice.publication.staged_batch import StagedOutput

ADOPT = "sluice table adopt {table} --undo --dry-run"
"""The command that shows what can become of such a table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolledBackMark:
    """A mark that main does not hold any more. problem: in the words of publication."""

    output: StagedOutput
    mark: Mark
    problem: str

    @property
    def at(self) -> MarkPosition:
        """Where the mark stands."""
        return self.mark.at


def rolled_back_marks(table: Table) -> tuple[RolledBackMark, ...]:
    """The marks on a loaded table that main does not hold any more, by the names of their outputs.

    Raises
    ------
    MarkError, DivergedError: when a mark cannot be read, or shows another fault that comes first.
    """
    return tuple(found for output in marked_outputs(table) if (found := _rolled_back(table, output)) is not None)


def _rolled_back(table: Table, output: StagedOutput) -> RolledBackMark | None:
    mark = read_mark(table, stream=output.stream, output=output.output)
    if mark is None:
        return None
    try:
        state_since(table, mark, output)
    except RolledBackError as error:
        return RolledBackMark(output=output, mark=mark, problem=error.message)
    return None
