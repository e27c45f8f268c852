"""Applies a stream's transformation to a few rows of its inputs and prints the result as a line of JSON.

    spark-submit --master 'local[*]' jobs/preview_stream.py --folder=… --stream=… --sample=1000 --rows=10

The settings come from the environment (`SLUICE_*`). Nothing is written, and no checkpoint is created.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from sluice.declarations.load_declarations import load_declarations
from sluice.declarations.run_declaration import StateDeclaration
from sluice.launching.job_output import json_line
from sluice.launching.spark_submit import PreviewStream, parse_arguments
from sluice.settings import load_settings
from sluice_spark.query.stream_preview import preview
from sluice_spark.run.job import run_job
from sluice_spark.session.session import open_session


def main(argv: Sequence[str]) -> int:
    """Run the job and return its exit status."""
    return run_job(partial(_run, parse_arguments(PreviewStream, argv)))


def _run(command: PreviewStream) -> None:
    settings = load_settings()
    stream = load_declarations(Path(command.folder)).stream(command.stream)
    with_delta = stream.declaration.uses_delta
    spark = open_session(settings, name=f"preview {stream.name}", state=StateDeclaration(), with_delta=with_delta)
    seen = preview(spark, stream, settings, sample=int(command.sample), shown=int(command.rows))
    sys.stdout.write(f"{json_line(seen)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
