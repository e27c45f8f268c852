"""Rejected records become rows once, through the corrected code, and the live stream does not notice."""

from __future__ import annotations

from textwrap import dedent
from typing import Any

import pytest
from tests.fixtures.backfills import (
    TRANSFORM,
    at_step,
    backfill,
    declare_read_stream,
    ids_by_duckdb,
    marks,
    staging_tables,
)
from tests.fixtures.drill import sampled
from tests.fixtures.replays import (
    COLUMNS,
    REPLAYED,
    declare,
    deploy,
    divide,
    name_in,
    resolutions,
    run_of,
    typed,
)
from tests.fixtures.stack import Stack
from tests.fixtures.work import applications_of, ask_for, await_killed, queue_of, serve, start, waited_for
from tests.fixtures.workshop import Workshop

from sluice.backfill.replayable_rows import Selection
from sluice.cli.cli_context import CliContext
from sluice.errors import LedgerError, UnpublishableError, UsageError, VerificationError
from sluice.ledger.events import EventAction, EventSubject, recent_events
from sluice.publication.crash_points import CrashPoint
from sluice.work.requests import ReplayRecords

FULL = pytest.mark.full
TOGETHER = (CrashPoint.COMPUTED, CrashPoint.CHECKED)
STEPS = (
    CrashPoint.PLANNED,
    CrashPoint.COMPUTED,
    CrashPoint.STAGED,
    CrashPoint.QUARANTINED,
    CrashPoint.CHECKED,
    CrashPoint.PUBLISHED,
    CrashPoint.RECORDED,
)


@pytest.fixture
def dividing(workshop: Workshop) -> Workshop:
    """A stream that has rejected rows of ids below 10, and whose code is right now."""
    return divide(workshop)


def test_a_fixed_transformation_replays_everything_once_and_a_repetition_changes_nothing(dividing: Workshop) -> None:
    before = marks(dividing, "target")
    tried = run_of(dividing, only_tries=True).work()
    assert (tried.open, tried.by_source, tried.rows, tried.rejected) == (4, 4, 3, {"by the transformation": 1})
    assert ids_by_duckdb(dividing) == [11, 12, 13]

    done = run_of(dividing, planned=tried.digest).work()

    assert ids_by_duckdb(dividing) == [1, 2, 3, 11, 12, 13]
    assert (done.rows, done.marked, done.left) == (3, 3, {})
    assert resolutions(dividing) == REPLAYED
    assert marks(dividing, "target") == before
    head = dividing.table("target").metadata.current_snapshot_id
    assert head == done.snapshot_id

    again = run_of(dividing).work()

    assert (again.open, again.rows, again.snapshot_id) == (1, 0, None)
    assert ids_by_duckdb(dividing) == [1, 2, 3, 11, 12, 13]
    assert resolutions(dividing) == REPLAYED
    dividing.append("source", [{"id": 14, "word": "new"}, {"id": -8, "word": "new"}])
    dividing.run_supervised(name_in(dividing))
    assert ids_by_duckdb(dividing) == [1, 2, 3, 11, 12, 13, 14]
    assert staging_tables(dividing, name_in(dividing)) == []
    events = recent_events(dividing.ledger, EventSubject.STREAM, name_in(dividing), limit=50)
    assert [one.action for one in events].count(EventAction.REPLAY) == 1


@pytest.mark.parametrize("step", sampled(STEPS, (), full=STEPS))
def test_a_replay_that_dies_at_a_step_is_completed_by_the_next_one(dividing: Workshop, step: CrashPoint) -> None:
    def die() -> None:
        raise OSError("it dies here")

    with pytest.raises(OSError, match="dies here"):
        run_of(dividing, reached=at_step(step, die)).work()

    run_of(dividing).work()

    assert ids_by_duckdb(dividing) == [1, 2, 3, 11, 12, 13]
    assert resolutions(dividing) == REPLAYED


@pytest.mark.parametrize("step", sampled(STEPS, (), full=(CrashPoint.QUARANTINED, CrashPoint.PUBLISHED)))
def test_when_an_application_is_killed_at_a_step_the_next_completes_its_replay(
    dividing: Workshop, services: Stack, step: CrashPoint
) -> None:
    request = ReplayRecords(stream=name_in(dividing))
    item = ask_for(dividing, request)
    with waited_for(dividing, [item]), applications_of(dividing, services.environment(), dies_at=(step, 1)) as launcher:
        await_killed(dividing, start(dividing, item, request, launcher))
    is_visible = step in (CrashPoint.PUBLISHED, CrashPoint.RECORDED)
    assert ids_by_duckdb(dividing) == ([1, 2, 3] if is_visible else []) + [11, 12, 13]

    serve(dividing, [item])

    assert ids_by_duckdb(dividing) == [1, 2, 3, 11, 12, 13]
    assert resolutions(dividing) == REPLAYED


@pytest.mark.full
@pytest.mark.parametrize("step", sampled(TOGETHER, [CrashPoint.CHECKED], full=TOGETHER))
def test_of_two_replays_at_the_same_time_the_second_is_refused(dividing: Workshop, step: CrashPoint) -> None:
    def overtake() -> None:
        with pytest.raises(LedgerError, match=f"Another replay of rejected records of {name_in(dividing)}"):
            run_of(dividing).work()
        assert run_of(dividing, only_tries=True).work().rows == 3

    done = run_of(dividing, reached=at_step(step, overtake)).work()

    assert done.rows == 3
    assert ids_by_duckdb(dividing) == [1, 2, 3, 11, 12, 13]
    assert resolutions(dividing) == REPLAYED


@FULL
def test_the_next_start_notices_a_rollback_below_a_marked_replay(dividing: Workshop) -> None:
    before = dividing.table("target").metadata.current_snapshot_id
    run_of(dividing).work()
    assert before is not None
    dividing.table("target").manage_snapshots().set_current_snapshot(before).commit()

    dividing.run_supervised(name_in(dividing))

    assert set(resolutions(dividing).values()) == {None}
    assert run_of(dividing).work().rows == 3
    assert ids_by_duckdb(dividing) == [1, 2, 3, 11, 12, 13]


@FULL
def test_only_what_was_agreed_to_is_replayed_and_only_what_was_chosen(dividing: Workshop) -> None:
    with pytest.raises(UsageError, match="out of date"):
        run_of(dividing, planned="of other records").work()

    chosen = Selection(positions=frozenset({'{"id":2}'}))
    assert run_of(dividing, selection=chosen).work().rows == 1

    assert ids_by_duckdb(dividing) == [2, 11, 12, 13]


@FULL
def test_a_record_that_its_source_holds_twice_or_not_any_more_stays_open(dividing: Workshop) -> None:
    dividing.append("source", [{"id": 2, "word": "corrected by the sender"}])
    dividing.table("source").delete("id = 3")

    done = run_of(dividing).work()

    source = dividing.table_name("source")
    assert done.left == {
        f"{source} holds other rows too at its position": 1,
        f"{source} holds no row at its position": 1,
    }
    assert ids_by_duckdb(dividing) == [1, 11, 12, 13]


@pytest.mark.parametrize(
    ("position", "more", "why"),
    [
        pytest.param('fn.lower("word").alias("place")', "", "rejected again under another position", marks=FULL),
        pytest.param('"id"', '.union(rows.where("id > 1"))', "Union makes rows of several records", marks=FULL),
        pytest.param('"id"', '.dropDuplicates(["id"])', "Deduplicate makes rows of several records", marks=FULL),
    ],
)
def test_what_cannot_be_exact_is_refused_with_another_way(
    dividing: Workshop, position: str, more: str, why: str
) -> None:
    declare(dividing, limit=0, position=position, more=more)
    head = dividing.table("target").metadata.current_snapshot_id

    with pytest.raises(UnpublishableError, match=why) as refused:
        run_of(dividing, only_tries=True).work()

    assert refused.value.next_step
    assert dividing.table("target").metadata.current_snapshot_id == head


@FULL
def test_a_record_that_gives_a_row_and_is_rejected_is_refused_also_where_the_numbers_add_up(dividing: Workshop) -> None:
    declare(dividing, limit="0 or id = -7", more='.where("id <> 1")')

    with pytest.raises(UnpublishableError, match="give rows and are rejected, both at once"):
        run_of(dividing).work()

    assert ids_by_duckdb(dividing) == [11, 12, 13]
    assert set(resolutions(dividing).values()) == {None}


@FULL
def test_a_rule_of_today_refuses_by_its_name_and_its_rows_stay_open(dividing: Workshop) -> None:
    rule = {"name": "no_twos", "expression": "id % 10 <> 2"}
    dividing.declare_table("target", COLUMNS, rules=[rule])
    dividing.append("source", [{"id": 22, "word": "two"}])
    dividing.run_supervised(name_in(dividing))

    of_rule = run_of(dividing, selection=Selection(kinds=frozenset({"rule"}))).work()
    assert (of_rule.open, of_rule.rows) == (1, 0)
    assert of_rule.left == {"its position does not say where its record stood": 1}
    with pytest.raises(UnpublishableError, match=r"1 records .* without a position of their own \(.*no_twos"):
        run_of(dividing).work()
    dividing.declare_table("target", COLUMNS, rules=[rule | {"on_failure": "hold"}])
    with pytest.raises(VerificationError, match="break no_twos by 1 of 3 rows"):
        run_of(dividing).work()

    assert run_of(dividing, selection=Selection(positions=frozenset({'{"id":1}', '{"id":3}'}))).work().rows == 2
    assert ids_by_duckdb(dividing) == [1, 3, 11, 12, 13]
    assert resolutions(dividing) == REPLAYED | {'{"id":2}': None, "None": None}


@FULL
def test_what_a_backfill_has_published_and_did_not_mark_is_not_replayed(workshop: Workshop) -> None:
    stream = declare_read_stream(workshop)
    (workshop.folder / f"{stream}.py").write_text(dedent(TRANSFORM.replace("'bad'", "'worse'")))

    def die() -> None:
        raise OSError("it dies here")

    with pytest.raises(OSError, match="dies here"):
        backfill(workshop, stream, start="2013-01-02", end="2013-01-03", reached=at_step(CrashPoint.PUBLISHED, die))
    assert ids_by_duckdb(workshop).count(901) == 1
    assert set(resolutions(workshop).values()) == {None}

    done = run_of(workshop).work()

    assert (done.open, done.rows, sum(done.left.values())) == (2, 0, 2)
    assert ids_by_duckdb(workshop).count(901) == 1


@pytest.fixture
def deployed(dividing: Workshop, services: Stack, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    """The stream as `sluice` finds it that is typed here."""
    deploy(dividing, services, monkeypatch)
    return dividing


@FULL
def test_a_person_discards_what_was_shown_and_no_replay_under_way_publishes_it(
    deployed: Workshop, capsys: pytest.CaptureFixture[str]
) -> None:
    stream, ids = name_in(deployed), ("--position", '{"id":2}')
    code, shown = typed(capsys, "show", stream)
    assert (code, shown["open"], shown["kinds"]["by the transformation"]["open"]) == (0, 4, 4)
    code, tried = typed(capsys, "discard", stream, *ids, "--dry-run")
    assert (code, tried["dry_run"], tried["plans"][0]["rows"]) == (0, True, 1)
    assert set(resolutions(deployed).values()) == {None}
    answers: list[tuple[int, Any]] = []

    def discard() -> None:
        answers.append(typed(capsys, "discard", stream, *ids, "--yes"))

    done = run_of(deployed, reached=at_step(CrashPoint.QUARANTINED, discard)).work()

    assert [(code, said["result"]["marked"]) for code, said in answers] == [(0, 1)]
    assert done.rows == 2
    assert ids_by_duckdb(deployed) == [1, 3, 11, 12, 13]
    assert resolutions(deployed) == REPLAYED | {'{"id":2}': "discarded"}


@pytest.mark.full  # every run: the same replay without the application
def test_a_person_replays_what_was_shown_through_an_application(
    deployed: Workshop, services: Stack, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with applications_of(deployed, services.environment()) as launcher:
        monkeypatch.setattr(CliContext, "work_queue", lambda _: queue_of(deployed, launcher=launcher))
        code, tried = typed(capsys, "replay", name_in(deployed), "--dry-run")
        assert (code, tried["plans"][0]["rows"]) == (0, 3)
        assert ids_by_duckdb(deployed) == [11, 12, 13]

        code, done = typed(capsys, "replay", name_in(deployed), "--yes")

    assert (code, done["result"]["rows"], done["result"]["marked"]) == (0, 3, 3)
    assert ids_by_duckdb(deployed) == [1, 2, 3, 11, 12, 13]
    assert resolutions(deployed) == REPLAYED
