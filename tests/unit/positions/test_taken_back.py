"""Batches that the ledger has and no table holds any more: their rows are read again, under the same numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.positions.test_repair_decision import WHOLE, ends, files, found, position, repair, without

from sluice.operations import Refusal
from sluice.positions.repair_decision import decide_repair
from sluice.positions.restore_copy import decide_replay
from sluice.positions.stream_position import StreamPosition
from sluice.publication.staged_batch import StagedOutput


def set_back(seen: StreamPosition, *, to: int) -> StreamPosition:
    """The tables stand at an earlier batch, and the ledger has recorded up to batch 5."""
    return recorded(seen.as_behind(to), up_to=5)


def recorded(seen: StreamPosition, *, up_to: int) -> StreamPosition:
    """The ledger has recorded the batches up to one."""
    known = {number: replace(one, is_recorded=number <= up_to) for number, one in seen.batches.items()}
    return replace(seen, batches=known)


def test_they_are_counted_beside_an_older_checkpoint_that_stands_where_the_tables_do() -> None:
    older = without(files(planned=3, committed=3), "metadata")

    done = repair(replace(set_back(position(WHOLE, visible=5), to=3), contents=position(older, visible=3).contents))

    assert (list(done.writes), done.rows_read_again, done.reads_until) == (["metadata"], 20, ends(5))


def test_they_are_counted_beside_the_state_of_a_copy() -> None:
    seen = set_back(position(files(planned=1, committed=1, state=2), visible=5, state=True), to=4)

    done = decide_replay(seen)

    assert done is not None
    assert (done.replays, done.rows_read_again, done.reads_until) == ((2, 3, 4), 40, ends(5))


def test_what_only_one_of_two_outputs_has_staged_is_not_read_again() -> None:
    """The driver died between the two, and then the `metadata` was lost."""
    half = position(without(files(planned=5, committed=4), "metadata"), visible=4, waiting=5)
    seen = recorded(half, up_to=4)
    output = StagedOutput(stream="silver", output="beside", target="n.u")
    beside = replace(seen.tables[0], output=output, newest_waiting=4)

    done = repair(replace(seen, tables=(*seen.tables, beside)))

    assert (list(done.writes), done.reads_from, done.rows_read_again) == (["metadata"], "", 0)


def test_none_is_taken_back_while_another_table_waits_for_a_person() -> None:
    """Who may bring its rows back."""
    seen = set_back(position(WHOLE, visible=5), to=3)
    assert seen.newest_taken_back == 5
    waiting = replace(seen.tables[0], position=None, problem="its mark is not in main")

    assert replace(seen, tables=(*seen.tables, waiting)).newest_taken_back == -1


@pytest.mark.parametrize(
    ("contents", "written"),
    [
        (files(planned=5, committed=4), set()),
        (files(planned=4, committed=4), {"offsets/5"}),
        (files(planned=4, committed=3), {"offsets/5", "commits/4"}),
    ],
)
def test_a_batch_that_one_of_two_tables_shows_is_read_again_for_the_other(
    contents: dict[str, str], written: set[str]
) -> None:
    """The other one was set back by one batch, beside an older checkpoint; two batches apart is refused."""
    whole = position(without(contents, "metadata"), visible=5)
    beside = replace(whole.tables[0], output=StagedOutput(stream="silver", output="beside", target="n.u"))
    seen = replace(recorded(whole, up_to=5), tables=(*whole.as_behind(4).tables, beside))

    done = repair(seen)

    assert set(done.writes) - {"metadata"} == written
    assert (done.reads_from, done.reads_until, done.rows_read_again) == (ends(4), ends(5), 10)
    apart = replace(seen, tables=(*whole.as_behind(3).tables, beside))
    assert isinstance(decide_repair(apart), Refusal)


def test_a_checkpoint_that_has_not_planned_what_one_table_shows_is_behind() -> None:
    whole = position(files(planned=3, committed=3), visible=5)
    beside = replace(whole.tables[0], output=StagedOutput(stream="silver", output="beside", target="n.u"))

    assert found(replace(whole, tables=(*whole.as_behind(3).tables, beside))) == ["checkpoint behind"]


def test_a_state_that_is_two_batches_behind_one_table_is_not_continued() -> None:
    whole = position(files(planned=5, committed=4, state=4), visible=5, state=True)
    beside = replace(whole.tables[0], output=StagedOutput(stream="silver", output="beside", target="n.u"))

    decided = decide_repair(replace(whole, tables=(*whole.as_behind(4).tables, beside)))

    assert isinstance(decided, Refusal)
    assert "its state is damaged" in decided.sentence
    older = position(files(planned=4, committed=3, state=4), visible=5, state=True)
    whole_state = decide_repair(replace(older, tables=(*older.as_behind(4).tables, beside)))
    assert isinstance(whole_state, Refusal)
    assert "its state ends behind batch 3, and the tables hold batches up to 5: 2 batches" in whole_state.sentence
