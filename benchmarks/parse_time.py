"""How long Airflow parses and serialises the DAGs of many declared streams, beyond its own import.

    .venv/bin/python -m benchmarks.parse_time [--streams 1000] [--rounds 3]

Each round is a process of its own, as each parsing of Airflow's DAG processor is: it imports Airflow, which is not
counted, then parses one file of `dags/` into a DagBag, with all that the file imports and reads, and serialises what
came of it. A stream and a table are declared for each; nothing is remembered between two rounds.

Seconds are those of the processor: parsing waits for nothing, so on an idle machine they are the seconds that pass, and
on a busy one they still show what parsing costs. The elapsed time is printed beside them.
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

ALLOWED_SECONDS = 3.0
"""For a thousand streams, by the file that makes their DAGs."""

FILES = ("streams.py", "stream_control.py", "table_maintenance.py", "data_quality.py", "broken_declarations.py")

_ROUND = """
import json, sys, time
from airflow.dag_processing.dagbag import DagBag
from airflow.serialization.serialized_objects import DagSerialization
import airflow.sdk.definitions.decorators
began_at, began = time.monotonic(), time.process_time()
bag = DagBag(sys.argv[1])
parsed = time.process_time()
for dag in bag.dags.values():
    json.dumps(DagSerialization.to_dict(dag))
serialized = time.process_time()
passed = time.monotonic() - began_at
assert not bag.import_errors, bag.import_errors
figures = {"parsed_seconds": parsed - began, "serialized_seconds": serialized - parsed, "passed_seconds": passed}
print(json.dumps({"dags": len(bag.dags), **figures}))
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


def declare(folder: Path, *, streams: int) -> Path:
    """Declare so many continuous streams, each with a table of its own; the folder of the declarations."""
    pipelines = folder / "pipelines"
    pipelines.mkdir()
    write_table(pipelines, "bronze.flights")
    for number in range(streams):
        write_table(pipelines, f"silver.flights_{number:04}")
        write_continuous_stream(pipelines, f"flights_{number:04}", writes=f"silver.flights_{number:04}")
    return pipelines


def measure(folder: Path, pipelines: Path, file: str) -> Parsed:
    """Parse a file of `dags/` once, in a process of its own."""
    home = project_root()
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "PYTHONPATH": str(home / "plugins"),
        "AIRFLOW_HOME": str(folder / "airflow"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": "600",
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "ERROR",
        "SLUICE_PIPELINES": str(pipelines),
    }
    command = [sys.executable, "-c", _ROUND, str(home / "dags" / file)]
    answer = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)  # noqa: S603  # ours
    return Parsed(**json.loads(answer.stdout.splitlines()[-1]))


def show(found: Mapping[str, Sequence[Parsed]], *, streams: int) -> None:
    """A table of medians."""
    table = Table(title=f"{streams} declared streams: seconds of the processor beyond Airflow's import, medians")
    for heading in ("file", "DAGs", "parse", "serialise", "together", "passed"):
        table.add_column(heading, justify="left" if heading == "file" else "right")
    for file, rounds in found.items():
        cells = [
            statistics.median(one.parsed_seconds for one in rounds),
            statistics.median(one.serialized_seconds for one in rounds),
            statistics.median(one.seconds for one in rounds),
            statistics.median(one.passed_seconds for one in rounds),
        ]
        table.add_row(file, str(rounds[0].dags), *(f"{seconds:.2f}" for seconds in cells))
    Console().print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print. Returns 1 when the streams' own file takes longer than is allowed for a thousand streams."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="sluice-parse-time-") as place:
        folder = Path(place)
        pipelines = declare(folder, streams=chosen.streams)
        found = {file: [measure(folder, pipelines, file) for _ in range(chosen.rounds)] for file in FILES}
    show(found, streams=chosen.streams)
    took = statistics.median(one.seconds for one in found["streams.py"])
    allowed = ALLOWED_SECONDS * chosen.streams / 1000
    Console().print(f"streams.py: {took:.2f} s, allowed are {allowed:.2f} s")
    return 0 if took <= allowed else 1


if __name__ == "__main__":
    sys.exit(main())
