"""What is seen of the streams while the demo runs: a live table on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

    from sluice.supervision.stream_status import StreamRow

    Render = Callable[[Sequence[StreamRow], str], RenderableType]

_LINE_EVERY_SECONDS = 10.0


class LiveTable:
    """Shows the streams. A context manager: leaving it leaves the last table on the screen.

    Parameters
    ----------
    console: where; None shows nothing.
    render: makes the table of the streams under a headline, as the other commands show it.
    clock: seconds that never go back.
    """

    def __init__(self, console: Console | None, *, render: Render, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._render = render
        self._clock = clock
        self._live: Live | None = None
        self._line_due = float("-inf")
        self._last_line = ""

    def __enter__(self) -> Self:
        if self._console is not None and self._console.is_terminal:
            from rich.live import Live

            self._live = Live(console=self._console, refresh_per_second=4)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def show(self, headline: str, rows: Sequence[StreamRow]) -> None:
        """Show the newest state.

        Parameters
        ----------
        headline: what is going on.
        rows: the streams.
        """
        if self._live is not None:
            self._live.update(self._render(rows, headline))
        elif self._console is not None and self._clock() >= self._line_due:
            line = stream_line(headline, rows)
            if line != self._last_line:
                self._console.print(line, highlight=False, soft_wrap=True)
            self._line_due, self._last_line = self._clock() + _LINE_EVERY_SECONDS, line


def stream_line(headline: str, rows: Sequence[StreamRow]) -> str:
    """The streams as one line, without what changes when nothing happens."""
    streams = (
        f"{row.stream} {row.health.state}, {row.totals.input_rows:,} rows read"
        + (f", {row.lag.rows:,} behind" if row.lag.rows else "")
        for row in rows
    )
    return " · ".join([headline, *streams])
