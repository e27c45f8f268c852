"""Mutates valid declarations, and looks whether one mistake ever costs more than its own file.

    .venv/bin/python -m tests.faults.mutated_declarations [--mutations 20000] [--first 0] [--round 500]

Each mutated file is loaded beside valid ones: it is loaded or refused with file and line, within a bounded time,
nothing is raised, and the valid ones stay. Then all files of a round are parsed by the real DAG files and stored in the
real database of an Airflow: every valid DAG is stored, every mutated stream has its DAG or one that says why.
Ends with 1 when there was a traceback, a hang or a lost sibling; a number repeats one mutation (`--first`).
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.fixtures.dag_persistence import store_dags
from tests.fixtures.declaration_mutations import SOUND_DAGS, write_mutation, write_sound_declarations

from sluice.declarations.load_declarations import load_declarations
from sluice.declarations.stream_declaration import PLATFORM_DAGS
from sluice.messages import one_line

LONGEST_LOAD_SECONDS = 5.0
"""Of one mutated file with six valid ones; the longest that was seen on two cores is a twentieth of it."""

SOUND_STREAMS = frozenset(name for name in SOUND_DAGS if not name.endswith("__backfill"))


@dataclass(slots=True)
class Findings:
    """What went wrong, one line each, and what was seen."""

    wrong: list[str] = field(default_factory=list)
    refused: int = 0
    longest_seconds: float = 0.0


def load_each(numbers: range, folder: Path, findings: Findings) -> None:
    """Load each mutated declaration beside valid ones.

    Parameters
    ----------
    folder: an empty folder.
    """
    write_sound_declarations(folder)
    for number in numbers:
        file = write_mutation(folder, number)
        began = time.monotonic()
        try:
            declarations = load_declarations(folder)
        except Exception:  # noqa: BLE001  # that is what is looked for
            findings.wrong.append(f"{number}: {traceback.format_exc(limit=-3)}")
        else:
            findings.refused += bool(declarations.problems)
            findings.wrong += [f"{number}: {sentence}" for sentence in _wrong_problems(declarations.problems, file)]
            if lost := SOUND_STREAMS - set(declarations.streams):
                findings.wrong.append(f"{number}: lost {', '.join(sorted(lost))}")
        seconds = time.monotonic() - began
        findings.longest_seconds = max(findings.longest_seconds, seconds)
        if seconds > LONGEST_LOAD_SECONDS:
            findings.wrong.append(f"{number}: took {seconds:.1f} s")
        file.unlink()


def _wrong_problems(problems: tuple[Exception, ...], file: Path) -> list[str]:
    lines = max(1, len(file.read_bytes().decode(errors="replace").splitlines()))
    return [
        f"an odd problem {str(problem)[:300]!r}"
        for problem in problems
        if problem.location.file != file  # type: ignore[attr-defined]  # all are declaration errors
        or not 1 <= (problem.location.line or 0) <= lines  # type: ignore[attr-defined]
        or str(problem) != one_line(str(problem))
    ]


def store_all(numbers: range, environment: Mapping[str, str], folder: Path, findings: Findings) -> None:
    """Store the DAGs of all mutated declarations together."""
    write_sound_declarations(folder)
    files = [write_mutation(folder, number).name for number in numbers]
    streams = {name.removesuffix(".stream.yaml") for name in files if name.endswith(".stream.yaml")}
    (stored,) = store_dags([folder], environment=environment)
    findings.wrong += [f"{numbers}: {file}: {problem}" for file, problem in stored.problems.items()]
    if lost := {*SOUND_DAGS, *PLATFORM_DAGS} - stored.active:
        findings.wrong.append(f"{numbers}: lost {', '.join(sorted(lost))}")
    if gone := {name for name in streams if not {name, f"broken__{name}.stream"} & stored.active}:
        findings.wrong.append(f"{numbers}: neither stored nor said to be broken: {', '.join(sorted(gone))}")


def main() -> int:
    """Run the drill; 0 when nothing went wrong."""
    from tests.fixtures.airflow import prepare_airflow
    from tests.fixtures.ledger import running_postgres

    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    arguments.add_argument("--mutations", type=int, default=20_000)
    arguments.add_argument("--first", type=int, default=0)
    arguments.add_argument("--round", type=int, default=500)
    asked = arguments.parse_args()
    findings = Findings()
    place = Path(tempfile.mkdtemp(prefix="sluice-mutations-"))
    try:
        for name in ("postgres", "airflow"):
            (place / name).mkdir()
        with running_postgres(place / "postgres") as server:
            environment = prepare_airflow(place / "airflow", server.url, pipelines=place).environment
            for start in range(asked.first, asked.first + asked.mutations, asked.round):
                numbers = range(start, min(start + asked.round, asked.first + asked.mutations))
                for name in ("one", "all"):
                    (place / name).mkdir()
                load_each(numbers, place / "one", findings)
                store_all(numbers, environment, place / "all", findings)
                for name in ("one", "all"):
                    shutil.rmtree(place / name)
                _say(f"{numbers.stop - asked.first} mutations, {findings.refused} refused, longest load "
                     f"{findings.longest_seconds:.2f} s, wrong: {len(findings.wrong)}")  # fmt: skip
    finally:
        shutil.rmtree(place, ignore_errors=True)
    for line in findings.wrong:
        _say(line)
    return 1 if findings.wrong else 0


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
