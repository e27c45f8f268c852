"""A folder of declarations to write into, and valid declarations to start from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from sluice.declarations.load_declarations import load_declarations
from sluice.declarations.loaded_declarations import Declarations

STREAM = """\
stream: silver_flights
description: typed flights
owner: flights
mode: continuous
trigger: {processing_time: 2 seconds}
inputs:
  flights:
    stream:
      iceberg: {table: bronze.flights}
    watermark: {column: departure, delay: 6 hours}
  airlines:
    static:
      iceberg: {table: reference.airlines}
transformation:
  python: transformations.py:silver_flights
outputs:
  main:
    iceberg: {table: silver.flights, mode: append}
quarantine: true
"""

TABLE = """\
table: bronze.flights
description: flights as they came
owner: flights
columns:
  - {name: carrier, type: string}
  - {name: departure, type: timestamptz}
  - {name: legs, type: list<string>}
partitioning:
  - {column: departure, transform: day}
sort_order:
  - {column: carrier}
properties:
  write.target-file-size-bytes: "67108864"
"""

TRANSFORMATIONS = """\
def silver_flights(flights, airlines):
    raise RuntimeError("loading executes nothing")
"""


@dataclass(frozen=True)
class Folder:
    """A folder of declarations."""

    path: Path

    def write(self, name: str, text: str | bytes) -> Path:
        """Put a file into the folder."""
        file = self.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return file

    def write_valid(self) -> None:
        """Put one stream, its three tables and its transformation into the folder."""
        self.write("silver_flights.stream.yaml", STREAM)
        self.write("transformations.py", TRANSFORMATIONS)
        for table in ("bronze.flights", "silver.flights", "reference.airlines"):
            self.write(f"{table}.table.yaml", TABLE.replace("bronze.flights", table))

    def load(self, *, only: str | None = None) -> Declarations:
        """Load the folder."""
        return load_declarations(self.path, only=only)

    def problems(self) -> list[str]:
        """The problems of the folder as `file:line: sentence next step`, with the files' names alone."""
        return [str(problem).replace(f"{self.path}/", "") for problem in self.load().problems]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """An empty folder of declarations."""
    return Folder(tmp_path)


@pytest.fixture
def valid(folder: Folder) -> Folder:
    """A folder with one valid stream and its tables."""
    folder.write_valid()
    return folder
