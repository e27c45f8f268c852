"""Which staged batches are published next: random histories of staging, judged without a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from sluice.ledger.batches import PublicationKey
from sluice.publication.chain import (
    AbandonReason,
    CheckpointPosition,
    MarkPosition,
    batches_to_publish,
    plan_publication,
    whole_batches,
)
from sluice.publication.staged_batch import (
    BatchSummary,
    StagedBatch,
    StagedMode,
    canonical_offsets,
    offsets_digest,
    read_summary,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def position(batch: int, *, token: int = 9, end: int | None = None, generation: int = 1) -> MarkPosition:
    digest = offsets_digest(offsets(end)) if end is not None else None
    return MarkPosition(generation=generation, batch=batch, token=token, end_offsets_digest=digest)


def offsets(value: int) -> str:
    return canonical_offsets({"in": {"0": value}})


def staged(
    snapshot_id: int,
    batch: int,
    start: int,
    end: int,
    *,
    token: int = 1,
    generation: int = 1,
    rows: int = 1,
    is_overtaken: bool = False,
) -> StagedBatch:
    summary = BatchSummary(
        key=PublicationKey(stream="s", generation=generation, batch=batch),
        output="main",
        run_id="r",
        token=token,
        start_offsets=offsets(start),
        end_offsets=offsets(end),
        mode=StagedMode(mode="append", table="silver.orders"),
        watermark=NOW,
        rows=rows,
    )
    return StagedBatch(
        summary=summary, snapshot_id=snapshot_id, parent_id=None, staged_at=NOW, data_files=1, is_overtaken=is_overtaken
    )


@st.composite
def stagings(draw: st.DrawFn) -> list[StagedBatch]:
    """What any number of drivers may have staged: batches of small numbers with small offsets."""
    small = st.integers(0, 4)
    found = []
    for snapshot_id in range(draw(st.integers(0, 12))):
        start = draw(small)
        end = start + draw(st.integers(0, 2))
        token = draw(st.integers(1, 3))
        found.append(staged(snapshot_id, draw(small), start, end, token=token, generation=draw(st.integers(1, 2))))
    return found


@given(stagings(), st.integers(-1, 3), st.none() | st.integers(0, 4))
def test_every_staged_batch_has_one_place_and_the_chain_is_admitted(
    batches: list[StagedBatch], batch: int, end: int | None
) -> None:
    mark = position(batch, end=end)
    plan = plan_publication(mark, batches)
    places = [*plan.ready, *plan.published, *(lost.batch for lost in plan.abandoned)]
    assert sorted(each.snapshot_id for each in places) == sorted(each.snapshot_id for each in batches)
    assert [each.summary.key.batch for each in plan.ready] == list(range(batch + 1, batch + 1 + len(plan.ready)))
    assert batches_to_publish(mark, plan.ready, token=9, target="a.b") == plan.ready


@given(stagings(), stagings(), st.integers(-1, 3), st.integers(-1, 3))
def test_a_batch_is_whole_when_every_output_is_staged_or_visible(
    main: list[StagedBatch], other: list[StagedBatch], main_at: int, other_at: int
) -> None:
    named = [replace(batch, summary=replace(batch.summary, output="other")) for batch in other]
    plans = [plan_publication(position(main_at), main), plan_publication(position(other_at), named)]
    whole = whole_batches(plans)
    numbers = [next(iter(batch.values())).position for batch in whole]
    assert numbers == sorted(set(numbers))
    for plan, output in zip(plans, ("main", "other"), strict=True):
        assert all(batch.position <= plan.reached or batch in plan.ready for batch in _of(whole, output))
        behind = [batch for batch in whole if next(iter(batch.values())).position > plan.reached]
        assert all(output in batch for batch in behind), "a batch that is not visible lacks an output"


def _of(whole: Sequence[Mapping[str, StagedBatch]], output: str) -> list[StagedBatch]:
    return [batch[output] for batch in whole if output in batch]


def test_nothing_follows_a_batch_that_lacks_an_output() -> None:
    batches = [staged(1, 0, 0, 1), staged(2, 1, 1, 2)]
    other = replace(batches[0], summary=replace(batches[0].summary, output="other"))
    plans = [plan_publication(position(-1), batches), plan_publication(position(-1), [other])]
    assert whole_batches(plans) == ({"main": batches[0], "other": other},)


def test_of_two_that_follow_the_newer_runs_one_counts() -> None:
    old, new = staged(1, 0, 0, 1, token=1), staged(2, 0, 0, 2, token=2)
    assert plan_publication(position(-1), [old, new, staged(3, 1, 2, 3, token=2)]).ready[0] == new


def test_of_one_runs_twins_the_one_without_the_rows_that_a_rule_held_is_published() -> None:
    whole, again = staged(1, 0, 0, 1), staged(3, 0, 0, 1)
    separated = replace(whole, snapshot_id=2, summary=replace(whole.summary, is_separated=True))
    assert plan_publication(position(-1), [whole, separated, again]).ready == (separated,)
    newer = staged(4, 0, 0, 1, token=2)
    assert plan_publication(position(-1), [whole, separated, newer]).ready == (newer,), "it was computed again since"


def test_a_zombies_twin_of_a_visible_batch_is_not_what_is_visible() -> None:
    own = staged(1, 0, 0, 1, token=2)
    zombies = staged(2, 0, 0, 3, token=1, rows=3, is_overtaken=True)
    plan = plan_publication(position(0, end=1), [own, zombies])
    assert plan.published == (own,)
    assert [(lost.batch, lost.reason) for lost in plan.abandoned] == [(zombies, AbandonReason.STALE_TOKEN)]


def test_what_was_staged_after_a_newer_run_had_begun_is_not_visible_even_with_the_same_offsets() -> None:
    own, zombies = staged(1, 0, 0, 1, token=1), staged(2, 0, 0, 1, token=2, rows=3, is_overtaken=True)
    assert plan_publication(position(0, end=1, token=3), [own, zombies]).published == (own,)


def test_of_two_twins_behind_the_mark_the_one_that_ends_where_the_mark_says_is_visible() -> None:
    lost, own, newest = staged(1, 0, 0, 9, token=3), staged(2, 0, 0, 1, token=2), staged(3, 1, 1, 2, token=2)
    plan = plan_publication(position(1, end=2), [lost, own, newest])
    assert plan.published == (own, newest), "the newest batch starts where its predecessor ends"
    assert [(gone.batch, gone.reason) for gone in plan.abandoned] == [(lost, AbandonReason.STAGED_TWICE)]


def test_a_batch_that_only_a_zombie_left_behind_is_not_taken_for_the_visible_one() -> None:
    zombies = staged(2, 0, 0, 3, token=1, is_overtaken=True)
    plan = plan_publication(position(0, end=1), [zombies])
    assert plan.published == ()
    assert [lost.batch for lost in plan.abandoned] == [zombies]


def test_what_the_checkpoint_has_not_planned_is_not_published() -> None:
    batches = [staged(1, 0, 0, 1), staged(2, 1, 1, 2), staged(3, 2, 2, 3)]
    older = CheckpointPosition(generation=1, newest_planned=1, newest_committed=0, end_offsets={1: offsets(2)})
    plan = plan_publication(position(0, end=1), batches, checkpoint=older)
    assert (plan.published, plan.ready) == ((batches[0],), (batches[1],))
    assert [(lost.batch, lost.reason) for lost in plan.abandoned] == [(batches[2], AbandonReason.NOT_PLANNED)]
    other = replace(older, newest_planned=2, end_offsets={1: offsets(7)})
    assert plan_publication(position(0, end=1), batches, checkpoint=other).ready == ()


def test_a_checkpoint_is_not_asked_about_batches_of_another_generation() -> None:
    checkpoint = CheckpointPosition(generation=2, newest_planned=-1, newest_committed=-1)
    plan = plan_publication(position(0, end=1), [staged(2, 1, 1, 2)], checkpoint=checkpoint)
    assert [batch.snapshot_id for batch in plan.ready] == [2]


def test_a_summary_is_read_as_it_was_written() -> None:
    summary = staged(1, 7, 3, 4).summary
    assert read_summary(summary.properties()) == summary
    with_mode = replace(summary, mode=StagedMode(mode="merge", table="a.b", keys=("id",), ordering_column="at"))
    assert read_summary(with_mode.properties()) == with_mode
    assert read_summary({"sluice.publication-key": "s/backfill/x/1", "sluice.token": "1"}) is None
    assert read_summary({}) is None


def test_offsets_are_the_same_however_they_are_written() -> None:
    assert canonical_offsets({"b": '{"t": {"1": 2, "0": 1}}', "a": None}) == '{"a":null,"b":{"t":{"0":1,"1":2}}}'
    assert canonical_offsets({"a": "not json"}) == '{"a":"not json"}'
