"""The DAG that stands in for a broken declaration."""

from __future__ import annotations

from pathlib import Path

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException
from tests.fixtures.sample_declarations import write_continuous_stream, write_table

from sluice.declarations.load_declarations import load_declarations
from sluice_airflow.dag_builders.broken_declarations import broken_declaration_dags


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
