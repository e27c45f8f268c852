"""The table of the matrix: what ran, what is refused and why, what is wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from tests.matrix.running import name_of

from sluice.declarations.checks.combinations import INPUTS, MODES, OUTPUTS, TRIGGERS, Combination


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A combination and what became of it: refused with a reason, wrong with a reason, or run."""

    combination: Combination
    refused: str | None = None
    wrong: str | None = None
    seconds: float = 0.0

    def sentence(self) -> str:
        """One line of the progress."""
        return f"{self.seconds:6.1f} s  {name_of(self.combination)}{f'  WRONG: {self.wrong}' if self.wrong else ''}"

    def as_json(self) -> dict[str, Any]:
        """The cell for programs."""
        return asdict(self)

    def letter(self) -> str:
        """The cell in the table: its mode's first letter when it ran."""
        letter = self.combination.mode[0].upper()
        return "." if self.refused else f"[red]{letter}![/red]" if self.wrong else f"[green]{letter}[/green]"


def print_table(cells: Sequence[Cell], console: Console) -> None:
    """Print a row for each input and output, a column for each trigger, and below it the reasons."""
    by_combination = {cell.combination: cell for cell in cells}
    table = Table(title="A append, U update, C complete: ran.   . refused.   ! wrong.   Nothing: not run")
    for heading in ("input", "output", *TRIGGERS):
        table.add_column(heading)
    for source in INPUTS:
        for output in OUTPUTS:
            found = [_letters(by_combination, source, output, trigger) for trigger in TRIGGERS]
            if any(found):
                table.add_row(source, output, *found)
        table.add_section()
    console.print(table)
    _print_reasons("refused", Counter(cell.refused for cell in cells if cell.refused), console)
    _print_reasons(
        "wrong", Counter(f"{name_of(cell.combination)}: {cell.wrong}" for cell in cells if cell.wrong), console
    )
    ran = [cell for cell in cells if not cell.refused and not cell.wrong]
    wrong = sum(bool(cell.wrong) for cell in cells)
    seconds = sum(cell.seconds for cell in cells)
    console.print(
        f"{len(cells)} combinations: {len(ran)} ran and were right, {len(cells) - len(ran) - wrong} were refused, "
        f"{wrong} were wrong; {seconds:.0f} s of runs."
    )


def _letters(cells: dict[Combination, Cell], source: str, output: str, trigger: str) -> str:
    of_modes = (Combination(input=source, output=output, trigger=trigger, mode=mode) for mode in MODES)
    return " ".join(cells[one].letter() for one in of_modes if one in cells)


def _print_reasons(word: str, reasons: Counter[str], console: Console) -> None:
    for reason, count in _most_common(reasons.items()):
        console.print(f"{word} {count:4d}  {escape(reason)}")


def _most_common(items: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    return sorted(items, key=lambda item: (-item[1], item[0]))
