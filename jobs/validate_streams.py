"""Analyses declared streams with Spark without running them, and prints the plans as one line of JSON.

    spark-submit --master 'local[*]' jobs/validate_streams.py --folder=include/pipelines --streams=bronze_flights,…

The settings come from the environment (`SLUICE_*`). Exit status 2 means that a stream cannot run.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

from sluice.declarations.load_declarations import load_declarations
from sluice.declarations.loaded_declarations import LoadedStream, all_tables
from sluice.declarations.run_declaration import StateDeclaration
from sluice.declarations.spark_reports import PlanObservation, PlansObservation
from sluice.errors import UsageError
from sluice.launching.job_output import json_line
from sluice.launching.spark_submit import ValidateStreams, parse_arguments
from sluice.settings import Settings, load_settings
from sluice.tables.catalog import open_catalog
from sluice_spark.query.stream_preview import TablesOfStream, observe_plan, session_with_all, tables_of_stream
from sluice_spark.run.job import run_job
from sluice_spark.session.session import open_session


def main(argv: Sequence[str]) -> int:
    """Run the job and return its exit status."""
    return run_job(partial(_run, parse_arguments(ValidateStreams, argv)))


def _run(command: ValidateStreams) -> None:
    settings = load_settings()
    declarations = load_declarations(Path(command.folder))
    streams = [declarations.stream(name) for name in command.streams.split(",")]
    with_delta = any(stream.declaration.uses_delta for stream in streams)
    spark = open_session(settings, name="validate streams", state=StateDeclaration(), with_delta=with_delta)
    catalog, tables = open_catalog(settings), all_tables(declarations)
    found = (tables_of_stream(catalog, stream.declaration, tables) for stream in streams)
    observed = (_observe(spark, stream, settings, its) for stream, its in zip(streams, found, strict=True))
    plans = PlansObservation(plans=tuple(observed))
    sys.stdout.write(f"{json_line(plans)}\n")
    sys.stdout.flush()
    if broken := [plan.stream for plan in plans.plans if plan.problem is not None]:
        raise UsageError(f"{', '.join(broken)} cannot run.")


def _observe(spark: SparkSession, stream: LoadedStream, settings: Settings, tables: TablesOfStream) -> PlanObservation:
    if not tables.to_create:
        return observe_plan(spark, stream, settings)
    session = session_with_all(spark, settings.catalog.name, tables)
    return replace(observe_plan(session, stream, settings), tables_to_create=tables.names_to_create)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
