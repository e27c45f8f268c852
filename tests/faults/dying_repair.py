"""`sluice stream repair`, `rewind`, `clean`, or `sluice table adopt`, in a process that gets SIGKILL at a named place,
the n-th time it passes it.

    python -m tests.faults.dying_repair --stream NAME --point file_changed [--occurrence 3]
    python -m tests.faults.dying_repair --stream NAME --table TABLE --way undo --point committed
    python -m tests.faults.dying_repair --stream NAME --to-batch 3 --point cleared
    python -m tests.faults.dying_repair --stream NAME --cleans-at 2026-12-31T00:00:00+00:00 --point cleared

The settings come from the environment, as for the command.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from tests.faults.dying_rejection import killed_at

from sluice.declarations.load_declarations import load_declarations
from sluice.ledger.connection import open_ledger
from sluice.ledger.events import Actor
from sluice.leftovers.observe_leftovers import Leftovers
from sluice.leftovers.remove_leftovers import clean
from sluice.positions.adopt_table import adopt_table
from sluice.positions.adoption import AdoptionWay
from sluice.positions.repair_stream import repair_stream
from sluice.positions.rewind_stream import rewind_stream
from sluice.publication.crash_points import CrashPoint
from sluice.settings import load_settings
from sluice.tables.catalog import open_catalog


def main(arguments: Sequence[str] | None = None) -> int:
    """Repair the stream, take it back, or adopt its table, up to the place."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stream", required=True)
    parser.add_argument("--point", type=CrashPoint, required=True)
    parser.add_argument("--occurrence", type=int, default=1)
    parser.add_argument("--table")
    parser.add_argument("--way", type=AdoptionWay)
    parser.add_argument("--to-batch", type=int)
    parser.add_argument("--cleans-at", type=datetime.fromisoformat)
    options = parser.parse_args(arguments)
    settings = load_settings()
    declarations, catalog = load_declarations(settings.pipelines), open_catalog(settings)
    how: dict[str, Any] = {
        "asked_by": "a fault",
        "reached": killed_at(options.point, occurrence=options.occurrence),
    }
    with open_ledger(settings.ledger_url.get_secret_value()) as ledger:
        if options.cleans_at is not None:
            left = Leftovers(
                catalog=catalog, ledger=ledger, settings=settings, now=options.cleans_at, stream=options.stream
            )
            clean(left, actor=Actor.person("a fault"), reached=how["reached"])
        elif options.table:
            adopt_table(ledger, catalog, declarations, settings, table=options.table, way=options.way, **how)
        elif options.to_batch is not None:
            back: dict[str, Any] = {"stream": options.stream, "batch": options.to_batch}
            rewind_stream(ledger, catalog, declarations, settings, **back, **how)
        else:
            repair_stream(ledger, catalog, declarations.stream(options.stream), settings, **how)
    return 0


if __name__ == "__main__":
    sys.exit(main())
