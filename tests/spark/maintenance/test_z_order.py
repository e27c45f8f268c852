"""Rows are z-ordered over all files, so that queries by any of the columns read few of them; and that ends."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Any

import pytest
from tests.fixtures.upkeep import maintain
from tests.fixtures.workshop import Workshop
from tests.spark.maintenance.test_deleted_rows import outcome
from tests.spark.maintenance.test_maintenance import NO_EXPIRY, step, unneeded

from sluice.ledger.maintenance_runs import MaintenanceObservation, MaintenanceStep, StepOutcome

COLUMNS = {"a": "long", "b": "long", "noise": "string"}

pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:Parquet writer option:UserWarning"),
]
"""pyspark fetches the rows of `collect` through a socket that it leaves to the garbage collector."""


def declare(workshop: Workshop, columns: Mapping[str, str], compaction: Mapping[str, Any], **more: Any) -> str:
    """A table whose small files become ones of a mebibyte; its name."""
    of_mebibytes = {"target_file_bytes": "1MiB", "min_input_files": 3, **compaction}
    return workshop.declare_table("rows", columns, maintenance={"compaction": of_mebibytes, **NO_EXPIRY}, **more)


def append_uneven(workshop: Workshop, table: str, counts: Sequence[int]) -> None:
    """Files of so many rows of a kibibyte each, with values in no order."""
    chance = random.Random(1)  # noqa: S311  # no secret
    for count in counts:
        rows = [
            {"a": chance.randrange(1000), "b": chance.randrange(1000), "noise": chance.randbytes(500).hex()}
            for _ in range(count)
        ]
        workshop.append(table, rows)


def files_read(workshop: Workshop, table: str, condition: str) -> int:
    """How many data files a query reads, by the bounds of their columns."""
    return len(list(workshop.table(table).scan(row_filter=condition).plan_files()))


def test_rows_are_z_ordered_over_all_files(workshop: Workshop) -> None:
    table = declare(workshop, COLUMNS, {"strategy": "z_order", "z_order": ["a", "b"]})
    append_uneven(workshop, table, [700] * 10)
    before = workshop.rows(table)

    run = maintain(workshop, table)

    assert outcome(run) == (StepOutcome.DONE, "small_files")
    assert step(run, MaintenanceStep.REWRITE_DATA_FILES).result["rows_hashed"]
    assert workshop.rows(table) == before
    files = run.after.files
    assert files >= 4
    assert files_read(workshop, table, "a < 100") < files
    assert files_read(workshop, table, "b < 100") < files, "of both columns, unlike a sort order"


@pytest.mark.full  # every run has the choice of files (`test_rewrite_calls.py`)
@pytest.mark.parametrize(
    ("compaction", "more"),
    [
        ({"strategy": "z_order", "z_order": ["a", "b"]}, {}),
        (
            {"strategy": "sort"},
            {"properties": {"write.parquet.bloom-filter-enabled.column.a": "true"}, "sort_order": [{"column": "a"}]},
        ),
    ],
    ids=["z-order", "sort"],
)
def test_ordering_uneven_files_comes_to_an_end(
    workshop: Workshop, compaction: dict[str, Any], more: dict[str, Any]
) -> None:
    table = declare(workshop, COLUMNS, compaction, **more)
    append_uneven(workshop, table, (1, 1500, 3, 400, 1100, 2, 900, 700, 1, 2000))
    before = workshop.rows(table)

    runs: list[MaintenanceObservation] = []
    while not runs or outcome(runs[-1])[0] is StepOutcome.DONE:
        runs.append(maintain(workshop, table))
        assert len(runs) < 5, [(run.before.files, run.after.files) for run in runs]

    assert len(runs) >= 2
    assert all(run.after.files < run.before.files for run in runs[:-1]), "each run leaves fewer files"
    assert outcome(maintain(workshop, table, open_session=unneeded))[0] is StepOutcome.SKIPPED
    assert workshop.rows(table) == before


def test_every_type_that_may_be_declared_is_z_ordered(workshop: Workshop) -> None:
    columns = {
        "n": "int",
        "l": "long",
        "f": "float",
        "d": "double",
        "s": "string",
        "u": "uuid",
        "y": "binary",
        "x": "fixed[2]",
        "t": "boolean",
        "at": "timestamptz",
        "local": "timestamp",
        "day": "date",
    }
    table = declare(workshop, columns, {"strategy": "z_order", "z_order": list(columns)})
    row = {
        "n": 1,
        "l": 2**40,
        "f": float("nan"),
        "d": -0.0,
        "s": "é",
        "u": b"0123456789abcdef",
        "y": b"\x00",
        "x": b"ab",
        "t": True,
        "at": datetime(1969, 1, 1, tzinfo=UTC),
        "local": datetime(2024, 1, 1),  # noqa: DTZ001  # a timestamp without a zone
        "day": date(2024, 2, 29),
    }
    for one in (row, dict.fromkeys(columns), row):
        workshop.append(table, [one])

    run = maintain(workshop, table)

    assert outcome(run) == (StepOutcome.DONE, "small_files")
    assert (run.after.files, run.after.rows) == (1, 3)
