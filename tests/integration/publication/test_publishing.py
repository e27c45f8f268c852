"""Publishing by appending: once, in order, with the mark, whatever the publisher is told to publish again."""

from __future__ import annotations

import pytest
from tests.fixtures.publication import Workbench, offsets

from sluice.errors import DeliveryError, DivergedError, MarkError, StagingError, StaleTokenError, UnpublishableError
from sluice.publication.mark_moves import open_generation, reject_batch, take_over
from sluice.publication.publish_batches import publish_append
from sluice.publication.staged_batch import StagedOutput
from sluice.publication.staging_layout import ensure_staging_table
from sluice.publication.staging_table import load_staging_table
from sluice.stored_keys import PUBLICATION_KEY


def test_a_staged_batch_becomes_visible_once(bench: Workbench) -> None:
    batch = bench.stage(0, [1, 2, 3])
    assert bench.ids() == []
    first = bench.publish(batch)
    again = bench.publish(batch)
    assert bench.ids() == [1, 2, 3]
    assert first.published == (batch,)
    assert again.was_published_before
    assert again.snapshot_id == first.snapshot_id == bench.target().metadata.current_snapshot_id
    mark = bench.mark()
    assert (mark.generation, mark.batch, mark.token, mark.snapshot_id) == (1, 0, 1, first.snapshot_id)


def test_the_snapshot_describes_its_batch(bench: Workbench) -> None:
    bench.publish(bench.stage(0, [1, 2, 3]))
    snapshot = bench.target().current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    told = snapshot.summary.additional_properties
    assert told[PUBLICATION_KEY] == f"{bench.output.stream}:1:0"
    assert told["sluice.output"] == "main"
    assert told["sluice.run-id"] == "run-1"
    assert told["sluice.token"] == "1"  # a fencing token is not a secret
    assert (told["sluice.start-offsets"], told["sluice.end-offsets"]) == (offsets(0), offsets(10))
    assert told["sluice.rows"] == told["added-records"] == "3"


def test_several_batches_become_visible_together_with_the_mark_at_the_last(bench: Workbench) -> None:
    batches = [bench.stage(number, [number]) for number in range(4)]
    before = len(bench.target().snapshots())
    published = bench.publish(*batches)
    assert published.published == tuple(batches)
    assert bench.ids() == [0, 1, 2, 3]
    assert len(bench.target().snapshots()) == before + 1
    assert bench.mark().batch == 3
    told = bench.target().current_snapshot()
    assert told is not None
    assert told.summary is not None
    assert told.summary["sluice.start-offsets"] == offsets(0)
    assert told.summary["sluice.first-batch"] == "0"
    assert told.summary["sluice.rows"] == "4"


def test_of_several_batches_those_that_are_visible_already_are_left_out(bench: Workbench) -> None:
    batches = [bench.stage(number, [number]) for number in range(3)]
    bench.publish(batches[0])
    assert bench.publish(*batches).published == tuple(batches[1:])
    assert bench.ids() == [0, 1, 2]


def test_nothing_is_read_of_batches_that_were_published_before(bench: Workbench) -> None:
    bench.publish(bench.stage(0, [0]))
    staging = load_staging_table(bench.catalog, bench.output)
    snapshot = staging.current_snapshot()
    assert snapshot is not None
    for manifest in snapshot.manifests(staging.io):
        staging.io.delete(manifest.manifest_path)
    bench.publish(bench.stage(1, [1]))
    assert bench.mark().batch == 1


def test_a_batch_is_found_where_its_manifest_was_put_together_with_others(bench: Workbench) -> None:
    first = bench.stage(0, [0])
    staging = load_staging_table(bench.catalog, bench.output)
    merging = {"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "2"}
    with staging.transaction() as transaction:
        transaction.set_properties(merging)
    second = bench.stage(1, [1])
    snapshot = load_staging_table(bench.catalog, bench.output).current_snapshot()
    assert snapshot is not None
    assert len(snapshot.manifests(staging.io)) == 1
    bench.publish(first)
    bench.publish(second)
    assert bench.ids() == [0, 1]


def test_an_empty_batch_is_published_too_so_that_the_chain_holds(bench: Workbench) -> None:
    batches = [bench.stage(0, [1]), bench.stage(1, []), bench.stage(2, [3])]
    for batch in batches:
        bench.publish(batch)
    assert bench.ids() == [1, 3]
    assert bench.mark().batch == 2


def test_a_batch_with_other_offsets_under_a_published_number_is_an_incident(bench: Workbench) -> None:
    bench.publish(bench.stage(0, [1]))
    other = bench.stage(0, [1, 2], end_offsets=offsets(11))
    with pytest.raises(DivergedError, match="its end offsets differ"):
        bench.publish(other)
    assert bench.ids() == [1]


def test_a_batch_that_does_not_begin_where_the_last_one_ended_is_an_incident(bench: Workbench) -> None:
    bench.publish(bench.stage(0, [1]))
    with pytest.raises(DivergedError, match="does not start at the offsets where"):
        bench.publish(bench.stage(1, [2], start_offsets=offsets(9)))
    assert bench.ids() == [1]


def test_a_batch_is_not_published_over_one_that_is_missing(bench: Workbench) -> None:
    with pytest.raises(StagingError, match="cannot follow batch -1"):
        bench.publish(bench.stage(1, [2]))
    assert bench.ids() == []


def test_a_batch_of_a_generation_that_was_never_opened_is_refused(bench: Workbench) -> None:
    with pytest.raises(MarkError, match="was never opened"):
        bench.publish(bench.in_generation(2).stage(0, [1]))
    assert bench.ids() == []


def test_a_target_that_no_generation_was_opened_on_is_refused(bench: Workbench) -> None:
    batch = bench.stage(0, [1])
    with bench.target().transaction() as transaction:
        transaction.remove_properties(bench.output.mark_property)
    with pytest.raises(MarkError, match="has no mark"):
        bench.publish(batch)
    assert bench.ids() == []


def test_a_mark_that_somebody_wrote_over_is_refused(bench: Workbench) -> None:
    batch = bench.stage(0, [1])
    with bench.target().transaction() as transaction:
        transaction.set_properties({bench.output.mark_property: "done"})
    with pytest.raises(MarkError, match="is not a mark"):
        bench.publish(batch)
    assert bench.ids() == []


def test_an_older_run_is_refused_for_ever(bench: Workbench) -> None:
    old, new = bench, bench.as_run(2)
    first = old.stage(0, [1])
    take_over(new.catalog, new.output, token=new.run)
    with pytest.raises(StaleTokenError, match="a newer run has taken the stream over"):
        old.publish(first)
    assert new.publish(first).published == (first,)
    with pytest.raises(StaleTokenError):
        old.publish(first)
    with pytest.raises(StaleTokenError):
        take_over(old.catalog, old.output, token=old.run)
    with pytest.raises(StaleTokenError):
        open_generation(old.catalog, old.output, generation=2, token=old.run)
    assert bench.ids() == [1]
    assert bench.mark().token == new.run


def test_taking_over_twice_is_taking_over_once(bench: Workbench) -> None:
    take_over(bench.catalog, bench.output, token=3)
    snapshots = len(bench.target().snapshots())
    assert take_over(bench.catalog, bench.output, token=3).token == 3
    assert bench.begin_as(3).token == 3
    assert len(bench.target().snapshots()) == snapshots


def test_a_rejected_batch_is_passed_by_and_the_next_one_follows(bench: Workbench) -> None:
    batches = [bench.stage(number, [number]) for number in range(3)]
    bench.publish(batches[0])
    with pytest.raises(StagingError, match="the batches in between are not"):
        reject_batch(bench.catalog, bench.output, batches[2], token=1)
    reject_batch(bench.catalog, bench.output, batches[1], token=1)
    reject_batch(bench.catalog, bench.output, batches[1], token=1)
    assert bench.publish(*batches).published == (batches[2],)
    assert bench.ids() == [0, 2]


def test_small_staged_files_go_in_as_one(bench: Workbench) -> None:
    batches = [bench.stage(number, [number * 2, number * 2 + 1]) for number in range(5)]
    other = bench.stage(5, [100], kind="b")
    published = bench.publish(*batches, other, merge_small=True)
    assert bench.ids() == bench.ids_by_duckdb() == [*range(10), 100]
    files = bench.target().inspect.files().to_pylist()
    assert sorted(file["record_count"] for file in files) == [1, 10]
    assert len(published.superseded_files) == 5
    folder = f"{bench.target().location()}/data"
    assert all(file["file_path"].startswith(folder) for file in files)
    assert [row["id"] for row in bench.target().scan("kind = 'b'").to_arrow().to_pylist()] == [100]


@pytest.mark.parametrize("name", ["", "a b", "A", "a__b", "a.b", "a;drop", "../a", "x" * 64])
def test_names_that_must_not_reach_sql_or_paths_are_refused(name: str) -> None:
    with pytest.raises(DeliveryError, match="cannot be used"):
        StagedOutput(stream=name, output="main", target="a.b")
    with pytest.raises(DeliveryError, match="cannot be used"):
        StagedOutput(stream="a", output=name, target="a.b")
    with pytest.raises(DeliveryError, match="not <namespace>"):
        StagedOutput(stream="a", output="main", target=f"a.b.{name}")


def test_the_longest_names_have_a_staging_table(bench: Workbench) -> None:
    stream = (bench.output.stream + "x" * 63)[:63]
    identifier = ensure_staging_table(
        bench.catalog, stream=stream, output="o" * 63, target=bench.output.target, token=1
    )
    assert bench.catalog.load_table(identifier).schema() == bench.target().schema()


@pytest.mark.parametrize(
    ("catalog_place", "version"),
    [("rest", 1), ("sql", 1), ("rest", 3)],  # pyiceberg's SQL catalog cannot make a table of version 3
    indirect=["catalog_place"],
)
def test_a_table_of_another_format_version_is_refused_with_the_reason(bench: Workbench, version: int) -> None:
    name = f"{bench.output.stream}.other"
    properties = {"format-version": str(version)}
    bench.catalog.create_table(name, schema=bench.target().schema(), properties=properties)
    with pytest.raises(UnpublishableError, match=rf"format version {version}; publication writes version 2\. Declare"):
        ensure_staging_table(bench.catalog, stream=bench.output.stream, output="other", target=name, token=1)
    names = StagedOutput(stream=bench.output.stream, output="main", target=name)
    with pytest.raises(UnpublishableError):
        publish_append(bench.catalog, names, [bench.stage(0, [1])], token=1)
