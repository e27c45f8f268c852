"""Which columns of a table are masked, by the streams that its rows came through."""

from __future__ import annotations

from pathlib import Path

from tests.fixtures.sample_declarations import write_continuous_stream, write_table

from sluice.declarations.load_declarations import load_declarations
from sluice.declarations.loaded_declarations import masked_columns_of_table


def test_a_column_is_masked_in_the_table_of_the_stream_and_behind_it(tmp_path: Path) -> None:
    for table in ("bronze.flights", "silver.flights", "gold.flights"):
        write_table(tmp_path, table)
    more = "quarantine: true\nmasked_columns: [id]\n"
    masking = write_continuous_stream(tmp_path, "silver", writes="silver.flights", more=more)
    (tmp_path / "rows.py").write_text("def rows(**inputs):\n    pass\n")
    masking.write_text(masking.read_text().replace("sql: rows.sql", "python: rows.py:rows"))
    write_continuous_stream(tmp_path, "gold", reads="silver.flights", writes="gold.flights")
    declarations = load_declarations(tmp_path)
    assert declarations.broken == {}

    masked = {
        name: masked_columns_of_table(declarations, name)
        for name in ("bronze.flights", "silver.flights", "gold.flights", "quarantine.silver", "no.such")
    }

    assert masked == {
        "bronze.flights": frozenset(),
        "silver.flights": {"id"},
        "gold.flights": {"id"},
        "quarantine.silver": {"id"},
        "no.such": frozenset(),
    }
