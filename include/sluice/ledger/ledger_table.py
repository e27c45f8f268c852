"""What the tables of the ledger share: their schema, the names of their constraints, the types of their columns.

They live in a PostgreSQL schema of their own, so that the ledger may share a database with others.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, DateTime, Double, MetaData, Text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase

SCHEMA = "sluice"
"""The PostgreSQL schema that holds every table of the ledger."""


class LedgerTable(DeclarativeBase):
    """A table of the ledger."""

    metadata = MetaData(
        schema=SCHEMA,
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "pk": "pk_%(table_name)s",
        },
    )
    type_annotation_map = {  # noqa: RUF012  # SQLAlchemy reads a plain dict here
        str: Text,
        int: BigInteger,
        float: Double,
        datetime: DateTime(timezone=True),
        dict[str, Any]: JSONB,
        list[Any]: JSONB,
    }


def is_one_of(column: str, words: Iterable[str]) -> str:
    """SQL that is true when the column holds a value of an enum."""
    allowed = ", ".join(f"'{word}'" for word in sorted(words))
    return f"{column} IN ({allowed})"
