"""What an analyst asks of a table: its columns, and how to query it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from sluice.declarations.column_types import kind_of
from sluice.declarations.table_declaration import TableDeclaration
from sluice.pages.table_looks import LookedColumn, TableLook
from sluice.settings import CatalogSettings

_TIMES = ("timestamptz", "timestamp", "date")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownQuery:
    """A query to copy. language: what runs it."""

    language: str
    text: str


def columns_shown(declared: TableDeclaration, look: TableLook) -> tuple[LookedColumn, ...]:
    """The columns as the table has them; those that are declared, while it is not there or not known."""
    if look.columns:
        docs = {column.name: column.doc for column in declared.columns}
        return tuple(replace(column, doc=column.doc or docs.get(column.path, "")) for column in look.columns)
    return tuple(
        LookedColumn(path=column.name, type=column.type, is_required=column.required, doc=column.doc)
        for column in declared.columns
    )


def queries_of(declared: TableDeclaration, catalog: CatalogSettings) -> tuple[ShownQuery, ...]:
    """Queries of the newest rows; no secret is in them."""
    spark = _sql(declared, of=f"{catalog.name}.{declared.table}", quote="`")
    duckdb = _sql(declared, of=declared.table, quote='"')
    return (
        ShownQuery(language="Command line (DuckDB)", text=f"sluice sql '{duckdb}'"),
        ShownQuery(language="Spark SQL", text=spark),
        ShownQuery(language="Python (PyIceberg)", text="\n".join(_python(declared, catalog))),
    )


def _sql(declared: TableDeclaration, *, of: str, quote: str) -> str:
    """The rows of the last day that the table has: it may hold times of years ago alone."""
    by_name = {column.name: kind_of(column.column_type) for column in declared.columns}
    candidates = (*(part.column for part in declared.partitioning), *by_name)
    time = next((name for name in candidates if by_name.get(name) in _TIMES), None)
    lines = ["SELECT *", f"FROM {of}"]
    if time is not None:
        column = f"{quote}{time}{quote}"
        newest = f"(SELECT max({column}) FROM {of})"  # noqa: S608  # declared names, and a person runs it
        lines += [f"WHERE {column} >= {newest} - INTERVAL 1 DAY", f"ORDER BY {column} DESC"]
    return "\n".join((*lines, "LIMIT 20"))


def _python(declared: TableDeclaration, catalog: CatalogSettings) -> Iterator[str]:
    yield "from pyiceberg.catalog import load_catalog"
    yield ""
    yield "catalog = load_catalog("
    yield f'    "{catalog.name}",'
    yield '    type="rest",'
    yield f'    uri="{catalog.uri}",'
    yield f'    warehouse="{catalog.warehouse}",'
    yield '    credential="…",'
    yield ")"
    yield f'table = catalog.load_table("{declared.table}")'
    yield "rows = table.scan(limit=20).to_pandas()"
