"""`sluice table layout`: what conditions leave of a table's files, and the order of rows that would leave less."""

from __future__ import annotations

from typing import Annotated

import typer

from sluice.cli.terminal import AsJson, TableName, print_json
from sluice.declarations.load_declarations import load_declarations
from sluice.errors import UsageError
from sluice.layout.known_filters import known_filters
from sluice.layout.layout_advice import advice_document, advice_sentences, advise_layout
from sluice.layout.pruning import read_data_files, table_filter
from sluice.maintenance.compaction_plan import ORDERED_GROUP_FILES, small_file_bytes
from sluice.maintenance.maintained_tables import find_declaration
from sluice.settings import load_settings
from sluice.tables.catalog import open_catalog
from sluice.tables.declared_tables import require_table


def layout(
    name: TableName,
    where: Annotated[
        list[str] | None,
        typer.Option(
            help='A condition by which queries read the table, in Iceberg\'s expression language, such as "id = 5"; '
            "repeat it for several."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show how many files conditions read now and by other orders of the rows, and the declaration that would help.

    The conditions are those given, those that the table declares, and those of declared backfills. Orders are estimated
    from a sample of rows. Nothing is changed.
    """
    settings = load_settings()
    declarations = load_declarations(settings.pipelines)
    declaration = find_declaration(declarations, name)
    table = require_table(open_catalog(settings), name)
    files, schema = read_data_files(table), table.schema()
    given = [table_filter(schema, text, origin="--where") for text in dict.fromkeys(where or ())]
    filters = [*given, *known_filters(declarations, declaration, schema, files)]
    if not filters:
        raise UsageError(
            f"No condition is known by which {name} is read: it declares no `filters`, and no backfill reads or "
            "replaces intervals of it.",
            next_step="Declare the conditions of its queries, or give them with --where.",
        )
    advice = advise_layout(
        table,
        declaration,
        filters,
        files=files,
        group_files=ORDERED_GROUP_FILES,
        small_bytes=small_file_bytes(declaration.maintenance),
    )
    if as_json:
        print_json(advice_document(advice))
        return
    for sentence in advice_sentences(advice):
        typer.echo(sentence)
