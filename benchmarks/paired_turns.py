"""Ways of doing the same work, by turns: what each took beside the first way of its round, and what is asked of it.

Other work on the machine slows both turns of a pair, so figures are ratios within a round: their median, and how far
they scatter.
"""

from __future__ import annotations

import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Trigger:
    """One batch: its number, when Spark triggered it, how long it took to its commit in the checkpoint."""

    number: int
    started_at: datetime
    duration_ms: float

    @property
    def ended_at(self) -> datetime:
        """When its commit was in the checkpoint."""
        return self.started_at + timedelta(milliseconds=self.duration_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One run over all batches.

    batches_ms: trigger times without the warm-up. files: the checkpoint's, for each batch.
    busy_seconds: from the first trigger after the warm-up to the end of the last batch, what lies between two batches
        included.
    processor_seconds: of the driver's Python and JVM, without the services; warm-up, start and end included.
    """

    batches_ms: tuple[float, ...]
    busy_seconds: float
    seconds: float
    content: tuple[Any, ...]
    files: float = 0.0
    processor_seconds: float = 0.0

    @property
    def batch_ms(self) -> float:
        """The median trigger time."""
        return statistics.median(self.batches_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A figure over the rounds: its median, the lowest and the highest."""

    median: float
    lowest: float
    highest: float

    def __str__(self) -> str:
        return f"{self.median:.3g} ({self.lowest:.3g} to {self.highest:.3g})"


Compared = Callable[[Turn, Turn], float]
"""A figure of a pair: the first way's turn of a round, and another way's."""


def speed(first: Turn, other: Turn) -> float:
    """How much as fast the other one's batches are: 1.0 is equal, more is faster."""
    return first.batch_ms / other.batch_ms


def trigger_part(first: Turn, other: Turn) -> float:
    """Which part of the first one's trigger time the other one takes."""
    return other.batch_ms / first.batch_ms


def files_part(first: Turn, other: Turn) -> float:
    """Which part of the first one's checkpoint files the other one writes."""
    return other.files / first.files


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """What is asked of a way. what: in words. least, most: of the median over the rounds."""

    way: str
    what: str
    figure: Compared
    least: float = 0.0
    most: float = float("inf")

    def is_met(self, found: Spread) -> bool:
        """Whether a figure keeps it."""
        return self.least <= found.median <= self.most

    def __str__(self) -> str:
        return f"at least {self.least:g}" if self.least else f"at most {self.most:g}"


def over_rounds(figure: Compared, first: Sequence[Turn], other: Sequence[Turn]) -> Spread:
    """A figure of two ways, turn by turn of the same round."""
    found = [figure(*pair) for pair in zip(first, other, strict=True)]
    return Spread(median=statistics.median(found), lowest=min(found), highest=max(found))


def take_turns(ways: Mapping[str, Callable[[], Turn]], *, rounds: int) -> dict[str, list[Turn]]:
    """Run every way once a round, each round beginning with another one."""
    turns: dict[str, list[Turn]] = defaultdict(list)
    for number in range(rounds):
        names = list(ways)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            turns[name].append(ways[name]())
            batch_ms, seconds = turns[name][-1].batch_ms, turns[name][-1].seconds
            sys.stderr.write(f"round {number + 1} of {rounds}: {name}: {batch_ms:.0f} ms a batch, {seconds:.1f} s\n")
    return {name: turns[name] for name in ways}


def print_turns(title: str, turns: Mapping[str, Sequence[Turn]], limits: Sequence[Limit]) -> bool:
    """Print what every way took, and the limits; whether all tables hold the same and every limit is kept."""
    contents = {turn.content for of_way in turns.values() for turn in of_way}
    first = next(iter(turns.values()))
    table = Table(title=title if len(contents) == 1 else f"{title}: THE TABLES DIFFER {contents}")
    for heading in ("way", "batch ms", "speed of batches", "run s", "processor s of a run", "checkpoint files a batch"):
        table.add_column(heading)
    for name, of_way in turns.items():
        seconds, processor, files = (
            f"{statistics.median(figures):.3g}"
            for figures in zip(*((turn.seconds, turn.processor_seconds, turn.files) for turn in of_way), strict=True)
        )
        batch_ms = f"{statistics.median(turn.batch_ms for turn in of_way):.0f}"
        table.add_row(name, batch_ms, str(over_rounds(speed, first, of_way)), seconds, processor, files)
    found = {limit: over_rounds(limit.figure, first, turns[limit.way]) for limit in limits}
    table.add_section()
    for limit, spread in found.items():
        verdict = "met" if limit.is_met(spread) else "MISSED"
        table.add_row(limit.way, limit.what, str(spread), str(limit), verdict)
    Console(width=140).print(table)
    return len(contents) == 1 and all(limit.is_met(spread) for limit, spread in found.items())


def processor_seconds() -> float:
    """What this process and all below it have used of the processor so far."""
    used = 0.0
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        with suppress(psutil.NoSuchProcess):  # a worker of Spark that has just ended
            times = process.cpu_times()
            used += times.user + times.system
    return used
