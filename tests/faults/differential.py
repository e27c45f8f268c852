"""Random streams, with a crash each, and DuckDB says what their tables and the ledger must hold.

    python -m tests.faults.differential [--cases 2000] [--seed 0] [--time-zone Europe/Berlin] [--json]

Prints each difference as a case that was made as small as possible: declaration, rows, and what differs. Ends with 1
when there is one. A seed repeats a case: `--seed 4711 --cases 1`. All streams work in one process, whose host has the
time zone; its JVM is started in it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.progress import track
from tests.differential.case import Case
from tests.differential.case_run import differences
from tests.differential.grammar import random_case
from tests.differential.report import reproduction
from tests.differential.shrinking import shrunk
from tests.faults.crash_table import Drill, drill_workshops

_LONGEST_SHRINKING_SECONDS = 300
"""For one difference: about a hundred smaller cases."""


_HEAP_GIB = 4
"""Enough for a thousand cases in one session."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A case that is wrong. text: its smallest form, as somebody can repeat it."""

    seed: int
    text: str


def wrong_of(drill: Drill, case: Case) -> list[str]:
    """Run a case in a workshop of its own; what differs. An error that nothing asked for is a difference too."""
    try:
        return differences(drill.workshop(), case)
    except Exception:  # noqa: BLE001  # what a case raises is one finding; the others are run all the same
        return [f"raised: {traceback.format_exc(limit=-4)}"]


def found_in(drill: Drill, case: Case, *, shrinks: bool) -> Difference | None:
    """Run a case, and make it smaller when it differs; none when it is right."""
    wrong = wrong_of(drill, case)
    if not wrong:
        return None
    if shrinks:
        kind = _kind_of(wrong)
        case = shrunk(
            case, lambda smaller: _kind_of(wrong_of(drill, smaller)) == kind, most_seconds=_LONGEST_SHRINKING_SECONDS
        )
        wrong = wrong_of(drill, case) or wrong
    return Difference(seed=case.seed, text=reproduction(case, wrong))


def _kind_of(wrong: Sequence[str]) -> str:
    """Whether something was raised or is different, so that no other mistake is found while a case is made smaller."""
    return "" if not wrong else "raised" if wrong[0].startswith("raised") else "differs"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cases and print what differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0, help="of the first case; the others follow")
    parser.add_argument("--time-zone", default="", help="of the host; the one of this process when not given")
    parser.add_argument("--most-seconds", type=float, default=float("inf"), help="no case begins after so many seconds")
    parser.add_argument("--no-shrinking", action="store_true", help="print a difference as it was found")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    options = parser.parse_args(arguments)
    if options.time_zone:
        os.environ["TZ"] = options.time_zone
        time.tzset()
    os.environ["PYSPARK_PYTHON"] = sys.executable  # another Python has no packages to decode values with
    zone, console, began = time.tzname[0], Console(stderr=True), time.monotonic()
    found: list[Difference] = []
    run = 0
    with drill_workshops(services=("postgres", "seaweedfs", "kafka"), memory_gib=_HEAP_GIB) as drill:
        seeds = range(options.seed, options.seed + options.cases)
        for seed in track(seeds, "streams compared", console=console):
            if time.monotonic() - began > options.most_seconds:
                break
            run += 1
            if (difference := found_in(drill, random_case(seed), shrinks=not options.no_shrinking)) is not None:
                found.append(difference)
                console.print(difference.text, soft_wrap=True, markup=False, highlight=False)
    seconds = time.monotonic() - began
    summary = {"cases": run, "first_seed": options.seed, "time_zone": zone, "differences": len(found)}
    if options.json:
        answer = {**summary, "seconds": seconds, "found": [asdict(one) for one in found]}
        print(json.dumps(answer, indent=1))  # noqa: T201  # the answer of the program
    else:
        Console().print(
            f"{run} streams from seed {options.seed}, host in {zone}, {seconds:.0f} s: {len(found)} differ."
        )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
