"""Whoever needs what an erasure would remove blocks it: refreshes, lookups, other tables in the folder. No Spark."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.fixtures.drill import first_of
from tests.fixtures.erasing import ANN, Household, home
from tests.integration.erasure.test_erasure_refusals import refused

from sluice.errors import LakehouseError, UnhealthyError
from sluice.ledger.backfill_attempts import BackfillState, begin_attempt, end_attempt
from sluice.ledger.events import Actor, Event, EventAction, EventSubject
from sluice.ledger.refreshes import abandon_refresh, begin_refresh
from sluice.ledger.runs import admit_run
from sluice.operations import RefusalReason
from sluice.publication.crash_points import CrashPoint

__all__ = ["home"]


@pytest.mark.parametrize("who", first_of("writer", "reader"))
@pytest.mark.full  # other writers that are under way are in every run
def test_a_refresh_that_is_open(home: Household, who: str) -> None:
    home.declare(reads="skip")
    home.append((ANN, 1), ("Bob", 2))
    home.read_up_to(home.head(), files=1)
    home.bench.begin()
    stream = home.writer if who == "writer" else home.reader
    event = Event(
        subject=EventSubject.STREAM,
        name=stream,
        actor=Actor.person("a test"),
        action=EventAction.REFRESH,
        reason="requested",
    )
    refresh = begin_refresh(
        home.ledger, stream, digest="d", leaves=1, keeps=timedelta(days=1), asked_by="a test", event=event
    )
    assert refused(home) == [RefusalReason.NOT_AT_REST]
    abandon_refresh(home.ledger, refresh.number, event=event)
    assert refused(home) == []


@pytest.mark.full  # every run: `test_erasure_plan.py`
@pytest.mark.parametrize("who", ["reader", "writer"])
def test_a_backfill_that_has_not_ended(home: Household, who: str) -> None:
    home.declare(reads="skip")
    home.append((ANN, 1), ("Bob", 2))
    home.read_up_to(home.head(), files=1)
    stream = home.writer if who == "writer" else home.reader
    start = datetime(2026, 1, 1, tzinfo=UTC)
    key = begin_attempt(home.ledger, stream, start=start, end=start + timedelta(days=1), launched_by="a test")
    assert refused(home) == [RefusalReason.NOT_AT_REST]
    (refusal,) = home.erasure().plan().refusals
    assert "sluice stream clean" in (refusal.next_step or "")
    end_attempt(home.ledger, key, BackfillState.LOST)
    assert refused(home) == []


@pytest.mark.full  # every run: a writer (`test_erasure_positions.py`)
def test_a_backfill_of_a_reader_that_begins_meanwhile(home: Household) -> None:
    home.declare(reads="skip")
    home.append((ANN, 1), ("Bob", 2))
    start = datetime(2026, 1, 1, tzinfo=UTC)

    def backfill(point: CrashPoint) -> None:
        if point is CrashPoint.COMMITTED:
            begin_attempt(home.ledger, home.reader, start=start, end=start + timedelta(days=1), launched_by="a test")

    with pytest.raises(UnhealthyError, match="has not reported an end"):
        home.erasure(reached=backfill).erase()
    assert len(home.table().snapshots()) == 3


@pytest.mark.parametrize("is_moved", first_of(True, False))  # every run: one that comes (`test_erasure_races.py`)
@pytest.mark.full  # test_erasure_races has a tag that comes at the last moment
def test_a_tag_that_comes_or_moves_meanwhile(home: Household, is_moved: bool) -> None:
    home.declare()
    first = home.append(("Bob", 2))
    second = home.append((ANN, 1))
    if is_moved:
        home.tag("seen", first)

    def tag(point: CrashPoint) -> None:
        if point is CrashPoint.COMMITTED:
            home.tag("seen", second)

    with pytest.raises(LakehouseError, match="Meanwhile seen may need a snapshot"):
        home.erasure(reached=tag).erase()
    assert home.table().snapshot_by_name("seen") is not None
    assert home.table().snapshot_by_id(second) is not None
    home.erasure().erase()
    assert home.rows() == [("Bob", 2)]


@pytest.mark.full  # every run: `test_erasure_plan.py`
def test_a_reader_that_runs_and_has_no_offsets_yet(home: Household) -> None:
    home.declare(reads="skip")
    home.append((ANN, 1), ("Bob", 2))
    digest = home.observer().declarations.streams[home.reader].digest
    admit_run(home.ledger, stream=home.reader, mode="incremental", declaration_digest=digest, launched_by="a test")
    with pytest.raises(UnhealthyError, match="has read up to"):
        home.erasure().erase()
    assert len(home.table().snapshots()) == 3


def test_what_looks_the_table_up_is_named(home: Household) -> None:
    home.declare()
    home.append((ANN, 1), ("Bob", 2))
    declare_lookup(home, {"table": home.name})
    seen = home.erasure().plan().seen
    assert seen.checkpoints == (f"l{home.writer}", home.writer)
    assert seen.feeds == (f"{home.writer}.copies",)
    assert seen.sources == (f"the table {home.writer}.inbox",)


@pytest.mark.full  # every run: `test_erasure_plan.py`
@pytest.mark.parametrize("by", ["tag", "snapshot_id"])
def test_a_state_that_a_stream_looks_up(home: Household, by: str) -> None:
    home.declare()
    first = home.append((ANN, 1), ("Bob", 2))
    home.tag("seen", first)
    home.append(("Carl", 3))
    source: dict[str, Any] = {"table": home.name, by: "seen" if by == "tag" else first}
    declare_lookup(home, source)
    assert refused(home) == [RefusalReason.READER_STOPS]
    del source[by]
    declare_lookup(home, source)
    assert refused(home) == []


def declare_lookup(home: Household, source: dict[str, Any]) -> None:
    """Declare a stream that looks a table up."""
    declared = {
        "stream": f"l{home.writer}",
        "description": "d",
        "owner": "o",
        "mode": "incremental",
        "schedule": {"cron": "@hourly"},
        "inputs": {
            "rows": {"stream": {"iceberg": {"table": f"{home.writer}.inbox"}}},
            "seen": {"static": {"iceberg": source}},
        },
        "transformation": {"sql": "lookup.sql"},
        "outputs": {"copies": {"iceberg": {"table": f"{home.writer}.copies"}}},
    }
    (home.folder / "lookup.sql").write_text("SELECT rows.kind, rows.id FROM rows JOIN seen ON rows.id = seen.id")
    (home.folder / f"l{home.writer}.stream.yaml").write_text(yaml.safe_dump(declared))


@pytest.mark.full  # every run: `test_erasure_plan.py`
def test_a_reader_that_runs_by_an_earlier_declaration(home: Household) -> None:
    home.declare(reads="skip")
    home.append((ANN, 1), ("Bob", 2))
    home.read_up_to(home.head(), files=1)
    admit_run(home.ledger, stream=home.reader, mode="incremental", declaration_digest="old", launched_by="a test")
    assert refused(home) == [RefusalReason.NOT_AT_REST]


@pytest.mark.full  # every run: `test_erasure_plan.py`
def test_a_table_that_lies_in_the_folder(home: Household) -> None:
    home.declare()
    home.append((ANN, 1), ("Bob", 2))
    table = home.table()
    home.bench.catalog.create_table(f"{home.writer}.inside", table.schema(), location=f"{table.location()}/inside")
    assert RefusalReason.OTHER_WRITERS in refused(home)


@pytest.mark.full  # every run: a file that another table needs (`test_expired_data.py`)
def test_a_file_in_the_trash_that_another_table_lacks(home: Household, tmp_path: Path) -> None:
    """An orphan removal that was killed brings it back when it is repeated."""
    home.declare()
    home.append(("Bob", 2))
    (file,) = left = home.leave((ANN, 9), ("Carl", 8))
    other = home.bench.catalog.load_table(f"{home.writer}.copies")
    with other.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
        append.append_data_file(file)
    home.throw_away(left)
    assert refused(home) == [RefusalReason.OTHER_WRITERS]
    assert ("Carl", 8) in home.raw(tmp=tmp_path)
    home.bench.catalog.drop_table(f"{home.writer}.copies")
    home.erasure().erase()
    assert home.raw(tmp=tmp_path) == [("Bob", 2)]


@pytest.mark.full  # every run: `test_erasure_plan.py`
def test_a_file_that_cannot_be_searched_and_that_another_table_needs_is_not_to_be_deleted(home: Household) -> None:
    home.declare()
    home.append((ANN, 1), ("Bob", 2))
    (file,) = home.leave(("Carl", 8))
    other = home.bench.catalog.load_table(f"{home.writer}.copies")
    with other.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
        append.append_data_file(file)
    with home.table().io.new_output(file.file_path).create(overwrite=True) as sink:
        sink.write(b"PAR1 half a file")
    (refusal,) = home.erasure().plan().refusals
    assert (refusal.reason, "Delete none" in refusal.next_step) == (RefusalReason.NOT_PROVABLE, True)


def test_a_file_that_the_table_gets_back_meanwhile_is_not_deleted(home: Household, tmp_path: Path) -> None:
    home.declare()
    home.append((ANN, 1), ("Bob", 2))
    paths = [task.file.file_path for task in home.table().scan().plan_files()]

    def take(point: CrashPoint) -> None:
        if point is CrashPoint.RECORDED:
            home.table().add_files(paths, check_duplicate_files=False)

    with pytest.raises(LakehouseError, match="refers to a file with such rows again"):
        home.erasure(reached=take).erase()
    assert (ANN, 1) in home.rows()


@pytest.mark.full  # every run: a reader that passes the cut itself (`test_expired_data.py`)
def test_a_compaction_behind_the_cut_needs_no_other_one(home: Household) -> None:
    home.declare(reads="skip")
    home.append((ANN, 1), ("Bob", 2))
    home.append(("Carl", 3))
    home.read_up_to(home.head(), files=1)
    with pytest.raises(Exception, match="has read up to"):
        home.erasure().erase()
    cut = home.head()
    home.bench.compact()
    assert home.head() != cut
    assert home.erasure().plan().seen.kept == (home.head(), cut)
    home.read_up_to(cut, files=0)
    home.erasure().erase()
    assert home.rows() == [("Bob", 2), ("Carl", 3)]


@pytest.mark.parametrize("by", first_of("snapshot", "time", "later", "table"))
def test_a_reader_that_is_to_begin_in_history_that_goes(home: Household, by: str) -> None:
    home.declare()
    first = home.append((ANN, 1), ("Bob", 2))
    home.append(("Carl", 3))
    now = datetime.now(UTC)
    starts: dict[str, Any] = {
        "snapshot": {"snapshot_id": first},
        "time": (now - timedelta(hours=1)).isoformat(),
        "later": (now + timedelta(hours=1)).isoformat(),
        "table": "table",
    }
    home.declare(reads="skip", starting=starts[by])
    if by in ("later", "table"):
        assert refused(home) == []
        return
    assert refused(home) == [RefusalReason.READER_STOPS]
    (refusal,) = home.erasure().plan().refusals
    assert f"{home.reader} (input rows) needs a state of" in refusal.sentence
    home.read_up_to(home.head(), files=1)
    assert refused(home) == []
