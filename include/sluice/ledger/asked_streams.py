"""Queries about many streams at once: their names as a table, and the newest rows of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    ARRAY,
    FromClause,
    Select,
    TableValuedAlias,
    Text,
    func,
    literal,
    select,
    true,
)


def asked_for(names: Sequence[str]) -> TableValuedAlias:
    """The names of the streams that are asked for, as a table."""
    return func.unnest(literal(list(names), ARRAY(Text))).table_valued("stream").render_derived(name="asked")


def select_newest(
    asked: FromClause, table: Any, columns: Sequence[Any], order: Sequence[Any], *, limit: int
) -> Select[Any]:
    """The newest rows of each stream in a table, at most `limit` of each."""
    newest = select(*columns).where(table.stream == asked.c.stream).order_by(*order).limit(limit).lateral("newest")
    return select(*newest.c).select_from(asked.join(newest, true()))
