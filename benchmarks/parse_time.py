"""How long Airflow parses and serialises the DAGs of many declared streams, beside as many plain DAG files.

    .venv/bin/python -m benchmarks.parse_time [--streams 1000] [--rounds 3]

Each round is a process of its own, as each parsing of Airflow's DAG processor is. It imports Airflow, which is not
counted. Then it parses the baseline into a DagBag: as many files as there are streams, each with one DAG as Airflow's
tutorial writes it, with a schedule and one task; and serialises what came of them. Then it does the same with one file
of `dags/`, with all that the file imports and reads. A stream and a table are declared for each; nothing is remembered
between two rounds.

The limit is a ratio: the file that makes the DAGs of the streams, in the same process as the plain files. Seconds are
those of the processor: parsing waits for nothing, so on an idle machine they are the seconds that pass, and on a busy
one they still show what parsing costs. The elapsed time is printed beside them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from tests.fixtures.sample_declarations import write_continuous_stream, write_table

from sluice.settings import project_root

ALLOWED_RATIO = 1.4
"""For a thousand streams, by the file that makes their DAGs, beside a thousand plain files. A stream's DAG says more
than a plain one (a document, inlets, tags, retries), and its declaration is read and checked. With few streams the
imports, which are the same for any number of them, weigh more."""

FILES = ("streams.py", "stream_control.py", "table_maintenance.py", "data_quality.py", "broken_declarations.py")

_PLAIN = """\
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG

with DAG("{name}", schedule="* * * * *", catchup=False):
    EmptyOperator(task_id="work")
"""

_ROUND = """
import json, sys, time
from airflow.dag_processing.dagbag import DagBag
from airflow.serialization.serialized_objects import DagSerialization

def spend(place):
    began_at, began = time.monotonic(), time.process_time()
    bag = DagBag(place)
    parsed = time.process_time()
    for dag in bag.dags.values():
        json.dumps(DagSerialization.to_dict(dag))
    serialized = time.process_time()
    passed = time.monotonic() - began_at
    assert not bag.import_errors, bag.import_errors
    figures = {"parsed_seconds": parsed - began, "serialized_seconds": serialized - parsed, "passed_seconds": passed}
    return {"dags": len(bag.dags), **figures}

first, plain, file = sys.argv[1:]
spend(first)  # Airflow's own imports
print(json.dumps({"plain": spend(plain), "declared": spend(file)}))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """One parsing of one file: seconds of the processor, and how many passed."""

    dags: int
    parsed_seconds: float
    serialized_seconds: float
    passed_seconds: float

    @property
    def seconds(self) -> float:
        """Both together."""
        return self.parsed_seconds + self.serialized_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One process: the plain files, then a file of `dags/`."""

    plain: Parsed
    declared: Parsed

    @property
    def ratio(self) -> float:
        """How many times as long the file of `dags/` took."""
        return self.declared.seconds / self.plain.seconds


def declare(folder: Path, *, streams: int) -> None:
    """Declare so many continuous streams, each with a table of its own, in `pipelines`."""
    pipelines = folder / "pipelines"
    pipelines.mkdir()
    write_table(pipelines, "bronze.flights")
    for number in range(streams):
        write_table(pipelines, f"silver.flights_{number:04}")
        write_continuous_stream(pipelines, f"flights_{number:04}", writes=f"silver.flights_{number:04}")


def write_plain(folder: Path, *, dags: int) -> Path:
    """Write so many plain DAG files; their folder."""
    folder.mkdir()
    for number in range(dags):
        (folder / f"plain_{number:04}.py").write_text(_PLAIN.format(name=f"plain_{number:04}"))
    return folder


def measure(folder: Path, file: str) -> Round:
    """Parse the plain files and a file of `dags/` once, in a process of its own.

    Parameters
    ----------
    folder: holds the declarations, the plain files and one more plain file in `first`.
    file: a file of `dags/`.
    """
    home = project_root()
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "PYTHONPATH": str(home / "plugins"),
        "AIRFLOW_HOME": str(folder / "airflow"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": "600",
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "ERROR",
        "SLUICE_PIPELINES": str(folder / "pipelines"),
    }
    places = [folder / "first", folder / "plain", home / "dags" / file]
    command = [sys.executable, "-c", _ROUND, *map(str, places)]
    answer = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)  # noqa: S603  # ours
    parts = json.loads(answer.stdout.splitlines()[-1])
    return Round(plain=Parsed(**parts["plain"]), declared=Parsed(**parts["declared"]))


def show(found: Mapping[str, Sequence[Round]], *, streams: int) -> None:
    """A table of medians."""
    table = Table(title=f"{streams} declared streams: seconds of the processor beyond Airflow's import, medians")
    for heading in ("file", "DAGs", "parse", "serialise", "together", "passed", "of plain"):
        table.add_column(heading, justify="left" if heading == "file" else "right")
    plain = [one.plain for rounds in found.values() for one in rounds]
    table.add_row("plain files", *_cells(plain), "")
    for file, rounds in found.items():
        table.add_row(file, *_cells([one.declared for one in rounds]), f"{_ratio(rounds):.2f}")
    Console().print(table)


def _cells(rounds: Sequence[Parsed]) -> list[str]:
    medians = [
        statistics.median(one.parsed_seconds for one in rounds),
        statistics.median(one.serialized_seconds for one in rounds),
        statistics.median(one.seconds for one in rounds),
        statistics.median(one.passed_seconds for one in rounds),
    ]
    return [str(rounds[0].dags), *(f"{seconds:.2f}" for seconds in medians)]


def _ratio(rounds: Sequence[Round]) -> float:
    return statistics.median(one.ratio for one in rounds)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print. Returns 1 when the streams' own file takes more than the allowed ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="sluice-parse-time-") as place:
        folder = Path(place)
        declare(folder, streams=chosen.streams)
        write_plain(folder / "first", dags=1)
        write_plain(folder / "plain", dags=chosen.streams)
        found = {file: [measure(folder, file) for _ in range(chosen.rounds)] for file in FILES}
    show(found, streams=chosen.streams)
    ratio = _ratio(found["streams.py"])
    Console().print(f"streams.py: {ratio:.2f} of as many plain files, allowed are {ALLOWED_RATIO:.2f}")
    return 0 if ratio <= ALLOWED_RATIO else 1


if __name__ == "__main__":
    sys.exit(main())
