"""Checks the newest snapshot of a table against its declared expectations, and writes the pages of the check.

    spark-submit --master 'local[*]' jobs/check_quality.py --table=silver.flights --launched-by=me

The settings come from the environment (`SLUICE_*`). Exit status 1 means that an expectation does not hold or could not
be evaluated; the last line names it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial

from sluice.declarations.engine_declaration import StateDeclaration
from sluice.errors import UnhealthyError
from sluice.launching.job_command import CheckQuality, parse_arguments
from sluice.launching.job_output import json_line
from sluice.ledger.connection import open_ledger
from sluice.ledger.quality_checks import UNSUCCESSFUL_VERDICTS
from sluice.quality.quality_pages import quality_sentence
from sluice.settings import load_settings
from sluice_spark.quality.table_check import check_table
from sluice_spark.run.job import run_job
from sluice_spark.session.session import open_session


def main(argv: Sequence[str]) -> int:
    """Run the job and return its exit status."""
    return run_job(partial(_run, parse_arguments(CheckQuality, argv)))


def _run(command: CheckQuality) -> None:
    settings = load_settings()
    session = partial(open_session, settings, name=f"check {command.table}", state=StateDeclaration())
    with open_ledger(settings.ledger_url.get_secret_value()) as ledger:
        check = check_table(command, settings, ledger, open_session=session)
    sentence, page = quality_sentence(check), f"The page about it: {check.report}"
    sys.stdout.writelines(f"{line}\n" for line in (sentence, page, json_line(check)))
    sys.stdout.flush()
    if check.verdict in UNSUCCESSFUL_VERDICTS:
        raise UnhealthyError(sentence, next_step=f"See {check.report}.")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
