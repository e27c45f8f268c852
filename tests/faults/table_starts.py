"""Streams of every kind begin with tables of every past, quiet or with a writer beside them; DuckDB says what is right.

    python -m tests.faults.table_starts [--kinds append merge …] [--pasts fresh …]

The writer appends all the time while the stream begins. Then it stops, and the stream reads what is left. Ends with 1
when a table is not equal to a batch over what was read.
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product

from tests.faults.crash_table import drill_workshops
from tests.fixtures.begun_tables import KINDS, PASTS, BegunStream, PastTable, declare_past
from tests.fixtures.workshop import Workshop

_PAUSE_SECONDS = 0.3
"""Between two appends of the writer: several of them come while the first batch is planned."""


def begins_right(workshop: Workshop, kind: str, past: str, *, is_written: bool) -> str:
    """Begin one stream. Returns what is wrong with its table; nothing when it is equal."""
    source, other = declare_past(workshop, kind, past)
    tables = [table for table in (source, other) if table is not None]
    stream = BegunStream.declare(kind, source, other)
    with _writer_beside(*tables) if is_written else _nobody():
        stream.run()
        stream.run()
    stream.run()
    stream.run()
    got, right = stream.got(), stream.right()
    return "" if got == right else f"{len(got)} rows, {len(right)} are right; e.g. {list(set(got) ^ set(right))[:3]}"


@contextmanager
def _nobody() -> Iterator[None]:
    yield


@contextmanager
def _writer_beside(*tables: PastTable) -> Iterator[None]:
    """Append to the tables while the block runs: new rows, later than all others."""
    ended = threading.Event()
    errors: list[Exception] = []

    def write() -> None:
        number = 1000
        try:
            while not ended.wait(_PAUSE_SECONDS):
                for table in tables:
                    table.append(number, number + 3, word="beside", minutes=number)
                number += 2  # one number comes twice
        except Exception as error:  # noqa: BLE001  # of a thread; the block raises it
            errors.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
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
    wrong = 0
    with drill_workshops() as drill:
        for kind, past, is_written in product(options.kinds, options.pasts, (False, True)):
            try:
                found = begins_right(drill.workshop(), kind, past, is_written=is_written)
            except Exception as error:  # noqa: BLE001  # a combination that fails does not hide the others
                found = f"{type(error).__name__}: {error}"[:400]
            wrong += bool(found)
            beside = "writer beside" if is_written else "quiet"
            sys.stdout.write(f"{kind} · {past} · {beside}: {f'WRONG: {found}' if found else 'right'}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{wrong} combinations are wrong.\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
