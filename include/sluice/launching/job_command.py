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
class RunIncrement(JobCommand):
    """Run an incremental stream over the new input, then end."""

    application: ClassVar[str] = "jobs/run_increment.py"
    stream: str
    launched_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepIncrements(JobCommand):
    """Run increments of a stream as they are asked for, until none is asked for a while.

    socket: where the job is asked. kept_seconds: how long it waits for the next increment.
    """

    application: ClassVar[str] = "jobs/keep_increments.py"
    stream: str
    socket: str
    kept_seconds: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunBackfill(JobCommand):
    """Compute an interval of a stream again and replace it, beside the live stream.

    start, end: times in ISO 8601; without an offset they are UTC. The end is not part of the interval.
    """

    application: ClassVar[str] = "jobs/run_backfill.py"
    stream: str
    start: str
    end: str
    launched_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshStream(JobCommand):
    """Build the content of a stream's table again, and replace it in one commit.

    keep_days: for how many days the earlier content can be taken back. asked_by: the person, for the ledger.
    """

    application: ClassVar[str] = "jobs/refresh_stream.py"
    stream: str
    keep_days: str
    asked_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FindGaps(JobCommand):
    """Find the intervals of a stream's table that do not hold what its sources give.

    start, end: times in ISO 8601; empty for the oldest row, and for the newest closed interval.
    fails: `yes` to end as failed when there are some.
    """

    application: ClassVar[str] = "jobs/find_gaps.py"
    stream: str
    start: str
    end: str
    fails: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintainTable(JobCommand):
    """Compact a table, rewrite its manifests and expire its snapshots, as its declaration says."""

    application: ClassVar[str] = "jobs/maintain_table.py"
    table: str
    launched_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckQuality(JobCommand):
    """Check a committed snapshot of a table against its declared expectations."""

    application: ClassVar[str] = "jobs/check_quality.py"
    table: str
    launched_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidateStreams(JobCommand):
    """Let Spark analyse streams without running them. streams: names, comma separated."""

    application: ClassVar[str] = "jobs/validate_streams.py"
    folder: str
    streams: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviewStream(JobCommand):
    """Run a stream's transformation over a few rows of its inputs, without a checkpoint and without writing.

    sample: at most so many rows of an input are read. rows: at most so many rows of an output are shown.
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
