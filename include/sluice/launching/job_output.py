"""The output of a job: JSON on stdout, and the last lines in the log of one that failed.

sluice: reason: column_missing
sluice: failed: DeliveryError: bronze.flights has no column delay.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import TypeAdapter

REASON_MARK = "sluice: reason: "
"""A failed job writes this mark in the line before the last, followed by the word of the reason (`FailureReason`)."""

FAILURE_MARK = "sluice: failed: "
"""A failed job writes this mark in its last line, followed by the error's class and message, and ends with code 1."""


def last_after(mark: str, lines: Iterable[str]) -> str | None:
    """Return the rest of the last line that begins with a mark; none when no line does."""
    found = [line.removeprefix(mark) for line in lines if line.startswith(mark)]
    return found[-1] if found else None


def json_line(observation: Any) -> str:
    """Return a frozen observation as one line of JSON: times in ISO 8601, enumerations by their values."""
    return TypeAdapter(type(observation)).dump_json(observation).decode()


def json_value(observation: Any) -> Any:
    """Return a frozen observation as a JSON value, to be part of a larger document."""
    return TypeAdapter(type(observation)).dump_python(observation, mode="json")
