"""Quotes names for SQL."""

from __future__ import annotations


def quoted(name: str) -> str:
    """Quote a name as one SQL identifier."""
    return f"`{name.replace('`', '``')}`"


def quoted_table(catalog: str, table: str) -> str:
    """The quoted SQL name of a declared table, `<namespace>.<table>`, in a catalog."""
    return ".".join(quoted(part) for part in (catalog, *table.split(".")))
