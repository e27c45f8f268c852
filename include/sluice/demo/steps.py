"""The steps of the demo, how long each took, and what is said while one runs. Steps may overlap."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


class DemoStep(StrEnum):
    """The steps, in the order in which they begin; the bounded jobs begin beside the late set."""

    STACK = "Local stack"
    TABLES = "Tables and reference data"
    DRIVERS = "Streams launched by Airflow"
    FLIGHTS = "Flights through the streams"
    LATE_SET = "The late set, which must be dropped"
    WEATHER = "Weather: an increment, and the one that its new rows set off"
    MAINTENANCE = "Maintenance of the tables that fill with small files"
    QUALITY = "Quality of the tables that people read"
    HEALTH = "Health of the checkpoints"
    VERIFICATION = "Verification by DuckDB"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDuration:
    """How long a step took. began_after_seconds: since the first step."""

    title: str
    began_after_seconds: float
    seconds: float


class StepLog:
    """Says when a step ends, and remembers how long each took. Safe to use from several threads."""

    def __init__(self, console: Console | None) -> None:
        """Say it on `console`; None says nothing."""
        self._console = console
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self._durations: list[StepDuration] = []

    @property
    def durations(self) -> tuple[StepDuration, ...]:
        """The steps that have ended, in the order in which they began."""
        with self._lock:
            return tuple(sorted(self._durations, key=lambda step: step.began_after_seconds))

    @property
    def seconds(self) -> float:
        """How long it is since the first step began."""
        return time.monotonic() - self._began

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        """A step, from entering to leaving. One that fails is not remembered: its error says what happened."""
        began = time.monotonic()
        yield
        duration = StepDuration(title=title, began_after_seconds=began - self._began, seconds=time.monotonic() - began)
        with self._lock:
            self._durations.append(duration)
        self.say(f"[green]✓[/green] {title} [dim]({duration.seconds:.1f} s)[/dim]")

    def say(self, text: str) -> None:
        """Say a line, in Rich's markup."""
        if self._console is not None:
            self._console.print(text, highlight=False, soft_wrap=True)
