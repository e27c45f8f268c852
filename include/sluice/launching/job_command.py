"""The argument contract of the jobs: a frozen value that Airflow and the CLI turn into argv and the job parses back.

A value contains names and no secret: every user of the machine can read argv.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import ClassVar, TypeVar


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCommand:
    """One Spark application and its arguments. `application` is its file, relative to the project's root."""

    application: ClassVar[str]

    def arguments(self) -> list[str]:
        """Return the argv, one `--name=value` for each field, so that a value is never read as an option."""
        return [f"--{field.name.replace('_', '-')}={getattr(self, field.name)}" for field in fields(self)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStream(JobCommand):
    """Run a continuous stream as the run that the ledger has admitted."""

    application: ClassVar[str] = "jobs/run_stream.py"
    stream: str
    run_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunWork(JobCommand):
    """Do the bounded work of a pool.

    application_id: of the application, in the ledger.
    pool: for people who list processes.
    with_delta, repeats_tasks, ui: `yes` or `no`.
    cores: of a driver in local mode; empty for those of its launch.
    """

    application: ClassVar[str] = "jobs/run_work.py"
    application_id: str
    pool: str
    with_delta: str
    repeats_tasks: str
    ui: str
    cores: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidateStreams(JobCommand):
    """Let Spark analyse streams without running them. streams: names, comma separated."""

    application: ClassVar[str] = "jobs/validate_streams.py"
    folder: str
    streams: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviewStream(JobCommand):
    """Run a stream's transformation over a few rows of its inputs, without a checkpoint and without writing.

    sample: at most so many rows of an input are read.
    rows: at most so many rows of an output are shown.
    """

    application: ClassVar[str] = "jobs/preview_stream.py"
    folder: str
    stream: str
    sample: str
    rows: str


Command = TypeVar("Command", bound=JobCommand)


def parse_arguments(command: type[Command], argv: Sequence[str]) -> Command:
    """Read a job's arguments, the inverse of `JobCommand.arguments`.

    Exits with code 2 and a usage line when an argument is missing or unknown, as argparse does.
    """
    parser = argparse.ArgumentParser(description=command.__doc__, allow_abbrev=False)
    for field in fields(command):
        parser.add_argument(f"--{field.name.replace('_', '-')}", dest=field.name, required=True)
    return command(**vars(parser.parse_args(argv)))
