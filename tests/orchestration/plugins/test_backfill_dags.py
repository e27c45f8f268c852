"""The DAG of a stream's backfills, and its timetable."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pendulum
import pytest
from airflow.sdk import DAG, Context
from airflow.sdk.api.datamodels._generated import DagRunType
from airflow.sdk.exceptions import AirflowFailException
from airflow.timetables.base import TimeRestriction
from tests.fixtures.sample_declarations import write_continuous_stream, write_table

from sluice.declarations.load_declarations import load_declarations
from sluice_airflow.dag_builders.backfills import BackfillOperator, GapOperator, backfill_dag, backfill_gaps_dag
from sluice_airflow.dag_builders.streams import continuous_stream_dag
from sluice_airflow.timetables.backfill_timetable import BackfillTimetable

BACKFILL = "backfill: {column: at, interval: day, at_once: 3}\n"


def _dag(folder: Path, more: str = BACKFILL) -> DAG:
    write_table(folder, "silver.flights")
    write_continuous_stream(folder, "daily_flights", more=more)
    return backfill_dag(load_declarations(folder).stream("daily_flights"))


def _starts(length: str, first: str, last: str) -> list[str]:
    timetable = BackfillTimetable.deserialize(BackfillTimetable(length).serialize())
    restriction = TimeRestriction(pendulum.parse(first), pendulum.parse(last), catchup=True)  # type: ignore[arg-type]
    info = timetable.next_dagrun_info(last_automated_data_interval=None, restriction=restriction)
    starts: list[str] = []
    while info is not None and len(starts) < 100:
        assert info.data_interval is not None
        starts.append(info.data_interval.start.isoformat())
        info = timetable.next_dagrun_info(last_automated_data_interval=info.data_interval, restriction=restriction)
    return starts


def test_one_task_asks_for_the_interval_of_its_run(folder: Path) -> None:
    dag = _dag(folder)
    (task,) = dag.tasks
    assert (dag.dag_id, dag.max_active_runs, dag.is_paused_upon_creation) == ("daily_flights__backfill", 3, False)
    assert task.max_active_tis_per_dag is None, "the runs of a backfill wait for one application together"
    assert isinstance(task, BackfillOperator)
    allowed = "dag_run is defined and (dag_run.conf or {{}}).get('{}') is sameas true"
    assert task.fields == {
        **{name: f"{{{{ 'yes' if {allowed.format(name)} else 'no' }}}}" for name in ("allow_fewer", "allow_repeated")},
        "agreed": "{{ (dag_run.conf or {}).get('agreed', '') if dag_run is defined else '' }}",
        "stream": "daily_flights",
        "start": "{{ data_interval_start.isoformat() if data_interval_start is defined else '' }}",
        "end": "{{ data_interval_end.isoformat() if data_interval_end is defined else '' }}",
    }


def test_a_run_that_is_triggered_by_hand_fails_for_good_with_the_way_to_backfill(folder: Path) -> None:
    """Such a run has no interval. The UI offers the form for backfills only where runs can be triggered."""
    dag = _dag(folder)
    (task,) = dag.tasks
    assert isinstance(task, BackfillOperator)
    assert DagRunType.MANUAL in (dag.allowed_run_types or ())
    run = SimpleNamespace(dag_id=dag.dag_id, run_id="manual__1", run_type="manual")

    task.render_template_fields(Context(dag=dag, run_id="manual__1"))

    assert task.fields["start"] == ""
    with pytest.raises(AirflowFailException, match=r"manual__1 is not a backfill run: .* choose Backfill"):
        task.execute(Context(dag_run=run))


@pytest.mark.parametrize(("length", "runs"), [("hour", 49), ("day", 3), ("month", 0)])
def test_a_backfill_has_every_interval_that_starts_within_it(length: str, runs: int) -> None:
    assert len(_starts(length, "2013-01-05T00:00:00Z", "2013-01-07T00:00:00Z")) == runs


def test_months_start_at_the_first() -> None:
    starts = _starts("month", "2013-01-01T00:00:00Z", "2013-03-31T00:00:00Z")
    assert [start[:10] for start in starts] == ["2013-01-01", "2013-02-01", "2013-03-01"]


def test_the_scheduler_gets_no_run() -> None:
    restriction = TimeRestriction(earliest=None, latest=None, catchup=False)

    assert BackfillTimetable("day").next_dagrun_info(last_automated_data_interval=None, restriction=restriction) is None


def test_gaps_are_searched_for_each_stream_that_declares_a_backfill(folder: Path) -> None:
    write_continuous_stream(folder, "another", writes="silver.others")
    write_table(folder, "silver.others")
    _dag(folder)

    dag = backfill_gaps_dag(load_declarations(folder))

    (task,) = dag.tasks
    assert isinstance(task, GapOperator)
    assert (task.task_id, dag.max_active_runs, dag.params["days"]) == ("daily_flights", 1, 8)
    assert task.fields == {
        "stream": "daily_flights",
        "start": "{{ (dag_run.run_after - macros.timedelta(days=params.days)).isoformat() }}",
        "end": "",
        "fails": "yes",
    }


def test_the_page_of_the_stream_names_it(folder: Path) -> None:
    _dag(folder)
    dag = continuous_stream_dag(load_declarations(folder).stream("daily_flights"))
    assert dag.doc_md is not None
    assert "daily_flights__backfill" in dag.doc_md
