"""How observations are written for programs."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter


def json_line(observation: Any) -> str:
    """A frozen observation as one line of JSON: times in ISO 8601, enumerations by their words."""
    return TypeAdapter(type(observation)).dump_json(observation).decode()


def json_value(observation: Any) -> Any:
    """A frozen observation as what JSON can hold, to be part of something larger."""
    return TypeAdapter(type(observation)).dump_python(observation, mode="json")
