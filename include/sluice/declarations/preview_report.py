"""The rows that a transformation returns for a few input rows: the result of `sluice preview`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


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
