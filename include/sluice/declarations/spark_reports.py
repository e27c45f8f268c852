"""What Spark finds for a declared stream without running it: the plan (`sluice validate --plan`), and the rows that the
transformation returns for a few input rows (`sluice preview`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedInput:
    """An input. watermark: its column and delay; none without one."""

    name: str
    kind: str
    is_stream: bool
    watermark: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedOutput:
    """An output. place: where its rows go. columns: Spark's types by column, as they are before the output's own."""

    name: str
    kind: str
    place: str
    columns: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanProblem:
    """Why a stream cannot run. file, line: where that was declared, as far as known."""

    message: str
    next_step: str = ""
    file: str | None = None
    line: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanObservation:
    """One stream's plan, or the problem that keeps Spark from making it.

    trigger: as declared. output_mode: Spark's. operators: the plan's steps, each with its depth, inputs deepest.
    stateful: the operators that keep state from batch to batch. state: how that is kept; none without state.
    tables_to_create: the tables that do not exist yet; the plan takes them as they are declared.
    """

    stream: str
    trigger: str
    output_mode: str
    inputs: tuple[PlannedInput, ...]
    outputs: tuple[PlannedOutput, ...] = ()
    operators: tuple[tuple[int, str], ...] = ()
    stateful: tuple[str, ...] = ()
    state: str | None = None
    tables_to_create: tuple[str, ...] = ()
    problem: PlanProblem | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlansObservation:
    """The plans of several streams."""

    plans: tuple[PlanObservation, ...] = field(default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviewedInput:
    """An input. rows: how many the preview read; none of a static input, which is read whole."""

    name: str
    kind: str
    rows: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviewedOutput:
    """An output. columns: Spark's types by column. rows: how many there are; first: the first of them."""

    name: str
    columns: Mapping[str, str]
    rows: int
    first: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviewObservation:
    """The result of a preview.

    refused: rows of the quarantine by reason. differences: in what the stream itself differs from this preview.
    """

    stream: str
    inputs: tuple[PreviewedInput, ...]
    outputs: tuple[PreviewedOutput, ...]
    refused: Mapping[str, int]
    differences: tuple[str, ...]
