"""Runs every combination of input, output, trigger and mode that is allowed, and prints a table of all of them.

    python -m tests.matrix [--only WORD …] [--json]

It starts services and one Spark session of its own and removes them at the end. A cell is run, refused with its reason,
or wrong. Ends with 1 when a cell is wrong, and with 130 when it is interrupted; then it prints what it has seen so far.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from tests.fixtures.stack import SERVICES, stack_in
from tests.matrix.choosing import judged
from tests.matrix.report import Cell, print_table
from tests.matrix.running import name_of, run_combination
from tests.matrix.services import Services, services_in

from sluice.declarations.checks.combinations import Combination
from sluice.declarations.run_declaration import EngineDeclaration, StateDeclaration
from sluice.launching.launch_settings import launch_conf
from sluice.ledger.connection import open_ledger
from sluice_spark.session.session import open_session

INTERRUPTED = 130
"""The exit status of a program that Ctrl-C has ended."""

_LONGEST_ERROR = 2000
"""Characters of an error: an error of a Python worker has its own sentence at the end of a traceback."""


def main(arguments: Sequence[str]) -> int:
    """Run the matrix and return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.matrix", description=__doc__)
    parser.add_argument("--only", nargs="*", default=[""], help="only combinations whose name contains one of these")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    given = parser.parse_args(arguments)
    logging.basicConfig(level=logging.ERROR)
    progress = Console(stderr=True, highlight=False)
    chosen = [(one, reason) for one, reason in judged() if any(word in name_of(one) for word in given.only)]
    if not chosen:
        parser.error(f"no combination has a name with {' or '.join(given.only)}")
    cells = [Cell(combination=combination, refused=reason) for combination, reason in chosen if reason is not None]
    to_run = [combination for combination, reason in chosen if reason is None]
    left = len(to_run)
    try:
        with _services() as services, _interruptible() as is_interrupted:
            for combination in to_run:
                cell = _cell(combination, services)
                if is_interrupted():
                    raise KeyboardInterrupt
                cells.append(cell)
                left -= 1
                done = f"{len(to_run) - left:4d} of {len(to_run)}"
                progress.print(f"{done}  {cells[-1].sentence()}", soft_wrap=True, markup=False)
    except KeyboardInterrupt:
        progress.print(f"interrupted: {left} combinations were not run")
    if given.json:
        print(json.dumps([cell.as_json() for cell in cells], indent=1))  # noqa: T201  # the answer of the program
    else:
        print_table(cells, Console(highlight=False, width=160))
    if any(cell.wrong for cell in cells):
        return 1
    return INTERRUPTED if left else 0


def _cell(combination: Combination, services: Services) -> Cell:
    started = time.monotonic()
    try:
        run_combination(combination, services)
    except Exception as error:  # noqa: BLE001  # whatever a cell raises is the cell's result; the others still run
        wrong = f"{type(error).__name__}: {' '.join(str(error).split())[:_LONGEST_ERROR]}"
        return Cell(combination=combination, wrong=wrong, seconds=time.monotonic() - started)
    return Cell(combination=combination, seconds=time.monotonic() - started)


@contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """Records whether Ctrl-C was pressed: py4j turns an interruption into its own error, which a cell would keep."""
    seen: list[int] = []

    def interrupted(number: int, _frame: object) -> None:
        seen.append(number)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupted)
    try:
        yield lambda: bool(seen)
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _services() -> Iterator[Services]:
    with tempfile.TemporaryDirectory(prefix="sluice-matrix-") as temporary:
        folder = Path(temporary)
        with stack_in(folder / "stack") as stack:
            stack.up(SERVICES)
            settings = stack.settings()
            conf = launch_conf(home=settings.home, jars=settings.jars, engine=EngineDeclaration(), is_bounded=True)
            words = (word for key, value in conf.items() for word in ("--conf", f"{key}={value}"))
            os.environ["PYSPARK_SUBMIT_ARGS"] = shlex.join(["--master", "local[2]", *words, "pyspark-shell"])
            os.environ["PYSPARK_PYTHON"] = sys.executable  # the workers need the same packages
            spark = open_session(settings, name="matrix", state=StateDeclaration(), with_delta=True)
            try:
                with (
                    open_ledger(settings.ledger_url.get_secret_value()) as ledger,
                    services_in(folder / "words", spark=spark, settings=settings, ledger=ledger) as services,
                ):
                    yield services
            finally:
                spark.stop()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
