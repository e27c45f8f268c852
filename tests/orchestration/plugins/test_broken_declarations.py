"""The DAG that stands in for a broken declaration, and what Airflow refuses of a DAG, noticed before it is stored."""

from __future__ import annotations

from pathlib import Path

import pytest
from airflow.sdk import DAG, CronTriggerTimetable
from airflow.sdk.bases.operator import BaseOperator
from airflow.sdk.exceptions import AirflowFailException
from tests.fixtures.sample_declarations import write_continuous_stream, write_table

from sluice.declarations.load_declarations import load_declarations
from sluice_airflow.dag_builders.broken_declarations import (
    broken_declaration_dags,
    build_stream_dags,
    storable_owners,
    storing_problem,
)


def _broken(folder: Path) -> dict[str, DAG]:
    declarations = load_declarations(folder)
    return {dag.dag_id: dag for dag in broken_declaration_dags(declarations.broken, folder=folder)}


def test_page_and_task_show_file_line_and_message(folder: Path) -> None:
    file = write_continuous_stream(folder, "silver_flights")
    file.write_text(file.read_text() + "colour: green\n")
    (dag_id, dag), *others = _broken(folder).items()
    assert (dag_id, others, dag.tags) == ("broken__silver_flights.stream", [], {"broken"})
    line = len(file.read_text().splitlines())
    assert "# silver_flights.stream.yaml is broken" in str(dag.doc_md)
    assert f"{file}:{line}: " in str(dag.doc_md)
    assert "colour" in str(dag.doc_md)
    (task,) = dag.tasks
    with pytest.raises(AirflowFailException, match=f"^{file}:{line}: .*colour"):
        task.python_callable()  # type: ignore[union-attr]  # a task of the decorator has its function


def test_files_of_one_name_in_two_folders_each_have_their_dag(folder: Path) -> None:
    for domain in ("one", "two"):
        (folder / domain).mkdir()
        write_continuous_stream(folder / domain, "silver_flights")
    names = list(_broken(folder))
    assert len(names) == 2
    assert all(name.startswith("broken__silver_flights.stream__") for name in names)
    assert names == list(_broken(folder))


def test_a_file_name_that_no_dag_may_have_is_spelt_otherwise(tmp_path: Path) -> None:
    write_table(tmp_path, "bronze.flights").rename(tmp_path / "bronze flights (old).table.yaml")
    assert list(_broken(tmp_path)) == ["broken__bronze_flights__old_.table"]


def test_a_missing_folder_is_reported_too(tmp_path: Path) -> None:
    assert list(_broken(tmp_path / "absent")) == ["broken__absent"]


def _dag(**changed: object) -> DAG:
    given = {"dag_id": "a", "description": "d", "doc_md": "p", "tags": ["t"], "schedule": None} | changed
    owner = str(given.pop("owner", "o"))
    page = str(given.pop("page", "p"))
    with DAG(**given) as dag:  # type: ignore[arg-type]  # the arguments of a DAG, one of them odd
        BaseOperator(task_id="t", owner=owner, doc_md=page)
    return dag


def test_an_ordinary_dag_can_be_stored() -> None:
    assert storing_problem(_dag()) is None
    assert storing_problem(_dag(schedule=CronTriggerTimetable("0 4 * * *", timezone="UTC"))) is None


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"description": "a\0b"}, "its description holds U+0000, which the database does not store"),
        ({"doc_md": "a\ud800b"}, "its page holds U+D800, which the database does not store"),
        ({"tags": ["a\0"]}, "a tag holds U+0000, which the database does not store"),
        ({"owner": "a\0"}, "the owner of t holds U+0000, which the database does not store"),
        ({"page": "a\0"}, "the page of t holds U+0000, which the database does not store"),
        ({"owner": "x" * 2001}, "its owners have 2001 characters together; at most 2000 are allowed"),
    ],
)
def test_what_the_database_refuses_is_named(changed: dict[str, object], problem: str) -> None:
    assert storing_problem(_dag(**changed)) == problem


def test_a_stream_whose_dag_cannot_be_stored_is_shown_as_broken_beside_the_others(folder: Path) -> None:
    write_continuous_stream(folder, "first")
    write_table(folder, "gold.flights")
    write_continuous_stream(folder, "second", writes="gold.flights")

    def build(loaded: object) -> DAG:
        name = getattr(loaded, "name", "")
        return _dag(dag_id=name, description="a\0b" if name == "first" else "d")

    dags = build_stream_dags(load_declarations(folder).streams.values(), build, suffix="backfill")
    assert list(dags) == ["broken__first.stream__backfill", "second"]
    assert "its description holds U+0000" in str(dags["broken__first.stream__backfill"].doc_md)
    assert all(storing_problem(dag) is None for dag in dags.values())


def test_owners_together_fit_into_the_database() -> None:
    owners = [f"owner-{number:012}" for number in range(130)]
    shown = storable_owners(owners, otherwise="sluice")
    assert len(", ".join({*shown, "sluice"})) <= 2000
    assert shown[:90] == owners[:90]
    assert shown[-1] == "sluice"
    assert storable_owners(["a", "b", "a"], otherwise="sluice") == ["a", "b", "a"]
