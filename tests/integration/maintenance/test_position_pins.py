"""A stream pins where it is, in a real catalog and with a real ledger; maintenance obeys the pins. No Spark."""

from __future__ import annotations

import json

import pytest
from tests.integration.maintenance.conftest import Place

from sluice.declarations.load_declarations import load_declarations
from sluice.ledger.run_values import RunState
from sluice.ledger.runs import admit_run, record_end
from sluice.maintenance.retention_plan import MIN_SNAPSHOTS
from sluice.publication.direct_history import EPOCH, QUERY_ID, DirectWriter
from sluice.stored_keys import KEPT_FOR_READERS
from sluice.tables.declared_tables import create_or_evolve_table


def test_a_stream_that_has_read_nothing_pins_the_oldest_snapshot(place: Place) -> None:
    first, *_ = place.append("rows", 3)

    assert place.pin() == [f"sluice_pin__{place.stream}__rows__position"]

    assert place.table("rows").refs()[f"sluice_pin__{place.stream}__rows__position"].snapshot_id == first
    assert place.pin() == []  # it is in place


def test_the_pin_moves_with_the_stream(place: Place) -> None:
    first, second, *_ = place.append("rows", 4)
    place.start(offsets=[first])
    place.pin()
    place.record(second)

    assert place.pin() == [f"sluice_pin__{place.stream}__rows__position"]

    assert place.table("rows").refs()[f"sluice_pin__{place.stream}__rows__position"].snapshot_id == second


def test_an_empty_table_has_nothing_to_pin(place: Place) -> None:
    assert place.pin() == []


def test_the_table_asks_every_expiry_to_keep_what_a_slow_reader_needs(place: Place) -> None:
    first, *_ = place.append("rows", 20)
    place.start(offsets=[first])

    place.pin()

    properties = place.table("rows").properties
    assert properties[MIN_SNAPSHOTS] == "64"
    assert json.loads(properties[KEPT_FOR_READERS]) == {MIN_SNAPSHOTS: 64}
    declaration = load_declarations(place.folder).table(f"{place.namespace}.rows").declaration
    assert create_or_evolve_table(place.catalog, declaration) == ()  # `sluice table create` leaves it


@pytest.mark.full  # every run: `test_retention_plan.py`
def test_maintenance_lowers_what_was_set_for_a_reader_that_has_caught_up(place: Place) -> None:
    *_, newest = place.append("rows", 20)
    place.start(offsets=[place.append("rows", 0)[0]])
    place.pin()
    place.record(newest)

    plan = place.plan("rows")

    assert plan.pins.properties[MIN_SNAPSHOTS] == "2"


def test_a_reader_that_holds_back_old_snapshots_is_reported_with_its_cost(place: Place) -> None:
    first, *_ = place.append("rows", 6)
    place.start(offsets=[first])

    notes = place.plan("rows").notes

    assert len(notes) == 1
    assert notes[0].startswith(f"stream {place.stream} (rows) holds back 5 old snapshots and 0.0 MiB of replaced files")


def test_the_newest_snapshot_of_a_crashed_direct_stream_is_kept(place: Place) -> None:
    """Without it the stream refuses to start: its sink could not recognise the batch that it repeats."""
    writer = DirectWriter(stream=place.stream, output="copies", generation=1, run_id="r", token=1)
    *_, own = place.append("copies", 2, **writer.properties(), **{QUERY_ID: "query", EPOCH: "4"})
    *_, newest = place.append("copies", 4)
    root = place.start()
    for log, batch in (("offsets", 4), ("commits", 3)):
        (root / log).mkdir(parents=True)
        (root / log / str(batch)).write_text("v1\n")

    plan = place.plan("copies")

    assert [(pin.tag, pin.snapshot_id) for pin in plan.pins.to_set] == [
        (f"sluice_pin__{place.stream}__copies__written", own)
    ]
    assert plan.pins.keep_since is not None
    assert newest != own
    (root / "commits" / "4").write_text("v1\n")
    assert place.plan("copies").pins.pins == ()  # it ended between two batches


def test_the_pins_of_a_stream_that_is_gone_are_removed_once_it_has_no_live_run(place: Place) -> None:
    place.append("rows", 3)
    place.pin()
    run = admit_run(place.ledger, stream=place.stream, mode="continuous", declaration_digest="d", launched_by="a test")
    (place.folder / f"{place.stream}.stream.yaml").unlink()

    assert place.plan("rows").pins.to_remove == ()
    record_end(place.ledger, run.run_id, state=RunState.FINISHED, exit_code=0, reason="stopped")
    assert place.plan("rows").pins.to_remove == (f"sluice_pin__{place.stream}__rows__position",)


def test_a_direct_stream_pins_the_newest_snapshot_that_its_sink_wrote(place: Place) -> None:
    writer = DirectWriter(stream=place.stream, output="copies", generation=1, run_id="r", token=1)
    tag = f"sluice_pin__{place.stream}__copies__written"
    *_, own = place.append("copies", 2, **writer.properties(), **{QUERY_ID: "query", EPOCH: "4"})
    place.append("copies", 4)

    assert place.pin() == [tag]
    assert place.pin() == []  # it is in place

    assert place.table("copies").refs()[tag].snapshot_id == own
    *_, newer = place.append("copies", 1, **writer.properties(), **{QUERY_ID: "query", EPOCH: "5"})
    assert place.pin() == [tag]
    assert place.table("copies").refs()[tag].snapshot_id == newer
