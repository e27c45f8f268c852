"""Whatever one declaration holds, Airflow's database has the DAGs of all others: real DAG files, stored for real.

Every run has a broken declaration beside all DAGs of its Airflow (`test_bounded_jobs.py`), and what the database
refuses (`test_broken_declarations.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from sqlalchemy.engine import URL
from tests.fixtures.airflow import prepare_airflow
from tests.fixtures.dag_persistence import StoredDags, store_dags
from tests.fixtures.declaration_mutations import SOUND_DAGS, write_mutation, write_sound_declarations
from tests.fixtures.sample_declarations import write_continuous_stream, write_incremental_stream, write_table

from sluice.declarations.stream_declaration import PLATFORM_DAGS

pytestmark = pytest.mark.full

EXPECTED = frozenset((*SOUND_DAGS, *PLATFORM_DAGS))
MUTATIONS = 60

ODD_TEXTS = {
    "nul": '"a\\0b"',
    "escape": '"\\e[31mred"',
    "bell": '"\\a"',
    "turned": '"\\u202eevil"',
    "separated": '"\\u2028"',
    "long": f'"{"x" * 2500}"',
    "very_long": f'"{"x" * 200_000}"',
}
CRONS = {"never": "0 0 30 2 *", "unknown": "* * * * 9", "hashed": "H H * * *", "wordy": ",".join(map(str, range(60)))}


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory, postgres_url: URL) -> Mapping[str, str]:
    """The settings of an Airflow with a database of its own, of which nothing runs."""
    folder = tmp_path_factory.mktemp("dag-storage")
    return prepare_airflow(folder, postgres_url, pipelines=folder).environment


@pytest.fixture(scope="module")
def stored(environment: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, StoredDags]:
    """What was stored for each folder of odd declarations. One process stores all: to import Airflow takes seconds."""
    folders = {name: tmp_path_factory.mktemp(name) for name in WRITERS}
    for name, folder in folders.items():
        write_sound_declarations(folder)
        WRITERS[name](folder)
    return dict(zip(folders, store_dags(list(folders.values()), environment=environment), strict=True))


def _odd_texts_of_streams(folder: Path) -> None:
    for key, value in (("description", "what {} does"), ("owner", "stream-owner"), ("tags", "[sample]")):
        for name, text in ODD_TEXTS.items():
            stream = f"{key}_{name}"
            file = write_continuous_stream(folder, stream)
            written = f"[{text}]" if key == "tags" else text
            file.write_text(file.read_text().replace(f"{key}: {value.format(stream)}", f"{key}: {written}"))


def _odd_texts_of_tables(folder: Path) -> None:
    for key in ("description", "owner", "tags"):
        for name, text in ODD_TEXTS.items():
            file = write_table(folder, f"odd.{key}_{name}")
            value = f"[{text}]" if key == "tags" else text
            lines = [line for line in file.read_text().splitlines() if not line.startswith(f"{key}:")]
            file.write_text("\n".join([*lines, f"{key}: {value}"]) + "\n")
    write_table(folder, "choose_tables.flights")


def _many_owners(folder: Path) -> None:
    quality = "quality: {expectations: [{type: expect_column_values_to_not_be_null, kwargs: {column: id}}]}\n"
    for number in range(130):
        file = write_table(folder, f"odd.t{number}", more=quality)
        file.write_text(file.read_text().replace("table-owner", f"owner-{number:012}"))


def _odd_schedules(folder: Path) -> None:
    for name, cron in CRONS.items():
        write_incremental_stream(folder, name, schedule=f"{{cron: '{cron}'}}")


def _odd_file_names(folder: Path) -> None:
    for name in ("x" * 240, "a\nb", "a\x1b[31mb", "a b", "ü", "a\udcffb", "a__b"):
        (folder / f"{name}.stream.yaml").write_text("stream: [unclosed\n")
    file = write_continuous_stream(folder, "imitator")
    file.write_text(file.read_text().replace("stream: imitator", "stream: sound_continuous"))


def _mutations(folder: Path) -> None:
    for number in range(MUTATIONS):
        write_mutation(folder, number)


WRITERS = {
    "texts_of_streams": _odd_texts_of_streams,
    "texts_of_tables": _odd_texts_of_tables,
    "owners": _many_owners,
    "schedules": _odd_schedules,
    "file_names": _odd_file_names,
    "mutations": _mutations,
}


@pytest.mark.parametrize("name", WRITERS)
def test_all_other_dags_stay(stored: dict[str, StoredDags], name: str) -> None:
    assert stored[name].problems == {}
    assert EXPECTED - stored[name].active == frozenset()


def test_an_odd_declaration_is_a_dag_that_says_why(stored: dict[str, StoredDags]) -> None:
    broken = {dag for dag in stored["texts_of_streams"].active if dag.startswith("broken__")}
    kept = {"broken__description_long.stream"}  # 2,500 characters are a long description and no mistake
    named = {f"broken__{key}_{name}.stream" for key in ("description", "owner", "tags") for name in ODD_TEXTS}
    assert broken == named - kept
    assert {dag for dag in stored["schedules"].active if dag.startswith("broken__")} == {
        f"broken__{name}.stream" for name in CRONS
    }
    assert len([dag for dag in stored["file_names"].active if dag.startswith("broken__")]) == 8


def test_every_mutated_stream_has_a_dag(stored: dict[str, StoredDags], tmp_path: Path) -> None:
    active = stored["mutations"].active
    names = {write_mutation(tmp_path, number).name for number in range(MUTATIONS)}
    streams = {name.removesuffix(".stream.yaml") for name in names if name.endswith(".stream.yaml")}
    assert {name for name in streams if not {name, f"broken__{name}.stream"} & active} == set()
