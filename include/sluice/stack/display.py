"""The progress that is shown while a stack changes: live lines on a terminal, plain lines elsewhere, or nothing."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn


class Display(Protocol):
    """Shows the progress of every step. It is called from several threads."""

    def begin(self, step: str, title: str) -> None:
        """A step begins: the steps that it needs are done."""

    def finish(self, step: str, outcome: str) -> None:
        """A step has succeeded; `outcome` says in a few words what was done."""

    def note(self, text: str) -> None:
        """Show a line of text."""


class SilentDisplay:
    """Shows nothing."""

    def begin(self, step: str, title: str) -> None:
        """See Display."""

    def finish(self, step: str, outcome: str) -> None:
        """See Display."""

    def note(self, text: str) -> None:
        """See Display."""


class PlainDisplay:
    """Prints one line for each step that is done: for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._begun: dict[str, tuple[str, float]] = {}

    def begin(self, step: str, title: str) -> None:
        """See Display."""
        self._begun[step] = (title, time.monotonic())

    def finish(self, step: str, outcome: str) -> None:
        """See Display."""
        title, begun = self._begun[step]
        self.note(f"{title}: {outcome} ({time.monotonic() - begun:.1f} s)")

    def note(self, text: str) -> None:
        """See Display."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


class LiveDisplay:
    """Shows one line for each step, with a spinner until it is done: for a terminal."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            SpinnerColumn(finished_text="[green]✓[/green]"),
            TextColumn("{task.description}", markup=False),
            TimeElapsedColumn(),
            TextColumn("{task.fields[outcome]}", style="dim", markup=False),
            console=console,
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._progress.stop()

    def begin(self, step: str, title: str) -> None:
        """See Display."""
        self._tasks[step] = self._progress.add_task(title, total=1, outcome="…")

    def finish(self, step: str, outcome: str) -> None:
        """See Display."""
        self._progress.update(self._tasks[step], completed=1, outcome=outcome)

    def note(self, text: str) -> None:
        """See Display."""
        self._progress.console.print(text, markup=False, highlight=False)
