"""`sluice sql`: DuckDB on the catalog, for reading alone."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sluice.cli.lakehouse_reader import as_reader, open_lakehouse
from sluice.cli.terminal import AsJson
from sluice.errors import LakehouseError
from sluice.settings import load_settings

if TYPE_CHECKING:
    import duckdb

app = typer.Typer(add_completion=False)

_PROMPT = "sql> "
_CONTINUED = "...> "


@app.command()
def sql(
    query: Annotated[
        str | None, typer.Argument(help="The query; without it, queries are read from the terminal or a pipe.")
    ] = None,
    rows: Annotated[int, typer.Option(min=1, help="How many rows of a result are shown.")] = 100,
    as_json: AsJson = False,
) -> None:
    """Ask the tables with SQL: DuckDB on the catalog, which only reads.

    A table has the name of its declaration: `SELECT count(*) FROM bronze.flights`. `SHOW ALL TABLES` lists them.
    """
    with closing(open_lakehouse(as_reader(load_settings()))) as database:
        if query is not None:
            _answer(database, query, rows=rows, as_json=as_json)
            return
        for one in _queries():
            try:
                _answer(database, one, rows=rows, as_json=as_json)
            except LakehouseError as error:
                if not sys.stdin.isatty():
                    raise
                typer.echo(error.message, err=True)


def _queries() -> Iterator[str]:
    """The queries of a terminal, each as far as its semicolon; all of a pipe at once."""
    if not sys.stdin.isatty():
        if text := sys.stdin.read().strip():
            yield text
        return
    parts: list[str] = []
    while True:
        try:
            parts.append(input(_CONTINUED if parts else _PROMPT))
        except EOFError:
            return
        if parts[-1].rstrip().endswith(";"):
            yield "\n".join(parts)
            parts = []


def _answer(database: duckdb.DuckDBPyConnection, query: str, *, rows: int, as_json: bool) -> None:
    """Print the result of the last statement of a query.

    Raises
    ------
    LakehouseError: when it cannot be computed; the message is DuckDB's.
    """
    import duckdb

    try:
        found = database.sql(query)
        if found is None:
            return
        if as_json:
            typer.echo(json.dumps(_as_objects(found, rows=rows), default=str))
        else:
            typer.echo(_as_table(found, rows=rows))
    except duckdb.Error as error:
        raise LakehouseError(f"The query cannot be answered: {error}") from error


def _as_objects(found: duckdb.DuckDBPyRelation, *, rows: int) -> list[dict[str, Any]]:
    return [dict(zip(found.columns, row, strict=True)) for row in found.limit(rows).fetchall()]


def _as_table(found: duckdb.DuckDBPyRelation, *, rows: int) -> str:
    from rich.console import Console
    from rich.table import Table

    table = Table(*found.columns, box=None, pad_edge=False)
    shown = found.limit(rows + 1).fetchall()
    for row in shown[:rows]:
        table.add_row(*("null" if value is None else str(value) for value in row))
    console = Console(width=None if sys.stdout.isatty() else 400, highlight=False, markup=False, emoji=False)
    with console.capture() as text:
        console.print(table)
    more = f"\nThere are more than {rows} rows: `--rows` shows more." if len(shown) > rows else ""
    return text.get().rstrip() + more
