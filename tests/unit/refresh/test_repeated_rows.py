"""Which rows the readers of a table get twice when a refresh is taken back, on a table with real files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField
from tests.fixtures.streams import continuous_stream
from tests.unit.refresh.test_refresh_plan import OPEN
from tests.unit.supervision.test_judgement import declared

from sluice.backfill.backfill_plan import TargetReader
from sluice.declarations.loaded_declarations import Declarations
from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.refresh.swap_content import RepeatedRows, repeated_rows, swap_key
from sluice.stored_keys import PUBLICATION_KEY

NAME = "silver.flights"
READER = TargetReader(stream="gold", input="flights", on_overwrite="skip")


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    """A table of which one row was there before the refresh, and three are since."""
    opened = SqlCatalog("files", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}")
    opened.create_namespace("silver")
    opened.create_table(NAME, Schema(NestedField(1, "id", LongType(), required=False)))
    append(opened, 1)
    append(opened, 2, 3, key=swap_key(OPEN))
    append(opened, 4, key=f"{swap_key(OPEN)}/of another")
    append(opened, 5, 6)
    yield opened
    opened.close()


def append(catalog: Catalog, *ids: int, key: str = "") -> None:
    """Add rows in one commit."""
    rows = pa.table({"id": pa.array(ids, pa.int64())})
    catalog.load_table(NAME).append(rows, snapshot_properties={PUBLICATION_KEY: key})


def declarations(**inputs: object) -> Declarations:
    """A folder with one stream."""
    wanted = continuous_stream()
    content = wanted.declaration.model_dump(mode="json", by_alias=True, exclude_unset=True)
    declaration = StreamDeclaration.model_validate(content | {"stream": "gold", "inputs": inputs})
    return declared(replace(wanted, declaration=declaration))


def test_what_was_appended_since_the_refresh_is_read_again(catalog: Catalog) -> None:
    catalog.load_table(NAME).delete("id = 5")  # no reader of appended rows gets anything by it
    inputs = {
        "flights": {"stream": {"iceberg": {"table": NAME, "on_overwrite": "skip"}}},
        "lookup": {"static": {"iceberg": {"table": NAME}}},
        "others": {"stream": {"iceberg": {"table": "silver.others"}}},
    }

    found = repeated_rows(catalog, declarations(**inputs), NAME, OPEN)

    assert found == RepeatedRows(table=NAME, rows=3, is_known=True, readers=(READER,))
    assert found.sentence == (
        "3 rows were appended to silver.flights since the refresh, and are appended again afterwards: gold (input "
        "flights) gets them a second time."
    )


def test_rows_are_not_known_when_the_history_does_not_reach_the_refresh(catalog: Catalog) -> None:
    table = catalog.load_table(NAME)
    for snapshot in table.metadata.snapshots[:3]:
        table.maintenance.expire_snapshots().by_id(snapshot.snapshot_id).commit()
        table = catalog.load_table(NAME)

    found = repeated_rows(catalog, declarations(flights={"stream": {"iceberg": {"table": NAME}}}), NAME, OPEN)

    assert (found.rows, found.is_known) == (2, False)
    assert found.sentence.startswith("At least 2 rows were appended")


@pytest.mark.parametrize(
    ("rows", "is_known", "readers", "are_read"),
    [(1, True, (READER,), True), (0, True, (READER,), False), (0, False, (READER,), True), (1, False, (), False)],
)
def test_rows_are_read_twice_by_readers_of_rows_or_of_what_is_not_known(
    *, rows: int, is_known: bool, readers: tuple[TargetReader, ...], are_read: bool
) -> None:
    assert RepeatedRows(table=NAME, rows=rows, is_known=is_known, readers=readers).are_read is are_read
