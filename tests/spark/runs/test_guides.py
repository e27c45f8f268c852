"""The guides for a project of one's own can be followed: their files and commands, in a folder outside the checkout."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from tests.fixtures.readme import PROJECT, named_blocks
from tests.fixtures.stack import Stack

from sluice.processes.deadline import wait_until
from sluice.settings import Settings
from sluice.tables.catalog import open_catalog
from sluice_spark.testing import StreamBench

_RUN = re.compile(r"^<!-- tests/spark/runs/test_guides.py runs this -->\n```bash\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_ROWS_SECONDS = 240.0
"""How long a driver may take to its first rows on a busy machine."""


def guide(name: str) -> str:
    """The text of a guide."""
    return (PROJECT / "docs" / "guides" / f"{name}.md").read_text(encoding="utf-8")


def write_files(name: str, *, into: Path) -> None:
    """Write the files that a guide shows."""
    for file, text in named_blocks(guide(name)):
        (into / file).parent.mkdir(parents=True, exist_ok=True)
        (into / file).write_text(text)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project of the guide."""
    folder = tmp_path_factory.mktemp("earthquakes")
    write_files("your-project", into=folder)
    return folder


@pytest.fixture(scope="module")
def sluice_pipelines(project: Path) -> Path:
    """The declarations of the project, for the test bench."""
    return project / "pipelines"


@pytest.fixture(scope="module")
def catalog(settings: Settings) -> Catalog:
    """The catalog of the ring."""
    return open_catalog(settings)


@pytest.fixture(scope="module")
def run(services: Stack, project: Path) -> Callable[[str], str]:
    """Runs commands in the project, as a person does who has the checkout's programs on the path."""
    inherited = {name: value for name, value in services.shell().items() if not name.startswith("PYSPARK_")}
    shell = {**inherited, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

    def run(commands: str) -> str:
        argv = ["/bin/bash", "-euo", "pipefail", "-c", commands]
        ended = subprocess.run(argv, cwd=project, env=shell, capture_output=True, text=True)  # noqa: S603  # our own
        assert ended.returncode == 0, f"{commands}\n{ended.stdout}\n{ended.stderr}"
        return ended.stdout

    return run


@pytest.fixture(scope="module")
def follow(run: Callable[[str], str], project: Path) -> Callable[[str], list[str]]:
    """Writes the files of a guide and runs its commands; what each printed."""

    def follow(name: str) -> list[str]:
        write_files(name, into=project)
        return [run(commands) for commands in _RUN.findall(guide(name))]

    return follow


@pytest.fixture(scope="module")
def rows(run: Callable[[str], str], follow: Callable[[str], list[str]], catalog: Catalog) -> int:
    """How many rows the table has after the first two guides."""
    (validated,) = follow("your-project")
    assert validated == "2 streams and 2 tables are valid in pipelines.\n"
    try:
        *_, uploaded = follow("local-data")
        assert uploaded == "s3a://landing/stations/stations.csv\n"
        reported = catalog.load_table("bronze.quakes")
        return wait_until(lambda: reported.refresh().scan().to_arrow().num_rows, bool, seconds=_ROWS_SECONDS)
    finally:
        run("sluice stream stop bronze_quakes")


@pytest.mark.full  # each of its programs is one of a library; `sluice sql` is in the next guide, too
def test_the_guide_to_queries_can_be_followed(rows: int, follow: Callable[[str], list[str]]) -> None:
    strongest, reader, counted = follow("query")

    assert [line.split() for line in strongest.splitlines()] == [
        ["place", "strongest"],
        ["Adak", "5.75"],
        ["Cobb", "2.25"],
        ["Parkfield", "4.5"],
    ]
    assert '"s3.secret-access-key": "********"' in reader
    assert counted.split() == [str(rows), "2", str(rows)]


@pytest.mark.full  # every run: its files in a test bench (below), its commands in `test_operations.py`
def test_the_guides_to_a_stream_and_a_changed_table_can_be_followed(
    rows: int, follow: Callable[[str], list[str]]
) -> None:
    assert rows == 3
    _, changed = follow("change-a-table")
    assert changed.splitlines()[-1].split() == ["3", "0"]


def examples() -> Iterator[Any]:
    """The test functions of the guide."""
    code = dict(named_blocks(guide("your-project")))["tests/test_gold_strong_quakes.py"]
    defined: dict[str, Any] = {}
    exec(compile(code, "your-project.md", "exec"), defined)  # noqa: S102  # our own guide
    for name, value in defined.items():
        if name.startswith("test_"):
            yield pytest.param(value, id=name)


@pytest.mark.parametrize("example", list(examples()))
def test_the_tests_of_the_project_pass(
    example: Callable[[Callable[[str], StreamBench]], None], stream_bench: Callable[[str], StreamBench]
) -> None:
    example(stream_bench)
