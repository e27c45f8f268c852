"""A real ledger that is tidied: what is old goes, what a stream needs stays, and the sums stay true."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy import ColumnElement, select, text, update
from sqlalchemy.dialects import postgresql
from tests.fixtures.ledger_rows import find_lease

from sluice import ledger as ledger_package
from sluice.errors import LedgerError
from sluice.ledger import retention
from sluice.ledger.batches import (
    Batch,
    BatchObservation,
    PublicationKey,
    recent_batches,
    record_batch,
    rejections_of,
    totals,
)
from sluice.ledger.connection import Ledger
from sluice.ledger.ledger_table import LedgerTable
from sluice.ledger.progress_samples import LagObservation, record_progress_sample
from sluice.ledger.recorded_checks import (
    CheckpointObservation,
    recent_checkpoint_checks,
    record_checkpoint_check,
)
from sluice.ledger.retention import Retention, RetentionResult, apply_retention
from sluice.ledger.run_leases import Run
from sluice.ledger.run_values import RunState
from sluice.ledger.runs import admit_run, recent_runs, record_end
from sluice.ledger.stream_records import read_streams
from sluice.ledger.work_items import ask, find_items, withdraw_items
from sluice.ledger.work_values import NewItem, Pool, WorkKind

KEPT = Retention(batches=timedelta(days=30), runs=timedelta(days=90), events=timedelta(days=365))


def record(ledger: Ledger, number: int, *, generation: int = 1, days_ago: int = 0, stream: str = "flights") -> None:
    """A batch that was recorded so many days ago."""
    batch = BatchObservation(
        key=PublicationKey(stream=stream, generation=generation, batch=number),
        run_id="run-1",
        started_at=datetime.now(UTC),
        duration_ms=1,
        input_rows=10,
        published_rows={"main": 7, "other": number},
        refused_rows=2,
        late_rows=1,
        end_offsets={"records": {"flights": {"0": number}}},
    )
    record_batch(ledger, batch)
    with ledger.transaction() as connection:
        connection.execute(
            text(
                "UPDATE sluice.batches SET recorded_at = now() - :age WHERE (stream, generation, batch) = (:s, :g, :b)"
            ),
            {"age": timedelta(days=days_ago), "s": stream, "g": generation, "b": number},
        )


def keys(ledger: Ledger) -> list[str]:
    """The batches that are kept."""
    return [str(batch.key) for batch in recent_batches(ledger, "flights", limit=100)]


@pytest.fixture
def old_batches(ledger: Ledger) -> None:
    """Two generations, the first one long over."""
    for number in range(3):
        record(ledger, number, days_ago=100 - number)
    record(ledger, 0, generation=2, days_ago=40)
    record(ledger, 1, generation=2, days_ago=29)
    record(ledger, 2, generation=2)


def test_old_batches_are_forgotten_but_for_the_newest_of_every_generation(ledger: Ledger, old_batches: None) -> None:
    assert apply_retention(ledger, KEPT, dry_run=True) == RetentionResult(batches=3, runs=0)
    assert len(keys(ledger)) == 6
    assert apply_retention(ledger, KEPT) == RetentionResult(batches=3, runs=0)
    assert keys(ledger) == ["flights:2:2", "flights:2:1", "flights:1:2"]
    assert apply_retention(ledger, KEPT) == RetentionResult(batches=0, runs=0)


def test_what_a_person_rejected_is_never_forgotten(ledger: Ledger, old_batches: None) -> None:
    with ledger.transaction() as connection:
        rejected = (Batch.generation == 1, Batch.batch == 1)
        connection.execute(update(Batch).where(*rejected).values(is_rejected=True))

    assert apply_retention(ledger, KEPT) == RetentionResult(batches=2, runs=0)

    assert [str(batch.key) for batch in rejections_of(ledger, "flights")] == ["flights:1:1"]


def test_the_sums_stay_true_however_often_it_is_tidied(
    ledger: Ledger, old_batches: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "_AT_ONCE", 2)  # several transactions
    record(ledger, 0, stream="others", days_ago=99)
    before = totals(ledger, "flights")
    newest = recent_batches(ledger, "flights", limit=1)[0]
    read_before = record_progress_sample(
        ledger, "flights", LagObservation(rows=0), generation=2, newest_batch=newest, samples=()
    ).read_rows
    for days in (60, 30, 1):
        apply_retention(ledger, Retention(batches=timedelta(days=days), runs=KEPT.runs, events=KEPT.events))
        assert totals(ledger, "flights") == before
    assert keys(ledger) == ["flights:2:2", "flights:1:2"]
    read_after = record_progress_sample(
        ledger,
        "flights",
        LagObservation(rows=0),
        generation=2,
        newest_batch=newest,
        samples=read_streams(ledger, ["flights"], with_progress=True)["flights"].samples,
    ).read_rows
    assert (read_before, read_after) == (30, 30)
    assert (before.batches, before.input_rows, before.published_rows) == (6, 60, {"main": 42, "other": 6})


def test_two_that_tidy_at_once_add_nothing_twice(ledger: Ledger, old_batches: None) -> None:
    before = totals(ledger, "flights")
    with ThreadPoolExecutor(max_workers=2) as pool:
        tidied = list(pool.map(lambda _: apply_retention(ledger, KEPT), range(2)))
    assert sum(one.batches for one in tidied) == 3
    assert totals(ledger, "flights") == before


def test_old_runs_are_archived_whole_but_for_the_newest_and_the_live_ones(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "RUNS_KEPT_OF_A_STREAM", 2)
    monkeypatch.setattr(retention, "_AT_ONCE", 3)  # several transactions
    for number in range(5):
        run = admit_run(ledger, stream="flights", mode="continuous", declaration_digest="d", launched_by="a test")
        record_end(ledger, run.run_id, state=RunState.FAILED, exit_code=1, reason=f"reason {number}")
    live = admit_run(ledger, stream="flights", mode="continuous", declaration_digest="d", launched_by="a test")
    with ledger.transaction() as connection:
        connection.execute(text("UPDATE sluice.runs SET ended_at = ended_at - interval '100 days'"))
    assert apply_retention(ledger, KEPT, dry_run=True) == RetentionResult(batches=0, runs=4)
    assert apply_retention(ledger, KEPT) == RetentionResult(batches=0, runs=4)
    kept = recent_runs(ledger, "flights", limit=9)
    assert [run.reason for run in kept] == [None, "reason 4"]
    assert kept[0] == live
    with ledger.transaction() as connection:
        archived = connection.execute(text("SELECT run FROM sluice.archived_runs ORDER BY ended_at")).scalars().all()
    assert [run["reason"] for run in archived] == [f"reason {number}" for number in range(4)]
    lease = find_lease(ledger, "flights")
    assert lease is not None
    assert (lease.token, lease.run_id) == (live.token, live.run_id)
    assert apply_retention(ledger, KEPT) == RetentionResult(batches=0, runs=0)


def test_work_that_ended_long_ago_is_removed(ledger: Ledger) -> None:
    pool = Pool(name="spark_default-0", digest="d")
    asked = NewItem(kind=WorkKind.CHECK_TABLE, subject="t", payload={"table": "t"}, asked_by="a test", pool=pool)
    withdraw_items(ledger, ask(ledger, asked))
    assert apply_retention(ledger, KEPT).work_items == 0

    with ledger.transaction() as connection:
        connection.execute(text("UPDATE sluice.work_items SET ended_at = now() - interval '31 days'"))

    assert apply_retention(ledger, KEPT, dry_run=True).work_items == 1
    assert apply_retention(ledger, KEPT).work_items == 1
    assert find_items(ledger, limit=9) == ()


def test_every_table_has_a_retention_or_a_reason_to_have_none() -> None:
    for module in pkgutil.iter_modules(ledger_package.__path__):
        if module.name != "migrations":
            importlib.import_module(f"{ledger_package.__name__}.{module.name}")
    tables = {table.name for table in LedgerTable.metadata.tables.values()}
    assert set(retention.RETAINED) | set(retention.KEPT) == tables
    assert not set(retention.RETAINED) & set(retention.KEPT)


def many_runs(ledger: Ledger, count: int, *, days_ago: int) -> None:
    """So many ended runs of one stream."""
    admit_run(ledger, stream="flights", mode="incremental", declaration_digest="d", launched_by="a test")
    with ledger.transaction() as connection:
        connection.execute(text("UPDATE sluice.runs SET state = 'finished', ended_at = launched_at"))
        columns = "stream, token, generation, mode, state, desired_state, launched_by, declaration_digest"
        connection.execute(
            text(
                f"INSERT INTO sluice.runs (run_id, launched_at, ended_at, {columns}) "  # noqa: S608  # our own names
                f"SELECT 'run-' || n, now() - :age, now() - :age, {columns} "
                "FROM sluice.runs, generate_series(1, :count) AS n WHERE run_id NOT LIKE 'run-%'"
            ),
            {"age": timedelta(days=days_ago), "count": count},
        )


def test_the_newest_runs_of_a_stream_stay_and_what_archiving_costs_grows_with_what_goes(ledger: Ledger) -> None:
    """Each old run counted all later ones, so the removal for a stream that runs each minute timed out every time."""
    many_runs(ledger, 3_000, days_ago=100)
    with ledger.transaction() as connection:
        connection.execute(text("ANALYZE sluice.runs"))
        plan = connection.execute(text("EXPLAIN (ANALYZE, FORMAT JSON) " + _sql_of(retention._has_ended(KEPT.runs))))
        scanned = sum(_rows_read(node) for node in _nodes(plan.scalar_one()[0]["Plan"]))
    assert scanned < 20 * 3_000
    assert apply_retention(ledger, KEPT).runs == 3_000 - retention.RUNS_KEPT_OF_A_STREAM
    assert len(recent_runs(ledger, "flights", limit=9_999)) == retention.RUNS_KEPT_OF_A_STREAM + 1, "one is not old"


def _sql_of(is_old: ColumnElement[bool]) -> str:
    query = select(Run.run_id).where(is_old)
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]  # SQLAlchemy does not annotate it
    return str(query.compile(dialect=dialect, compile_kwargs={"literal_binds": True}))


def _nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node.get("Plans", ()):
        yield from _nodes(child)


def _rows_read(node: dict[str, Any]) -> int:
    return int(node["Actual Loops"] * (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)))


def test_what_one_part_raises_keeps_no_other_one_from_being_done(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(ledger, 1, days_ago=40)
    record(ledger, 2)

    def busy(*_: object) -> int:
        with ledger.transaction() as connection:
            connection.execute(text("SET LOCAL statement_timeout = '10ms'"))
            connection.execute(text("SELECT pg_sleep(5)"))
        return 0

    monkeypatch.setattr(retention, "_archive_runs", busy)
    monkeypatch.setattr(retention, "_remove_batches", partial(_then, [], retention._remove_batches))
    removed: list[str] = []
    monkeypatch.setattr(retention, "_remove_events", partial(_then, removed, retention._remove_events))
    with pytest.raises(LedgerError, match=r"The retention of 1 of 5 parts .* runs: .* answers, and broke a statement"):
        apply_retention(ledger, KEPT)
    assert keys(ledger) == ["flights:1:2"]
    assert removed == ["done"], "what comes after it is done, too"


def _then(done: list[str], remove: Callable[..., int], *arguments: Any) -> int:
    count = remove(*arguments)
    done.append("done")
    return count


def test_old_checks_go_and_the_newest_of_each_stays(ledger: Ledger) -> None:
    for number in range(3):
        check = CheckpointObservation(
            stream="flights",
            generation=1,
            location="file:///c",
            checked_at=datetime.now(UTC),
            findings=(),
            newest_batch=number,
            newest_commit_age_seconds=None,
        )
        record_checkpoint_check(ledger, check)
    with ledger.transaction() as connection:
        connection.execute(text("UPDATE sluice.checkpoint_checks SET recorded_at = now() - interval '31 days'"))
    assert apply_retention(ledger, KEPT, dry_run=True).records == 2
    assert apply_retention(ledger, KEPT).records == 2
    assert [check.newest_batch for check in recent_checkpoint_checks(ledger, "flights", limit=9)] == [2]
