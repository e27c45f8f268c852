"""Which witness of a position disagrees with the others, and which only does not answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.unit.positions.test_repair_decision import WHOLE, ends, files, found, position

from sluice.positions.judge_position import REMEDIES, disagreeing, judge_position
from sluice.positions.stream_position import Agreement, KnownBatch, MovedSource, StreamPosition, Witness
from sluice.sources.source_identities import Replaced, output_table_name, topic_name


def test_each_witness_has_one_finding_in_a_fixed_order() -> None:
    findings = judge_position(position(WHOLE, visible=5))

    assert [one.witness for one in findings] == list(Witness)
    assert disagreeing(findings) == ()


@pytest.mark.parametrize("witness", Witness)
def test_what_does_not_answer_is_unknown_and_nothing_is_concluded(witness: Witness) -> None:
    seen = position(WHOLE, visible=5, unknown={witness: "it is away"})

    (finding,) = disagreeing(judge_position(seen))

    assert (str(finding), "stream repair" in finding.next_step) == (f"{witness} unknown: it is away", False)


def test_what_was_created_again_is_replaced() -> None:
    table = Replaced(name=output_table_name("n.t"), known="1", seen="2")
    topic = Replaced(name=topic_name("c", "t"), known="1", seen="2")

    assert found(position(WHOLE, visible=5, replaced=(table,))) == ["mark replaced"]
    assert found(position(WHOLE, visible=5, replaced=(topic,))) == ["sources replaced"]


def _positions() -> Iterator[tuple[StreamPosition, str]]:
    """One for each finding, with the table that it is about."""
    seen = position(WHOLE, visible=5)
    table = Replaced(name=output_table_name("n.t"), known="1", seen="2")
    yield replace(seen, replaced=(table,)), "n.t"
    yield replace(seen, replaced=(Replaced(name=topic_name("c", "t"), known="1", seen="2"),)), ""
    for is_expired in (True, False):
        yield replace(seen, moved=(MovedSource(input="i", is_expired=is_expired, sentence="it is gone"),)), ""
    yield replace(seen, tables=(replace(seen.tables[0], lost="snap-1.avro"),)), ""
    yield replace(seen, generation=None), ""
    yield position(files(planned=3, committed=3), visible=5), ""
    yield position(WHOLE, visible=2), ""
    yield replace(seen, batches={**seen.batches, 5: KnownBatch(number=5, ends=ends(7))}), ""
    yield position({**WHOLE, "metadata": ""}, visible=5), ""
    for witness in Witness:
        yield position(WHOLE, visible=5, unknown={witness: "it is away"}), ""


def test_each_finding_names_the_command_of_its_remedy() -> None:
    """That of a table that was rolled back names it where publication refuses it."""
    named = set()
    for seen, table in _positions():
        for one in disagreeing(judge_position(seen)):
            named.add((one.witness, one.agreement))
            assert REMEDIES[one.witness, one.agreement].command_for(seen.stream, table) in one.next_step
    assert named == set(REMEDIES) - {(Witness.MARK, Agreement.DIVERGED)}


def test_a_set_back_table_comes_with_its_own_remedy() -> None:
    seen = position(WHOLE, visible=5)
    broken = replace(seen.tables[0], position=None, problem="rolled back", next_step="Set main again.")

    findings = disagreeing(judge_position(replace(seen, tables=(broken,))))

    assert [(str(one), one.next_step) for one in findings] == [("mark diverged: rolled back", "Set main again.")]


def test_a_mark_of_a_generation_that_the_ledger_does_not_know() -> None:
    seen = position(WHOLE, visible=5)
    assert found(replace(seen, generation=None)) == ["ledger behind"]


def test_a_batch_of_other_offsets_under_the_same_number_is_diverged() -> None:
    seen = position(WHOLE, visible=5)
    other = {**seen.batches, 5: KnownBatch(number=5, ends=ends(7))}
    assert found(replace(seen, batches=other)) == ["checkpoint diverged"]


def test_a_driver_may_be_ahead_of_what_was_read_of_its_checkpoint() -> None:
    older = files(planned=3, committed=3)
    assert found(position(older, visible=5, is_live=True)) == []
    assert found(position(older, visible=5)) == ["checkpoint behind"]


def test_a_batch_that_waits_is_not_missing() -> None:
    assert found(position(WHOLE, visible=2, waiting=5)) == []
    assert found(position(WHOLE, visible=2)) == ["checkpoint ahead"]
