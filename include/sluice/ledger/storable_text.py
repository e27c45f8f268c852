"""Text as PostgreSQL can store it, so that a failure is recorded whatever its message quotes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from psycopg.abc import Buffer
from psycopg.types.string import StrDumper
from pydantic_core import to_json


def storable_text(given: str) -> str:
    """A text with `\\x00` for each NUL and `\\udXXX` for each lone surrogate, which PostgreSQL refuses.

    Messages quote what a record, a key or a file name holds, and that may be anything.
    https://www.postgresql.org/docs/current/datatype-character.html
    """
    return given.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


def storable_json(value: Any) -> str:
    """JSON that PostgreSQL accepts: text as `storable_text` writes it, other values as text, NaN as null."""
    return to_json(_storable(value), inf_nan_mode="null", fallback=str).decode()


def _storable(value: Any) -> Any:
    match value:
        case str():
            return storable_text(value)
        case Mapping():
            return {_storable(name): _storable(one) for name, one in value.items()}
        case list() | tuple():
            return [_storable(one) for one in value]
    return value


class StorableTextDumper(StrDumper):
    """Sends every string of Python as `storable_text` writes it, whatever statement it is a parameter of."""

    def dump(self, obj: str) -> Buffer | None:
        """The bytes of a parameter."""
        return super().dump(storable_text(obj))
