"""Names on their way into SQL: always quoted, whatever they hold."""

from __future__ import annotations


def quoted(name: str) -> str:
    """The name as one SQL identifier."""
    return f"`{name.replace('`', '``')}`"


def quoted_table(catalog: str, table: str) -> str:
    """The SQL name of a declared table, `<namespace>.<table>`, in a catalog."""
    return ".".join(quoted(part) for part in (catalog, *table.split(".")))
