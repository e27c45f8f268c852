"""What an erasure plans, and which readers it waits for. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sluice.erasure.erasure_plan import ErasedReader, ErasureSeen, MeantFile, Place, is_behind, plan_erasure
from sluice.maintenance.pin_plan import Knowledge, ReaderObservation
from sluice.operations import Refusal, RefusalReason, Stake
from sluice.sources.iceberg_positions import BEGINNING

LIVE = MeantFile(path="s3://b/t/data/a.parquet", place=Place.LIVE, rows=2)
TRASHED = MeantFile(path="s3://b/t/data/b.parquet", place=Place.TRASH, rows=3)
SEEN = ErasureSeen(table="a.b", digest="d", rows=10, searched=4, meant=(LIVE, TRASHED), gone=5)


def reader(knowledge: Knowledge, position: int | None = None, *, stops: bool = False) -> ErasedReader:
    """An input that reads the table."""
    seen = ReaderObservation(stream="s", input="rows", knowledge=knowledge, position=position, problem="no answer")
    return ErasedReader(reader=seen, stops=stops)


@pytest.mark.parametrize(
    ("knowledge", "position", "expected"),
    [
        (Knowledge.NOT_STARTED, None, False),
        (Knowledge.UNKNOWN, None, True),
        (Knowledge.KNOWN, BEGINNING, True),
        (Knowledge.KNOWN, 7, False),
        (Knowledge.KNOWN, 8, False),
        (Knowledge.KNOWN, 6, True),
    ],
)
def test_a_reader_is_behind_until_it_stands_at_a_snapshot_that_stays(
    knowledge: Knowledge, position: int | None, expected: bool
) -> None:
    assert is_behind(reader(knowledge, position), (8, 7)) is expected


def test_a_plan_counts_rows_by_place_and_names_no_file() -> None:
    plan = plan_erasure(SEEN)
    assert (plan.at_stake, plan.rows, plan.refusals) == (Stake.ROWS, 2, ())
    assert plan.evidence["rows"] == {"live": 2, "other": 0, "trash": 3}
    assert "a.parquet" not in str(plan.as_json())
    assert plan_erasure(replace(SEEN, meant=(LIVE,))).digest != plan.digest
    assert plan_erasure(replace(SEEN, digest="e")).digest != plan.digest
    assert plan_erasure(replace(SEEN, references=("yours",))).digest != plan.digest


@pytest.mark.parametrize(("meant", "expected"), [((LIVE, TRASHED), 6), ((TRASHED,), 5)])
def test_a_plan_says_how_many_snapshots_expire(meant: tuple[MeantFile, ...], expected: int) -> None:
    assert f"Expire all {expected} snapshots" in " ".join(plan_erasure(replace(SEEN, meant=meant)).sentences())


def test_what_a_live_writer_has_staged_asks_for_no_decision_before_it_is_stopped() -> None:
    runs = Refusal(reason=RefusalReason.NOT_AT_REST, sentence="It runs.", next_step="Stop it.")
    held = Refusal(reason=RefusalReason.BATCH_HELD, sentence="A batch waits.", next_step="Decide.")
    seen = replace(SEEN, staged=("staging.s__main",))

    assert plan_erasure(replace(seen, writers=(runs,))).refusals == (runs,)
    assert len(plan_erasure(replace(seen, writers=(held,))).refusals) == 2


def test_nothing_is_at_stake_where_nothing_is_found() -> None:
    plan = plan_erasure(replace(SEEN, meant=(), forked=("x",), staged=("y",)))
    assert (plan.at_stake, plan.refusals) == (Stake.NOTHING, ())


def test_a_reader_that_starts_just_now_may_have_chosen_where_it_begins() -> None:
    assert is_behind(replace(reader(Knowledge.NOT_STARTED), runs=True), (8, 7))


def test_a_folder_that_may_not_be_looked_at_is_named_and_blocks_nothing() -> None:
    plan = plan_erasure(replace(SEEN, denied=("s3://b/staging",)))
    assert plan.refusals == ()
    assert "Not searched, as the object store denies it: s3://b/staging." in " ".join(plan.sentences())


@pytest.mark.parametrize("kept", [(), (7,)])
def test_metadata_that_may_tell_of_such_rows_is_due_and_a_missing_cut_alone_is_not(kept: tuple[int, ...]) -> None:
    nothing = replace(SEEN, meant=(), kept=kept, gone=0)
    assert not nothing.is_due
    plan = plan_erasure(replace(nothing, doubtful=2))
    assert plan.at_stake is Stake.ROWS
    assert "2 manifests may name values of such rows" in " ".join(plan.sentences())


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("staging.s__main", "sluice batch list"),
        ("backfill_staging.s__main", "Repeat that backfill"),
        ("refresh_staging.s__main", "Let that refresh end"),
    ],
)
def test_the_way_out_of_a_staging_table_fits_what_fills_it(name: str, expected: str) -> None:
    (refusal,) = plan_erasure(replace(SEEN, staged=(name,))).refusals
    assert expected in (refusal.next_step or "")


@pytest.mark.parametrize("changes", [{"unsearched": ("p",)}, {"outside": ("p",)}])
def test_nothing_found_is_no_answer_while_a_file_was_not_searched(changes: dict[str, Any]) -> None:
    (refusal,) = plan_erasure(replace(SEEN, meant=(), **changes)).refusals
    assert refusal.reason is RefusalReason.NOT_PROVABLE


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"unread": (("p", "it is torn"),)}, RefusalReason.NOT_PROVABLE),
        ({"unread": (("p", "it is torn"),), "meant": ()}, RefusalReason.NOT_PROVABLE),
        ({"unread_listed": (("p", "it is torn"),)}, RefusalReason.NOT_PROVABLE),
        ({"unread_listed": (("p", "it is torn"),), "meant": ()}, RefusalReason.NOT_PROVABLE),
        ({"unsearched": ("p",)}, RefusalReason.NOT_PROVABLE),
        ({"outside": ("p",)}, RefusalReason.NOT_PROVABLE),
        ({"unwritable": (("p", "it has no ids"),)}, RefusalReason.NOT_YET),
        ({"young": ("p",)}, RefusalReason.NOT_AT_REST),
        ({"foreign": ("p",)}, RefusalReason.OTHER_WRITERS),
        ({"unlisted": ("p",)}, RefusalReason.NOT_AT_REST),
        ({"backfilled": ("s",)}, RefusalReason.NOT_AT_REST),
        ({"shadows": ("Refresh 3 of s, until 2026-12-01 10:00 UTC",)}, RefusalReason.NOT_AT_REST),
        ({"delete_files": 1}, RefusalReason.DELETE_FILES),
        ({"limits": ("format version 3",)}, RefusalReason.NOT_YET),
        ({"rows": 2}, RefusalReason.EVERY_ROW),
        ({"others": ("c.d",)}, RefusalReason.OTHER_WRITERS),
        ({"staged": ("staging.s__main",)}, RefusalReason.BATCH_HELD),
        ({"lost": ("staging.s__main",)}, RefusalReason.CATALOG_BEHIND),
        ({"forked": ("mine",)}, RefusalReason.OTHER_WRITERS),
        ({"named_by": ("s",)}, RefusalReason.READER_STOPS),
        ({"waiting": ("s",)}, RefusalReason.NOT_AT_REST),
        ({"readers": (reader(Knowledge.UNKNOWN),)}, RefusalReason.NOT_PROVABLE),
        ({"readers": (reader(Knowledge.KNOWN, 1, stops=True),)}, RefusalReason.READER_STOPS),
    ],
)
def test_what_blocks_an_erasure_is_named_with_the_next_step(changes: dict[str, Any], reason: RefusalReason) -> None:
    (refusal,) = plan_erasure(replace(SEEN, **changes)).refusals
    assert refusal.reason is reason
    assert refusal.next_step


@pytest.mark.parametrize(
    "changes",
    [
        {"rows": 2, "takes_every_row": True},
        {"readers": (reader(Knowledge.NOT_STARTED, stops=True),)},
        {"readers": (reader(Knowledge.KNOWN, 1, stops=True),), "meant": (TRASHED,)},
        {"readers": (reader(Knowledge.KNOWN, 1),)},
    ],
)
def test_what_does_not_block_it(changes: dict[str, Any]) -> None:
    assert plan_erasure(replace(SEEN, **changes)).refusals == ()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"limits": ("format version 1",)}, "ALTER TABLE <catalog>.a.b SET TBLPROPERTIES ('format-version'='2')"),
        ({"limits": ("format version 3",)}, "There is no way yet"),
        ({"unread": (("p", "it is torn"),)}, "No snapshot needs it"),
        ({"unread_listed": (("p", "it is torn"),)}, "Delete none. Let Spark write them again"),
    ],
)
def test_the_next_step_leads_out(changes: dict[str, Any], expected: str) -> None:
    (refusal,) = plan_erasure(replace(SEEN, **changes)).refusals
    assert expected in (refusal.next_step or "")
