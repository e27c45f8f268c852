"""What is known of a csv file by its first line."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_type

from sluice.declarations.source_declarations import FilesSource
from sluice.record_values.block_facts import facts_of_texts
from sluice_spark.sources import csv_lines
from sluice_spark.sources.value_decoding import BLOCK_FACTS, decoded_struct

COLUMNS = [{"name": "id", "type": "long"}, {"name": "word", "type": "string"}]


def names_of(*header: str) -> list[str]:
    """The names in the first line of a file, as the driver gets them."""
    columns = COLUMNS[: len(header)]
    files = FilesSource.model_validate({"connection": "c", "format": "csv", "columns": columns, "path": "in"})
    kind = to_arrow_type(decoded_struct(files.columns))
    fields = [pa.array([name, "1"]) for name in header]
    lines = csv_lines._Lines(files, kind, is_whole=False)
    *_, found = lines.decoded([*fields, pa.nulls(2, pa.string()), pa.array(["a", "a"])], first=0)
    texts = [text for text in found.field(BLOCK_FACTS).to_pylist() if text is not None]
    (names,) = facts_of_texts(texts).written_as
    return list(json.loads(names))


@pytest.mark.parametrize("names", [("id", "word"), ("id",)])
def test_a_byte_order_mark_is_no_part_of_a_name(names: tuple[str, ...]) -> None:
    first, *others = names

    assert names_of(first, *others) == names_of(f"\N{ZERO WIDTH NO-BREAK SPACE}{first}", *others) == [*names]
