"""Finds the intervals of a stream's table that do not hold what its sources give.

    spark-submit --master 'local[*]' jobs/find_gaps.py --stream=silver_flights --start=2013-01-05 --end= --fails=no

Without a start the search begins with the oldest row, without an end it goes up to the newest closed interval. It
changes nothing. The settings come from the environment (`SLUICE_*`). The last line of its output is the report as JSON.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache, partial

from pyspark.sql import SparkSession

from sluice.backfill.interval_gaps import require_no_gaps
from sluice.backfill.intervals import parse_time
from sluice.declarations.load_declarations import load_declarations
from sluice.launching.job_command import FindGaps, parse_arguments
from sluice.launching.job_output import json_line
from sluice.ledger.connection import open_ledger
from sluice.settings import load_settings
from sluice_spark.backfill.gap_search import GapSearch
from sluice_spark.run.job import run_job
from sluice_spark.session.session import open_session


def main(argv: Sequence[str]) -> int:
    """Run the job and return its exit status."""
    return run_job(partial(_run, parse_arguments(FindGaps, argv)))


def _run(command: FindGaps) -> None:
    settings = load_settings()
    declarations = load_declarations(settings.pipelines)
    stream = declarations.stream(command.stream)

    @cache
    def session() -> SparkSession:
        return open_session(
            settings,
            name=f"gaps {command.stream}",
            state=stream.declaration.state,
            with_delta=stream.declaration.uses_delta,
            cores=stream.declaration.engine.cores,
        )

    with open_ledger(settings.ledger_url.get_secret_value()) as ledger:
        report = GapSearch(
            settings=settings,
            ledger=ledger,
            declarations=declarations,
            stream=stream,
            start=parse_time(command.start) if command.start else None,
            end=parse_time(command.end) if command.end else None,
            open_session=session,
        ).work()
    sys.stdout.write(f"{json_line(report)}\n")
    sys.stdout.flush()
    if command.fails == "yes":
        require_no_gaps(report)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
