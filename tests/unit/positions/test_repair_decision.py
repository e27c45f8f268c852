"""What is written back into a checkpoint, by what the tables hold and what is left of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.fakes.checkpoint_files import WRITTEN_AT, FakeCheckpointFiles

from sluice.checkpoints.compatibility import SOURCES, STATE_OPERATORS
from sluice.checkpoints.health_decision import CheckpointExpectation, judge_checkpoint, judge_state
from sluice.checkpoints.observe_checkpoint import observe_checkpoint
from sluice.ledger.generations import GenerationObservation
from sluice.operations import Refusal, RefusalReason
from sluice.positions.judge_position import disagreeing, judge_position
from sluice.positions.repair_decision import CheckpointRepair, decide_repair
from sluice.positions.stream_position import KnownBatch, StreamPosition, TableWitness, source_lines
from sluice.publication.chain import MarkPosition
from sluice.publication.staged_batch import StagedOutput

NOON = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
QUERY = "5b50e120-f7a9-4610-916a-695e361d1bb4"
CONF = '"conf":{"spark.sql.shuffle.partitions":"2"}'


def ends(number: int) -> str:
    """The canonical end offsets of a batch of the tables."""
    return json.dumps({"records": {"t": {"0": 10 * number + 10}}}, separators=(",", ":"))


def line(number: int) -> str:
    """The same as a line of the offset log."""
    return json.dumps({"t": {"0": 10 * number + 10}}, separators=(",", ":"))


def entry(number: int, *, watermark: int = 0, at: int = 1) -> str:
    """The entry of a batch in the offset log."""
    return f'v1\n{{"batchWatermarkMs":{watermark},"batchTimestampMs":{at},{CONF}}}\n{line(number)}'


def files(*, planned: int, committed: int, state: int = 0) -> dict[str, str]:
    """A checkpoint up to a planned and a committed batch. state: the versions of its one store; 0 for none."""
    return {
        "metadata": json.dumps({"id": QUERY}, separators=(",", ":")),
        **{f"offsets/{batch}": entry(batch) for batch in range(planned + 1)},
        **{f"commits/{batch}": f'v1\n{{"nextBatchWatermarkMs":{batch}}}' for batch in range(committed + 1)},
        **{f"state/0/0/{version}.delta": "x" for version in range(1, state + 1)},
    }


def position(
    contents: Mapping[str, str], *, visible: int, waiting: int = -1, state: bool = False, **more: Any
) -> StreamPosition:
    """A stream whose tables hold batches up to `visible`, and whose checkpoint has these files."""
    generation = GenerationObservation(
        stream="silver",
        generation=1,
        checkpoint="memory://checkpoint",
        opened_at=NOON,
        query_id=QUERY,
        fingerprint={SOURCES: "records", STATE_OPERATORS: "dedup" if state else ""},
    )
    table = TableWitness(
        output=StagedOutput(stream="silver", output="main", target="n.t"),
        position=MarkPosition(generation=1, batch=visible, token=1, end_offsets_digest=None),
        newest_waiting=max(visible, waiting),
    )
    seen = observe_checkpoint(FakeCheckpointFiles(dict(contents)), is_whole=True)
    expected = CheckpointExpectation(
        stream="silver", generation=1, query_id=QUERY, has_batches=True, is_live=False, longest_batch_seconds=300
    )
    known = {
        number: KnownBatch(
            number=number,
            ends=ends(number),
            starts=ends(number - 1) if number else '{"records":null}',
            rows=10,
            state_rows=4_000 + number,
            planned_at=NOON,
            watermark=None,
        )
        for number in range(max(visible, waiting) + 1)
    }
    built = StreamPosition(
        stream="silver",
        generation=generation,
        checkpoint="memory://checkpoint",
        contents=seen,
        health=judge_checkpoint(expected=expected, seen=seen, now=WRITTEN_AT),
        tables=(table,),
        batches=known,
    )
    return replace(built, **more)


def found(seen: StreamPosition) -> list[str]:
    """Who disagrees, and how."""
    return [f"{one.witness} {one.agreement}" for one in disagreeing(judge_position(seen))]


def repair(seen: StreamPosition) -> CheckpointRepair:
    """The repair, which is not refused."""
    decided = decide_repair(seen)
    assert isinstance(decided, CheckpointRepair), decided
    return decided


def without(contents: dict[str, str], *paths: str) -> dict[str, str]:
    """The files but some."""
    return {path: text for path, text in contents.items() if path not in paths}


def applied(contents: Mapping[str, str], done: CheckpointRepair) -> dict[str, str]:
    """The files after a repair."""
    kept = {path: text for path, text in contents.items() if path not in done.removes}
    return kept | dict(done.writes)


WHOLE = files(planned=5, committed=5)
STATEFUL = files(planned=5, committed=5, state=6)


def test_what_agrees_is_left_alone() -> None:
    assert found(position(WHOLE, visible=5)) == []
    assert repair(position(WHOLE, visible=5)).is_empty
    assert found(position(STATEFUL, visible=5, state=True)) == []
    assert repair(position(STATEFUL, visible=5, state=True)).is_empty


def test_a_batch_that_the_driver_did_not_commit_is_left_to_spark() -> None:
    open_batch = files(planned=5, committed=4, state=6)
    for state in (False, True):
        seen = position(open_batch, visible=5, state=state)
        assert found(seen) == []
        assert repair(seen).is_empty


def test_where_ledger_and_checkpoint_are_lost_its_copies_show_that_a_query_keeps_state() -> None:
    seen = position({}, visible=5, generation=None)
    assert not isinstance(decide_repair(seen), Refusal)
    decided = decide_repair(replace(seen, has_copies=True))
    assert isinstance(decided, Refusal)
    assert "its state is lost" in decided.sentence


def test_a_lost_folder_is_written_back_at_the_mark() -> None:
    seen = position({}, visible=5)

    done = repair(seen)

    assert found(seen) == ["checkpoint damaged"]
    assert (done.stands_at, done.runs_again, done.removes, done.rows_read_again) == (5, None, ("metadata",), 0)
    assert list(done.writes) == ["commits/5", "commits/4", "offsets/4", "offsets/5", "metadata"]
    assert [done.writes[f"offsets/{number}"].splitlines()[-1] for number in (4, 5)] == [line(4), line(5)]
    assert json.loads(done.writes["metadata"]) == {"id": QUERY}


def test_a_staged_batch_counts_as_done() -> None:
    assert repair(position({}, visible=4, waiting=6)).stands_at == 6


@pytest.mark.parametrize(
    "damaged",
    [
        {"offsets/5": ""},
        {"offsets/5": entry(5)[:40]},
        {"offsets/4": "x"},
        {"offsets/5": entry(9)},
        {"commits/5": ""},
    ],
    ids=["empty", "cut", "the one before", "another batch", "commit"],
)
def test_what_is_damaged_is_written_and_nothing_else(damaged: dict[str, str]) -> None:
    seen = position(WHOLE | damaged, visible=5)

    done = repair(seen)

    (path,) = damaged
    assert set(done.writes) == {path, "metadata"}
    assert done.removes == ("metadata",)
    assert found(position(applied(WHOLE | damaged, done), visible=5)) == []
    assert '"2"' in done.writes.get("offsets/5", '"2"'), "the settings that the checkpoint keeps stay"


def test_the_id_alone_is_written_without_removing_anything() -> None:
    for damaged in (without(WHOLE, "metadata"), WHOLE | {"metadata": '{"id":"another"}'}):
        done = repair(position(damaged, visible=5))
        assert (done.removes, set(done.writes)) == ((), {"metadata"})


def test_an_older_copy_of_a_stream_without_state_is_moved_to_the_mark() -> None:
    older = files(planned=2, committed=2)
    seen = position(older, visible=5)

    done = repair(seen)

    assert found(seen) == ["checkpoint behind"]
    assert done.stands_at == 5
    assert set(done.removes) == {"metadata", *(f"{log}/{one}" for log in ("offsets", "commits") for one in range(3))}
    assert found(position(applied(older, done), visible=5)) == []


def test_a_checkpoint_ahead_of_tables_that_were_set_back_stands_there_and_keeps_the_next_plan() -> None:
    seen = position(STATEFUL, visible=2, state=True)
    seen = replace(seen, batches={**seen.batches, **{n: KnownBatch(number=n, ends=ends(n), rows=7) for n in (3, 4, 5)}})

    done = repair(seen)

    assert found(seen) == ["checkpoint ahead"]
    assert (done.stands_at, done.runs_again, done.rows_read_again, done.reads_from) == (2, None, 21, ends(2))
    assert done.removes == (
        "metadata", "offsets/5", "offsets/4", "state/0/0/6.delta", "state/0/0/5.delta", "state/0/0/4.delta",
        "commits/5", "commits/4", "commits/3",
    )  # fmt: skip
    assert found(position(applied(STATEFUL, done), visible=2, state=True)) == []


def test_rows_that_are_read_again_are_not_counted_where_their_number_is_unknown() -> None:
    assert repair(position(WHOLE, visible=2)).rows_read_again is None


def test_a_damaged_state_is_taken_one_step_back() -> None:
    damaged = without(STATEFUL, "state/0/0/6.delta")
    seen = position(damaged, visible=5, state=True)

    done = repair(seen)

    assert found(seen) == ["checkpoint damaged"]
    assert (done.stands_at, done.runs_again, done.rows_read_again, done.reads_from) == (4, 5, 10, ends(4))
    assert done.removes == ("metadata", "commits/5")
    assert found(position(applied(damaged, done), visible=5, state=True)) == []


def test_a_state_that_is_not_what_was_written_is_damaged_at_its_version_alone() -> None:
    seen = observe_checkpoint(FakeCheckpointFiles(dict(STATEFUL)), is_whole=True)
    flipped = replace(seen, damaged=frozenset({"state/0/0/6.delta"}))

    assert [judge_state(flipped, committed_batch=batch).healthy for batch in (5, 4)] == [False, True]
    assert "6.delta is not what was written" in judge_state(flipped, committed_batch=5).message


def test_the_first_state_of_all_is_computed_again() -> None:
    damaged = without(files(planned=0, committed=0, state=1), "state/0/0/1.delta")
    seen = position(damaged | {"sources/0/0": "v1"}, visible=0, state=True)
    assert (repair(seen).stands_at, repair(seen).runs_again) == (-1, 0)
    assert isinstance(decide_repair(position(damaged, visible=0, state=True)), Refusal), "its beginning is unknown"


@pytest.mark.parametrize(
    ("damage", "because"),
    [
        (dict, "its state is lost, and with it what batches up to 5 left open (4,005 rows of state)."),
        (lambda: without(STATEFUL, *(f"state/0/0/{one}.delta" for one in range(1, 7))), "its state is lost"),
        (lambda: without(STATEFUL, "state/0/0/6.delta", "state/0/0/5.delta"), "damaged (4,005 rows of state): state/"),
        (lambda: without(STATEFUL, "state/0/0/2.delta"), "its state is damaged"),
        (lambda: files(planned=2, committed=2, state=3), "3 batches with 30 rows would be missing in it"),
        (lambda: STATEFUL | {"offsets/5": entry(9)}, "its state is of another batch 5"),
    ],
    ids=["folder", "all state", "two versions", "one in the middle", "older copy", "another batch"],
)
def test_state_that_cannot_be_proved_is_refused_with_what_would_be_lost(
    damage: Callable[[], dict[str, str]], because: str
) -> None:
    decided = decide_repair(position(damage(), visible=5, state=True))

    assert isinstance(decided, Refusal)
    assert decided.reason is RefusalReason.NOT_PROVABLE
    assert because in decided.sentence


def test_a_copy_that_is_one_batch_old_is_exact_with_state_too() -> None:
    done = repair(position(files(planned=4, committed=4, state=5), visible=5, state=True))

    assert (done.stands_at, done.runs_again) == (4, 5)
    assert done.writes["offsets/5"].splitlines()[-1] == line(5)
    assert json.loads(done.writes["offsets/5"].splitlines()[1])["batchWatermarkMs"] == 4, "as the commit before it says"


@pytest.mark.parametrize("interrupted_after", range(13))
def test_an_interrupted_repair_is_completed_by_another_one(interrupted_after: int) -> None:
    """At each file: the rest is planned again, and ends as the whole would have."""
    for whole, visible, state in (
        (STATEFUL, 2, True),
        (without(STATEFUL, "state/0/0/6.delta"), 5, True),
        (files(planned=2, committed=2), 5, False),
        ({}, 5, False),
    ):
        done = repair(position(whole, visible=visible, state=state))
        changes = [(path, None) for path in done.removes] + list(done.writes.items())
        half = dict(whole)
        for path, text in changes[:interrupted_after]:
            half.pop(path, None)
            if text is not None:
                half[path] = text
        seen = position(half, visible=visible, state=state)
        if interrupted_after < len(changes) and interrupted_after:
            assert found(seen) == ["checkpoint damaged"], "no run starts from it"
        rest = repair(seen)
        ended = applied(half, rest)
        again = position(ended, visible=visible, state=state)
        assert (found(again), repair(again).is_empty) == ([], True)
        assert rest.stands_at in (done.stands_at, -1) or rest.is_empty


def test_outputs_that_are_too_far_apart_are_refused() -> None:
    seen = position(WHOLE, visible=5)
    behind = replace(
        seen.tables[0],
        output=StagedOutput(stream="silver", output="other", target="n.o"),
        position=MarkPosition(generation=1, batch=3, token=1, end_offsets_digest=None),
        newest_waiting=3,
    )
    decided = decide_repair(replace(seen, tables=(*seen.tables, behind)))
    assert isinstance(decided, Refusal)
    assert "batches up to 3 and 5" in decided.sentence
    one_behind = replace(
        behind, position=MarkPosition(generation=1, batch=4, token=1, end_offsets_digest=None), newest_waiting=4
    )
    done = repair(replace(seen, tables=(*seen.tables, one_behind)))
    assert (done.stands_at, done.removes) == (4, ("metadata", "commits/5")), "batch 5 runs again as it was planned"


def test_what_only_the_checkpoint_knew_is_refused() -> None:
    files_alone = decide_repair(position({}, visible=5, own_memory=("records",)))
    other_outputs = decide_repair(position({}, visible=5, has_other_outputs=True))
    unknown = decide_repair(position({}, visible=5, batches={}))

    assert [isinstance(one, Refusal) for one in (files_alone, other_outputs, unknown)] == [True] * 3


def test_an_output_without_a_mark_that_knows_a_batch_by_its_number_is_not_given_another_one() -> None:
    tables_set_back = position(WHOLE, visible=3, has_other_outputs=True)
    knows_numbers = decide_repair(replace(tables_set_back, remembers_batches=True))

    assert repair(tables_set_back).stands_at == 3
    assert isinstance(knows_numbers, Refusal)
    assert "outputs without a mark" in knows_numbers.sentence


def test_what_a_source_remembers_has_to_reach_to_the_batch() -> None:
    older = files(planned=3, committed=3) | {"sources/0/3": "v1"}
    assert isinstance(decide_repair(position(older, visible=5, own_memory=("records",))), Refusal)

    ended = {
        number: KnownBatch(number=number, ends=json.dumps({"records": {"logOffset": number}})) for number in range(6)
    }
    of_files: dict[str, Any] = {"visible": 5, "own_memory": ("records",), "batches": ended}
    lost = {"metadata": WHOLE["metadata"]}
    for log in ("5", "5.compact", "9.compact"):
        assert repair(position(lost | {f"sources/0/{log}": "v1"}, **of_files)).stands_at == 5
    for log in ("4", "4.compact", "5.txt"):
        assert isinstance(decide_repair(position(lost | {f"sources/0/{log}": "v1"}, **of_files)), Refusal)


def test_a_plan_behind_another_batch_goes() -> None:
    contents = files(planned=6, committed=5)
    assert "offsets/6" not in repair(position(without(contents, "commits/5", "commits/4"), visible=5)).removes
    other = contents | {"offsets/5": entry(7)}
    seen = position(other, visible=5)
    assert found(seen) == ["checkpoint diverged"]

    done = repair(seen)

    assert "offsets/6" in done.removes
    assert applied(other, done)["offsets/5"].splitlines()[-1] == line(5)


def test_the_sources_of_another_generation_are_not_those_of_the_newest_one() -> None:
    known = position(WHOLE, visible=5)
    (table,) = known.tables
    assert table.position is not None
    newer = replace(table, position=replace(table.position, generation=2))
    assert known.sources == ("records",)
    assert replace(known, tables=(newer,)).sources == ()


def test_offsets_become_lines_in_the_order_of_the_sources() -> None:
    iceberg = {"position": 2, "scan_all_files": False, "snapshot_id": 7, "version": 1}
    known = json.dumps({"b": iceberg, "a": {"t": {"0": 5}}, "source 2": None})
    assert source_lines(known, ("b", "a")) == (
        '{"version":1,"snapshot_id":7,"position":2,"scan_all_files":false}',
        '{"t":{"0":5}}',
        None,
    )
    assert source_lines(known, ("b",)) is None
