"""Prints the results of backfills: a sentence for each interval, or a line of JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

import typer

from sluice.backfill.intervals import Interval, of_publication_key
from sluice.backfill.run_results import result_of_attempt, sentences_of
from sluice.ledger.backfill_attempts import BackfillAttemptObservation


@dataclass(slots=True, kw_only=True)
class BackfillResults:
    """The results of one command. as_json: whether programs read them."""

    as_json: bool
    _printed: set[tuple[str, Interval]] = field(default_factory=set)

    def print_line(self, line: str) -> None:
        """Print a result as the job writes it."""
        result = json.loads(line)
        self._printed.add(of_publication_key(result["key"]))
        for text in [line] if self.as_json else sentences_of(result):
            typer.echo(text)

    def print_recorded(self, attempts: Sequence[BackfillAttemptObservation], stream: str, interval: Interval) -> None:
        """Print the result of an interval that another application has replaced, as the ledger has it.

        Parameters
        ----------
        attempts: of this command's user, oldest first.
        """
        if (stream, interval) in self._printed:
            return
        wanted = (stream, interval.start, interval.end)
        for attempt in reversed(attempts):
            key = attempt.key
            if (key.stream, key.interval_start, key.interval_end) == wanted and attempt.rows:
                self.print_line(json.dumps(result_of_attempt(attempt)))
                return
