"""What is estimated for an order of rows is what a rewrite by that order makes true.

Every test run has the estimates without Spark (`test_layout_advice.py`), and a rewrite in order (`test_z_order.py`).
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.fixtures.upkeep import maintain
from tests.fixtures.workshop import Workshop
from tests.spark.maintenance.test_deleted_rows import outcome
from tests.spark.maintenance.test_maintenance import NO_EXPIRY, step

from sluice.declarations.load_declarations import load_declarations
from sluice.layout.layout_advice import LayoutAdvice, advise_layout
from sluice.layout.pruning import files_read, read_data_files, table_filter, total_of
from sluice.ledger.maintenance_runs import MaintenanceStep, StepOutcome
from sluice.maintenance.compaction_plan import ORDERED_GROUP_FILES

COLUMNS = {"a": "long", "b": "long", "word": "string", "noise": "string"}
ROWS = 1000

IN_TWO = {"column": "b", "transform": "bucket", "width": 2}

pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:Parquet writer option:UserWarning"),
]


def filled(workshop: Workshop, files: int, **more: Any) -> str:
    """A table of small files, two of which make a full one, with values in no order; its name."""
    policy = {"compaction": {"target_file_bytes": "1MiB", "min_input_files": 3}, **NO_EXPIRY}
    table = workshop.declare_table("rows", COLUMNS, maintenance=policy, **more)
    chance = random.Random(1)  # noqa: S311  # no secret
    for _ in range(files):
        rows = [
            {
                "a": chance.randrange(1000),
                "b": chance.randrange(1000),
                "word": f"{chance.choice('uvwxyz')}{chance.randrange(10**9)}",
                "noise": chance.randbytes(500).hex(),
            }
            for _ in range(ROWS)
        ]
        workshop.append(table, rows)
    return table


def advice_of(workshop: Workshop, table: str, *conditions: str) -> LayoutAdvice:
    """The advice for some conditions."""
    opened = workshop.table(table)
    return advise_layout(
        opened,
        load_declarations(workshop.folder).table(table).declaration,
        [table_filter(opened.schema(), one, origin="a test") for one in conditions],
        files=read_data_files(opened),
        group_files=ORDERED_GROUP_FILES,
        small_bytes=1024**2,
    )


def declare_suggestion(workshop: Workshop, table: str, advice: LayoutAdvice, *conditions: str) -> None:
    """Write what was suggested into the declaration, as a person would."""
    assert advice.suggested is not None
    file: Path = workshop.folder / f"{table}.table.yaml"
    declared = yaml.safe_load(file.read_text())
    suggested = advice.suggested.order.declaration
    declared["maintenance"]["compaction"] |= suggested["maintenance"]["compaction"]
    if "sort_order" in suggested:
        declared["sort_order"] = suggested["sort_order"]
    declared["filters"] = list(conditions)
    file.write_text(yaml.safe_dump(declared))
    workshop.create_tables(only=table)


@pytest.mark.full
@pytest.mark.parametrize(
    ("files", "conditions", "more", "order"),
    [
        (12, ("a = 420",), {}, "sorted by a"),
        (16, ("a < 60", "b < 60"), {}, "z-order of a and b"),
        (12, ("word like 'x%'",), {}, "sorted by word"),
        (12, ("a = 500", "a < 100"), {"partitioning": [IN_TWO]}, "sorted by a"),
    ],
    ids=["one column", "two columns", "a text", "in partitions"],
)
def test_a_rewrite_by_the_suggestion_reads_as_little_as_estimated(
    workshop: Workshop, files: int, conditions: tuple[str, ...], more: dict[str, Any], order: str
) -> None:
    table = filled(workshop, files, **more)
    rows = workshop.rows(table)
    advice = advice_of(workshop, table, *conditions)
    assert advice.suggested is not None
    assert str(advice.suggested.order) == order
    declare_suggestion(workshop, table, advice, *conditions)

    run = maintain(workshop, table)

    assert outcome(run)[0] is StepOutcome.DONE
    assert workshop.rows(table) == rows
    opened = workshop.table(table)
    rewritten = read_data_files(opened)
    for condition, now, estimated in zip(advice.filters, advice.now, advice.suggested.read, strict=True):
        found = files_read(opened, rewritten, condition)
        assert found.files < now.files
        true_share = found.bytes / total_of(rewritten).bytes
        assert estimated.bytes / advice.all_files.bytes == pytest.approx(true_share, abs=0.15), condition.text
    assert advice_of(workshop, table, *conditions).suggested is None, "what is declared now is as good"
    figures = step(run, MaintenanceStep.REWRITE_DATA_FILES).result
    assert [one["where"] for one in figures["filters"]] == list(conditions)
    assert [one["before"]["files"] for one in figures["filters"]] == [round(one.files) for one in advice.now]
    assert all(one["after"]["files"] < one["before"]["files"] for one in figures["filters"])
    assert figures["planning_ms"].keys() == {"before", "after"}
