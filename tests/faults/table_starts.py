"""Streams of every kind begin with tables of every past, quiet or with a writer beside them; DuckDB says what is right.

    python -m tests.faults.table_starts [--kinds append merge …] [--pasts fresh …]

The writer appends all the time while the stream begins. Then it stops, and the stream reads what is left. Prints a
table of all combinations, and ends with 1 when a table is not equal to a batch over what was read.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product

from rich.console import Console
from rich.table import Table
from tests.faults.crash_table import drill_workshops
from tests.fixtures.begun_tables import KINDS, PASTS, BegunStream, PastTable, declare_past
from tests.fixtures.workshop import Workshop

_PAUSE_SECONDS = 0.3
"""Between two appends of the writer: several of them come while the first batch is planned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """What came of one stream. wrong: what is wrong with its table, if anything. rows: those that it holds.

    appends: those that the writer made while the stream began.
    """

    kind: str
    past: str
    wrong: str = ""
    rows: int = 0
    appends: int = 0
    seconds: float = 0.0


def begin(workshop: Workshop, kind: str, past: str, *, is_written: bool) -> Beginning:
    """Begin one stream, and compare its table with a batch over what it read."""
    source, other = declare_past(workshop, kind, past)
    tables = [table for table in (source, other) if table is not None]
    stream = BegunStream.declare(kind, source, other)
    with _writer_beside(*tables) if is_written else _nobody() as appends:
        stream.run()
        stream.run()
    stream.run()
    stream.run()
    got, right = stream.got(), stream.right()
    wrong = "" if got == right else f"{len(got)} rows, {len(right)} are right; e.g. {list(set(got) ^ set(right))[:3]}"
    if is_written and not appends:
        wrong = wrong or "the writer appended nothing"
    return Beginning(kind=kind, past=past, wrong=wrong, rows=len(got), appends=len(appends))


@contextmanager
def _nobody() -> Iterator[list[int]]:
    yield []


@contextmanager
def _writer_beside(*tables: PastTable) -> Iterator[list[int]]:
    """Append to the tables while the block runs: new rows, later than all others. The list grows with each append."""
    ended = threading.Event()
    appends: list[int] = []
    errors: list[Exception] = []

    def write() -> None:
        number = 1000
        try:
            while not ended.wait(_PAUSE_SECONDS):
                for table in tables:
                    table.append(number, number + 3, word="beside", minutes=number)
                    appends.append(number)
                number += 2  # one number comes twice
        except Exception as error:  # noqa: BLE001  # of a thread; the block raises it
            errors.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield appends
    finally:
        ended.set()
        thread.join()
    if errors:
        raise errors[0]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the drill and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", choices=tuple(KINDS), default=list(KINDS))
    parser.add_argument("--pasts", nargs="+", choices=tuple(PASTS), default=list(PASTS))
    options = parser.parse_args(arguments)
    found: dict[bool, list[Beginning]] = {False: [], True: []}
    with drill_workshops() as drill:
        for kind, past, is_written in product(options.kinds, options.pasts, (False, True)):
            began = time.monotonic()
            try:
                one = begin(drill.workshop(), kind, past, is_written=is_written)
            except Exception as error:  # noqa: BLE001  # a combination that fails does not hide the others
                one = Beginning(kind=kind, past=past, wrong=f"{type(error).__name__}: {error}"[:400])
            one = replace(one, seconds=time.monotonic() - began)
            found[is_written].append(one)
            beside = "writer beside" if is_written else "quiet"
            sys.stderr.write(f"{kind} · {past} · {beside}: {f'WRONG: {one.wrong}' if one.wrong else 'right'}\n")
    _print(found)
    return 1 if any(one.wrong for ones in found.values() for one in ones) else 0


def _print(found: Mapping[bool, Sequence[Beginning]]) -> None:
    wrong = [one for ones in found.values() for one in ones if one.wrong]
    table = Table(title=f"{sum(map(len, found.values()))} beginnings, {len(wrong)} wrong")
    for heading in ("stream", "past of the table", "quiet", "writer beside"):
        table.add_column(heading)
    for quiet, written in zip(found[False], found[True], strict=True):
        table.add_row(quiet.kind, quiet.past, _cell(quiet), f"{_cell(written)}, {written.appends} appends")
    Console(width=140).print(table)
    for one in wrong:
        sys.stdout.write(f"{one.kind} · {one.past}: {one.wrong}\n")


def _cell(one: Beginning) -> str:
    return f"{'WRONG' if one.wrong else 'right'}, {one.rows} rows, {one.seconds:.0f} s"


if __name__ == "__main__":
    sys.exit(main())
