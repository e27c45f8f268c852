"""`sluice batch reject` in a process that gets SIGKILL at a named place, the n-th time it passes it.

    python -m tests.faults.dying_rejection --stream NAME --number 17 --point recorded [--occurrence 1]

The settings come from the environment, as for the command.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from itertools import count

from sluice.declarations.load_declarations import load_declarations
from sluice.ledger.connection import open_ledger
from sluice.publication.batch_rejection import reject
from sluice.publication.crash_points import CrashPoint, Reached
from sluice.settings import load_settings
from sluice.tables.catalog import open_catalog


def killed_at(point: CrashPoint, *, occurrence: int) -> Reached:
    """Kills this process when a place is passed for the n-th time, from 1 on."""
    passed = count(1)

    def reached(here: CrashPoint) -> None:
        if here is point and next(passed) == occurrence:
            os.kill(os.getpid(), signal.SIGKILL)

    return reached


def main(arguments: Sequence[str] | None = None) -> int:
    """Reject the batch, up to the place."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stream", required=True)
    parser.add_argument("--number", type=int, required=True)
    parser.add_argument("--point", type=CrashPoint, required=True)
    parser.add_argument("--occurrence", type=int, default=1)
    options = parser.parse_args(arguments)
    settings = load_settings()
    declaration = load_declarations(settings.pipelines, only=options.stream).stream(options.stream).declaration
    with open_ledger(settings.ledger_url.get_secret_value()) as ledger:
        reject(
            open_catalog(settings),
            ledger,
            declaration,
            number=options.number,
            requested_by="a fault",
            reached=killed_at(options.point, occurrence=options.occurrence),
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
