"""The nulls and bounds of published batches: by the metrics of their files, without those of masked columns."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from tests.fixtures.publication import CatalogPlace, Workbench, offsets, open_catalog_at
from tests.fixtures.streams import continuous_stream

from sluice.declarations.loaded_declarations import Declarations
from sluice.declarations.stream_declaration import QUARANTINE_OUTPUT
from sluice.ledger.batches import PublicationKey
from sluice.ledger.hourly_figures import ColumnFigures
from sluice.publication.publish_batches import Publication
from sluice.publication.staged_batch import BatchSummary, StagedBatch, StagedOutput
from sluice.publication.staging_table import load_staging_table
from sluice_spark.delivery import batch_recording
from sluice_spark.delivery.batch_recording import DeclaredMasks, Figures, KeptFigures

Masks = frozenset[str] | None

COLUMNS = [
    {"name": "kind", "type": "string"},
    {"name": "price", "type": "decimal(9, 2)"},
    {"name": "ratio", "type": "double"},
    {"name": "day", "type": "date"},
    {"name": "sent_at", "type": "timestamptz"},
    {"name": "Secret", "type": "long"},
]
DAY = datetime(2026, 11, 28, tzinfo=UTC)


def a_row(kind: str, **values: Any) -> dict[str, Any]:
    return {"kind": kind, "price": None, "ratio": None, "day": None, "sent_at": None, "Secret": 7, **values}


ROWS = [
    a_row("a", price=Decimal("3.50"), ratio=float("inf"), sent_at=DAY),
    a_row("b", price=Decimal("-1.25"), ratio=0.5, day=date(1970, 1, 2), sent_at=DAY.replace(hour=6)),
    a_row("b", ratio=float("nan")),
]


@pytest.fixture
def bench(tmp_path: Path) -> Workbench:
    """An output with a column of each kind, partitioned, so that a batch has several files."""
    place = CatalogPlace(sql_url=f"sqlite:///{tmp_path}/catalog.db", warehouse=tmp_path.as_uri())
    catalog = open_catalog_at(place)
    output = StagedOutput(stream="orders", output="main", target="bronze.orders")
    made = Workbench(open_catalog=lambda: catalog, catalog=catalog, output=output, place=place)
    made.declare(columns=COLUMNS)
    made.begin()
    return made


def stage(bench: Workbench, number: int, rows: list[dict[str, Any]]) -> StagedBatch:
    """Stage rows as a batch."""
    summary = BatchSummary(
        key=PublicationKey(stream="orders", generation=1, batch=number),
        output=bench.output.output,
        run_id="run-1",
        token=1,
        start_offsets=offsets(10 * number),
        end_offsets=offsets(10 * number + 10),
        rows=len(rows),
        mode=bench.mode(),
    )
    staging = load_staging_table(bench.catalog, bench.output)
    data = pa.Table.from_pylist(rows, schema=staging.schema().as_arrow())
    staging.append(data, snapshot_properties=summary.properties())
    return bench.staged()[-1]


def kept(bench: Workbench, *batches: StagedBatch, masked: Masks, mode: str = "append", **more: Any) -> list[Figures]:
    """The figures of each batch of a publication."""
    publisher = replace(bench.publisher(mode), figures=KeptFigures(masked_of=lambda _: masked), **more)
    publisher.publish([{bench.output.output: batch} for batch in batches])
    return [publisher.figures.take(batch.summary.key) for batch in batches]


@pytest.mark.parametrize("more", [{}, {"merges_small": True}, {"mode": "overwrite_partitions"}], ids=str)
def test_the_figures_of_a_batch_are_those_of_its_rows(bench: Workbench, more: dict[str, Any]) -> None:
    batches = [stage(bench, 0, ROWS), stage(bench, 1, []), stage(bench, 2, [a_row("c")])]

    first, empty, last = kept(bench, *batches, masked=frozenset({"secret"}), **more)

    day = DAY.timestamp()
    assert first == {
        "main": {
            "kind": ColumnFigures(rows=3, nulls=0),
            "price": ColumnFigures(rows=3, nulls=1, lowest=-1.25, highest=3.5),
            "ratio": ColumnFigures(rows=3, nulls=0, lowest=0.5, highest=1e300),
            "day": ColumnFigures(rows=3, nulls=2, lowest=86_400.0, highest=86_400.0),
            "sent_at": ColumnFigures(rows=3, nulls=1, lowest=day, highest=day + 6 * 3_600),
            "Secret": ColumnFigures(rows=3, nulls=0),
        }
    }
    assert empty == {"main": {}}
    assert last["main"]["price"] == ColumnFigures(rows=1, nulls=1)


def test_without_known_masks_no_column_has_bounds(bench: Workbench) -> None:
    (found,) = kept(bench, stage(bench, 0, ROWS), masked=None)

    assert found["main"]["price"] == ColumnFigures(rows=3, nulls=1)
    assert {(one.lowest, one.highest) for one in found["main"].values()} == {(None, None)}


def test_a_batch_that_was_visible_before_has_no_figures(bench: Workbench) -> None:
    staged = stage(bench, 0, ROWS)
    bench.publish(staged)

    assert kept(bench, staged, masked=frozenset()) == [{}]


def test_figures_are_taken_once_and_fail_no_publication() -> None:
    def unreadable(_: str) -> frozenset[str]:
        raise ValueError("of a test")

    figures, published = KeptFigures(masked_of=unreadable), Publication(snapshot_id=1, published=(), attempts=1)
    figures.note("main", "bronze.orders", replace(published, staged_schema=Schema()))
    figures.note(QUARANTINE_OUTPUT, "quarantine.orders", replace(published, staged_schema=Schema()))

    assert figures.take(PublicationKey(stream="orders", generation=1, batch=0)) == {}


MASKING: dict[str, Any] = {"quarantine": True, "masked_columns": ["Secret"]}
READING: dict[str, Any] = {"inputs": {"records": {"stream": {"iceberg": {"table": "bronze.flights"}}}}}


def masks(folder: Path, *, now: list[float], **more: Any) -> DeclaredMasks:
    declared = continuous_stream("copies", **more).declaration
    return DeclaredMasks(declaration=declared, folder=folder, now_seconds=lambda: now[0])


def test_what_a_stream_masks_is_known_without_any_other(tmp_path: Path) -> None:
    assert masks(tmp_path / "gone", now=[0.0], **MASKING).of("bronze.copies") == frozenset({"secret"})


def test_what_streams_before_it_mask_is_read_again_after_an_hour(tmp_path: Path) -> None:
    now, seen = [0.0], [continuous_stream(), continuous_stream(**MASKING)]
    reading = masks(tmp_path, now=now, **READING)

    def declared(_: Path) -> Declarations:
        streams = {"flights": seen[0], "copies": continuous_stream("copies", **READING)}
        return Declarations(
            folder=tmp_path,
            streams=streams,
            tables={},
            problems=(),
            stream_names=(*streams, *(["broken"] if now[0] > 9_000 else [])),
            table_names=(),
        )

    with patch.object(batch_recording, "load_declarations", declared):
        assert reading.of("bronze.copies") == frozenset()
        seen.pop(0)
        now[0] = 3_599.0
        assert reading.of("bronze.copies") == frozenset()
        now[0] = 3_600.0
        assert reading.of("bronze.copies") == frozenset({"secret"})
        now[0] = 9_001.0
        assert reading.of("bronze.copies") is None, "a stream that is broken may mask a column"
